"""The blocks of a sweep as one array job of Slurm.

The queue is the only memory: a sweep's jobs are found by their name, which is made from its output directory. A file of
job numbers would be wrong after a crash between submitting and writing.
"""

import hashlib
import math
import os
import re
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioning.batch.options import SlurmOptions
from provisioning.foreground import call
from suite.errors import BenchError, MeasurementError, RequestError
from suite.sweep import file_transfer
from suite.units import parse_duration_s

ENDED = frozenset({"BF", "CA", "CD", "DL", "F", "NF", "OOM", "PR", "TO"})
"""Codes of squeue for tasks that have ended and were not requeued."""
NOTICE_S = 60
"""Seconds before the time limit at which bench is asked to end: closing a target in order takes a VM seconds."""
REMEDY = (
    "sinfo shows whether the controller answers; if the message is not Slurm's, put the directory of Slurm's own "
    "programs first on PATH: docs/guide/clusters.md"
)
TASK = re.compile(r"(?P<job>\d+)\|(?P<block>\d+)\|(?P<state>[A-Z_]+)\|(?P<node>[^|]*)\|(?P<reason>.*)")
NO_TASK = re.compile(r"|CLUSTER: \S+|\d+\|N/A\|.*")
"""What squeue prints besides: an empty line, a cluster's name (before Slurm 20.11), a job of srun."""
SUBMITTED = re.compile(r"(?m)^(?P<job>\d+)(;(?P<cluster>\S+))?$")


@dataclass(frozen=True)
class ArrayTask:
    """One block in the queue, as squeue shows it: ``state`` is its short code, ``reason`` is why it waits."""

    job: str
    block: int
    state: str
    reason: str
    node: str

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def __str__(self) -> str:
        if self.state == "PD":
            return f"waiting ({self.reason})"
        return f"ended ({self.state})" if self.ended else f"{self.state} on {self.node}".replace("R on", "running on")


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


def clusters(options: SlurmOptions) -> list[str]:
    """Return the option for the clusters that take the jobs, which squeue and scancel need as well as sbatch."""
    planned = [word for word in options.further if word.startswith("--clusters=")]
    of_user = os.environ.get("SBATCH_CLUSTERS") or os.environ.get("SLURM_CLUSTERS")
    return planned[-1:] or ([f"--clusters={of_user}"] if of_user else [])


