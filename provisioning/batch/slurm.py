"""The elements of a sweep as one array job of Slurm.

The queue is the only memory: a sweep's jobs are found by their name, which is made from its output directory. So there
is no file of job numbers that a crash between submitting and writing could make untrue.
"""

import hashlib
import math
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioning.batch.options import SlurmOptions
from suite.errors import CommandError, RequestError
from suite.units import parse_duration_s

ENDED = frozenset({"BF", "CA", "CD", "DL", "F", "NF", "OOM", "PR", "TO"})
"""Codes of squeue after which a task does not come back by itself: it was not requeued."""
NOTICE_S = 60
"""So long before the time limit bench is told to end: it closes its target in order, which a VM needs seconds for."""
WITHIN_S = 60.0


@dataclass(frozen=True)
class Task:
    """One element in the queue, as squeue shows it. ``state`` is its short code; ``reason`` why it waits."""

    job: str
    block: int
    state: str
    reason: str
    node: str

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def job_name(name: str, directory: Path) -> str:
    """One name for all jobs of the sweep that writes ``directory``."""
    return f"bench-{name}-{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:8]}"


def array(blocks: Iterable[int], at_once: int | None) -> str:
    """``0-3,7%2``: the numbers in as few words as Slurm has for them."""
    ranges: list[list[int]] = []
    for block in sorted(set(blocks)):
        if ranges and block == ranges[-1][1] + 1:
            ranges[-1][1] = block
        else:
            ranges.append([block, block])
    words = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
    return f"{words}%{at_once}" if at_once else words


def time_limit(options: SlurmOptions, estimate_s: float | None) -> str | None:
    """Minutes for ``--time``; None where nothing is known, and the partition's own limit holds."""
    if options.time_limit is not None:
        seconds = parse_duration_s(options.time_limit)
    elif estimate_s is not None:
        seconds = estimate_s * options.time_margin + NOTICE_S
    else:
        return None
    return str(max(1, math.ceil(seconds / 60)))


def resources(options: SlurmOptions, name: str, limit: str | None) -> list[str]:
    """What sbatch and srun are asked for: one whole node for each element, of the kind that the options name."""
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
    options: SlurmOptions, name: str, directory: Path, element: Sequence[str], blocks: Iterable[int], limit: str | None
) -> str:
    """The script that sbatch takes. ``element`` is the command of one element; its number is put behind it.

    It holds fixed text and quoted words alone. Relative paths of the plan are meant from the directory of this process.
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
    return "\n".join(
        [
            "#!/bin/sh",
            *(f"#SBATCH {shlex.quote(word)}" for word in options_of_sbatch),
            'echo "element $SLURM_ARRAY_TASK_ID on $SLURMD_NODENAME, restarts ${SLURM_RESTART_COUNT:-0}"',
            f"{shlex.quote(element[0])} clean  # of what an element left here that was killed",
            f'exec {shlex.join(element)} "$SLURM_ARRAY_TASK_ID"',
            "",
        ]
    )


def submit(text: str) -> str:
    """Hand the script to sbatch; returns the job's number. Raises RequestError with what Slurm says against it."""
    answer = _ask(["sbatch", "--parsable"], text)
    return answer.strip().partition(";")[0]


def queue(name: str) -> list[Task]:
    """This user's tasks of that name, those included that have ended and that Slurm still remembers (minutes)."""
    fields = "%F|%K|%t|%N|%r"
    words = ["--me", f"--name={name}", "--array", "--states=all", "--noheader", f"--format={fields}"]
    return [task_of(line) for line in _ask(["squeue", *words]).splitlines() if line.strip()]


def task_of(line: str) -> Task:
    """One line of squeue in the format that ``queue`` asks for."""
    job, block, state, node, reason = line.strip().split("|", 4)
    return Task(job=job, block=int(block), state=state, reason=reason, node=node)


def cancel(name: str, *, waiting_alone: bool = False) -> None:
    """End this user's tasks of that name; with ``waiting_alone`` those that have not begun."""
    _ask(["scancel", "--me", f"--name={name}", *(["--state=PENDING"] if waiting_alone else [])])


def require() -> None:
    """Raises RequestError where this machine has no Slurm."""
    for program in ("sbatch", "squeue", "scancel"):
        if shutil.which(program) is None:
            raise RequestError(
                f"{program} is not on the PATH: this machine submits to no Slurm",
                remedy="go to a login node of the cluster, or choose another kind in [engine]",
            )


def _ask(argv: Sequence[str], text: str = "") -> str:
    try:
        answer = subprocess.run(argv, input=text, check=False, capture_output=True, text=True, timeout=WITHIN_S)
    except FileNotFoundError as error:
        raise RequestError(f"{argv[0]} is not installed", remedy="see docs/clusters.md, Slurm") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(argv, None, "", remedy="see with sinfo whether the controller answers") from error
    if answer.returncode:
        raise CommandError(
            argv, answer.returncode, answer.stderr or answer.stdout, remedy="the message is Slurm's; docs/clusters.md"
        )
    return answer.stdout
