"""The blocks of a sweep as one array job of Slurm.

The queue is the only memory: a sweep's jobs are found by their name, which is made from its output directory. A file of
job numbers would be wrong after a crash between submitting and writing.
"""

import hashlib
import math
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioning.batch.options import SlurmOptions
from provisioning.foreground import call
from suite.errors import RequestError
from suite.units import parse_duration_s

ENDED = frozenset({"BF", "CA", "CD", "DL", "F", "NF", "OOM", "PR", "TO"})
"""Codes of squeue for tasks that have ended and were not requeued."""
NOTICE_S = 60
"""Seconds before the time limit at which bench is told to end: closing a target in order takes a VM seconds."""
REMEDY = "the message is Slurm's; sinfo tells whether the controller answers: docs/guide/clusters.md"


@dataclass(frozen=True)
class ArrayTask:
    """One block in the queue, as squeue shows it: ``state`` is its short code, ``reason`` says why it waits."""

    job: str
    block: int
    state: str
    reason: str
    node: str

    @property
    def ended(self) -> bool:
        """Return whether the task has ended and was not requeued."""
        return self.state in ENDED


def job_name(name: str, directory: Path) -> str:
    """Return the one name of all jobs of the sweep that writes ``directory``."""
    return f"bench-{name}-{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:8]}"


def array(blocks: Iterable[int], at_once: int | None) -> str:
    """Return the numbers as Slurm writes them, with ranges: ``0-3,7%2``."""
    ranges: list[list[int]] = []
    for block in sorted(set(blocks)):
        if ranges and block == ranges[-1][1] + 1:
            ranges[-1][1] = block
        else:
            ranges.append([block, block])
    words = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
    return f"{words}%{at_once}" if at_once else words


def time_limit(options: SlurmOptions, estimate_s: float | None) -> str | None:
    """Return the minutes for ``--time``; None if nothing is known, so that the partition's own limit holds."""
    if options.time_limit is not None:
        seconds = parse_duration_s(options.time_limit)
    elif estimate_s is not None:
        seconds = estimate_s * options.time_margin + NOTICE_S
    else:
        return None
    return str(max(1, math.ceil(seconds / 60)))


def resources(options: SlurmOptions, name: str, limit: str | None) -> list[str]:
    """Return the options for sbatch and srun: one whole node for each block, of the kind that the options name."""
    wanted = {
        "job-name": name,
        "nodes": "1",
        "ntasks": "1",
        "mem": "0",  # all of the node's; else the share that its default gives to one CPU
        "time": limit,
        **{
            key: getattr(options, key)
            for key in ("partition", "account", "qos", "reservation", "constraint", "exclude")
        },
    }
    return ["--exclusive", *(f"--{key}={value}" for key, value in wanted.items() if value), *options.further]


def script(
    options: SlurmOptions, name: str, directory: Path, command: Sequence[str], blocks: Iterable[int], limit: str | None
) -> str:
    """Return the script for sbatch. ``command`` runs one block, whose number is put behind it.

    It holds only fixed text and quoted words. Relative paths of the plan start from the directory of this process.
    Raises RequestError for a word that no quotes can hold.
    """
    log = str(directory / "logs" / "slurm").replace("%", "%%") + "-%A_%a.log"
    options_of_sbatch = [
        *resources(options, name, limit),
        f"--array={array(blocks, options.at_once)}",
        f"--chdir={Path.cwd()}",
        f"--output={log}",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:TERM@{NOTICE_S}",
    ]
    for word in (*options_of_sbatch, *command):
        if not word.isprintable():  # a line break would begin a line of its own
            raise RequestError(
                f"{word!r} cannot stand in a batch script: it holds a line break or another control character",
                remedy="give another --out, or call the plan, or its directory, something else",
            )
    return "\n".join(
        [
            "#!/bin/sh",
            *(f"#SBATCH {shlex.quote(word)}" for word in options_of_sbatch),
            'echo "block $SLURM_ARRAY_TASK_ID on $SLURMD_NODENAME, restarts ${SLURM_RESTART_COUNT:-0}"',
            f"{shlex.quote(command[0])} clean  # what a killed block has left here",
            f'exec {shlex.join(command)} "$SLURM_ARRAY_TASK_ID"',
            "",
        ]
    )


def submit(text: str) -> str:
    """Hand the script to sbatch; return the job's number. Raises CommandError with what Slurm says against it."""
    return call(["sbatch", "--parsable"], text, remedy=REMEDY).strip().partition(";")[0]


def queue(name: str) -> list[ArrayTask]:
    """Return this user's tasks of that name, including ended ones that Slurm still remembers (minutes)."""
    fields = "%F|%K|%t|%N|%r"
    words = ["--me", f"--name={name}", "--array", "--states=all", "--noheader", f"--format={fields}"]
    return [task_of(line) for line in call(["squeue", *words], remedy=REMEDY).splitlines() if line.strip()]


def task_of(line: str) -> ArrayTask:
    """Parse one line of squeue in the format that ``queue`` asks for."""
    job, block, state, node, reason = line.strip().split("|", 4)
    return ArrayTask(job=job, block=int(block), state=state, reason=reason, node=node)


def cancel(name: str, *, waiting_alone: bool = False) -> None:
    """End this user's tasks of that name; with ``waiting_alone`` those that have not begun."""
    call(["scancel", "--me", f"--name={name}", *(["--state=PENDING"] if waiting_alone else [])], remedy=REMEDY)


def require() -> None:
    """Check that this machine can submit jobs. Raises RequestError if it has no Slurm."""
    for program in ("sbatch", "squeue", "scancel"):
        if shutil.which(program) is None:
            raise RequestError(
                f"{program} is not on the PATH: this machine submits to no Slurm",
                remedy="go to a login node of the cluster, or choose another kind in [engine]",
            )