def script(
    options: SlurmOptions, name: str, directory: Path, command: Sequence[str], blocks: Iterable[int], limit: str | None
) -> str:
    """Return the script for sbatch. ``command`` runs one block, whose number is put behind it.

    It holds only fixed text and quoted words. Relative paths of the plan start from the directory of this process.
    Raises RequestError for a word that no quotes can hold.
    """
    log = str(directory / "logs" / "slurm").replace("%", "%%") + "-%A_%a.log"
    options_of_sbatch = [
        *dict.fromkeys([*resources(options, name, limit), *clusters(options)]),
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


def submit(text: str) -> tuple[str, str | None]:
    """Hand the script to sbatch; return the job's number, and its cluster if sbatch names one.

    Raises CommandError with Slurm's objection, and MeasurementError for an answer without a number.
    """
    # The script's options again on the command line: SBATCH_* variables win over those in a script.
    words = [shlex.split(line)[1] for line in text.splitlines() if line.startswith("#SBATCH ")]
    answer = call(["sbatch", "--parsable", *words], text, remedy=REMEDY)
    if not (jobs := [*SUBMITTED.finditer(answer)]):  # a site's own words may come before it
        raise _unreadable("sbatch", answer)
    return jobs[-1]["job"], jobs[-1]["cluster"]


def queue(name: str, where: Sequence[str] = ()) -> list[ArrayTask]:
    """Return this user's tasks of that name, including ended ones that Slurm still remembers (minutes).

    ``where`` is the option for the ``clusters``. Raises MeasurementError as ``task_of`` does.
    """
    fields = "%F|%K|%t|%N|%r"
    words = ["--me", f"--name={name}", "--array", "--states=all", "--noheader", f"--format={fields}"]
    return [task for task in map(task_of, _ask(["squeue", *where, *words]).splitlines()) if task]


def task_of(line: str) -> ArrayTask | None:
    """Return the task of a line, or None if the line is of something else. Raises MeasurementError if it is unknown."""
    if task := TASK.fullmatch(line.strip()):
        return ArrayTask(task["job"], int(task["block"]), task["state"], task["reason"], task["node"])
    if NO_TASK.fullmatch(line.strip()):
        return None
    raise _unreadable("squeue", line)


def cancel(name: str, where: Sequence[str] = (), *, waiting_alone: bool = False) -> None:
    """End this user's tasks of that name; with ``waiting_alone`` those that have not begun."""
    _ask(["scancel", *where, "--me", f"--name={name}", *(["--state=PENDING"] if waiting_alone else [])])


def _ask(argv: Sequence[str]) -> str:
    """Run squeue or scancel without the user's defaults for it: by SQUEUE_PARTITION, tasks would be missing."""
    defaults = [name for name in os.environ if name.startswith(f"{argv[0].upper()}_")]
    return call(argv, remedy=REMEDY, without=defaults)


def _unreadable(program: str, text: str) -> MeasurementError:
    return MeasurementError(
        f"the answer of {program} is not Slurm's: {text.strip()[:300]!r}", kind="slurm", remedy=REMEDY
    )


def require() -> None:
    """Check that this machine can submit jobs. Raises RequestError if it has no Slurm."""
    for program in ("sbatch", "squeue", "scancel"):
        if shutil.which(program) is None:
            raise RequestError(
                f"{program} is not on the PATH: this machine submits to no Slurm",
                remedy="go to a login node of the cluster, or choose another kind in [engine]",
            )


class FollowedQueue:
    """The tasks of a sweep in the queue, which is asked once for all blocks that are followed."""

    def __init__(
        self,
        ask: Callable[[], list[ArrayTask]],
        poll_s: float,
        note: Callable[[str], None],
        before: Iterable[ArrayTask],
    ) -> None:
        """``ask`` returns the ``queue``, and ``note`` gets each change since the tasks ``before``."""
        self._ask, self.poll_s, self._note = ask, poll_s, note
        self._asking = threading.Lock()
        self._asked_s = -math.inf
        self._newest = {task.block: task for task in before}

    def newest(self, block: int) -> ArrayTask | None:
        """Return the newest task of a block, not older than ``poll_s``; None if Slurm has forgotten it."""
        with self._asking:
            if time.monotonic() - self._asked_s >= self.poll_s:
                tasks = sorted(self._ask(), key=lambda task: (not task.ended, int(task.job)))
                newest = {task.block: task for task in tasks}
                for number, task in sorted(newest.items()):
                    if str(task) != str(self._newest.get(number)):
                        self._note(f"block {number}: {task}")
                self._newest, self._asked_s = newest, time.monotonic()
            return self._newest.get(block)


class TaskProcess:
    """A task of an array job, which writes its records into the common directory itself. See ``pool.BlockProcess``.

    The task outlives this process: stopping leaves it in the queue.
    """

    where = ""

    def __init__(self, tasks: FollowedQueue, block: int) -> None:
        self._tasks, self._block = tasks, block
        self._stopped = threading.Event()

    def lines(self) -> Generator[str, None, None]:
        """Wait until the task is not in the queue any more; whether its records are whole, the directory shows."""
        while not self._stopped.is_set():
            task = self._tasks.newest(self._block)
            if task is None or task.ended:
                yield file_transfer.ENDED
                return
            self._stopped.wait(self._tasks.poll_s)

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        """Release nothing."""

    def lost(self) -> BenchError:
        return MeasurementError("it is not followed any more", kind="stopped")
