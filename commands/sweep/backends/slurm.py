"""The sweep backend ``slurm``: blocks as tasks of an array job, or each as a job of salloc.

The queue is the only memory: a sweep's jobs are found by their name, which is made from its output directory. A file of
job numbers would be wrong after a crash between submitting and writing.
"""

import math
import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from commands.sweep.backends.base import Backend, SweepEnd, SweepRequest, job_name, options_of
from commands.sweep.backends.rounds import BLOCK, estimate_s, next_round, run_on, run_rounds, stream
from provisioning.batch.options import SlurmOptions
from provisioning.batch.patience import AWAY_AT_MOST_S, AwayError, Patience
from provisioning.foreground import call
from suite.errors import BenchError, CommandError, MeasurementError, RequestError
from suite.job.envelope import format_cpu_list
from suite.results.layout import CLUSTER, LOGS
from suite.results.store import write_atomic
from suite.sweep.cells import cells_of
from suite.sweep.file import Sweep
from suite.sweep.file_transfer import ENDED
from suite.units import count, parse_duration_s
from suite.untrusted.parse import has_control_characters

BENCH = str(Path(sys.executable).with_name("bench"))
AT_ONCE = 16
"""The most blocks at once with salloc, which is a process here for every block that runs or waits."""
MOST_FOLLOWED = 256
"""The most blocks of an array job that are followed at once, each by a thread; the others follow in their turn."""
ENDED_CODES = frozenset({"BF", "CA", "CD", "DL", "F", "NF", "OOM", "PR", "TO"})
"""Codes of squeue for tasks that have ended and were not requeued."""
CLUSTER_NAME = re.compile(r"[\w.-]+")
"""The file of a sweep with the name of the cluster that took its jobs."""
NOTICE_S = 60
"""Seconds before the time limit at which bench is asked to end: closing a target in order takes a VM seconds."""
OF_USER = ("partition", "account", "qos", "reservation", "constraint", "clusters")
"""Options that ``SBATCH_*`` or ``SLURM_*`` variables of the user give if the plan does not."""
PREFIXES = ("SLURM_", "SBATCH_", "SALLOC_", "SQUEUE_", "SCANCEL_")
CONNECTION = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
"""The variables of Slurm that its programs need to reach the controller; others change what their options mean."""
AWAY = re.compile(
    r"(?i)timed out|unable to contact|connection (refused|reset|failure)|connect failure|zero bytes|no route to host|"
    "standby mode|not responding|transport endpoint|name or service not known|temporary failure|try again"
)
"""Messages of Slurm's programs when the controller restarts, fails over or is busy."""
FINAL = (
    ("held|hold", "mend its cause, then: scontrol release {task}"),
    ("PartitionTimeLimit", "set a shorter time_limit or another partition: sinfo -o '%P %l'; {again}"),
    ("PartitionNodeLimit|BadConstraints", "choose nodes that exist by partition, constraint and exclude; {again}"),
    ("ReservationDeleted|Invalid(Account|QOS)|(Account|QOS)NotAllowed", "choose another one in [engine]; {again}"),
    (r"DependencyNeverSatisfied|(Assoc|QOS)Max\w*Per(Job|Node)\w*", "see the limit: scontrol show job {task}; {again}"),
)
"""The reasons for which a task waits that no waiting removes, each with a remedy."""
REMEDY = (
    "sinfo shows whether the controller answers; if the message is not Slurm's, put the directory of Slurm's own "
    "programs first on PATH: docs/guide/clusters.md"
)
TASK = re.compile(r"(?P<job>\d+)\|(?P<block>\d+)\|(?P<state>[A-Z_]+)\|(?P<node>[^|]*)\|(?P<reason>.*)")
NO_TASK = re.compile(r"|CLUSTER: \S+|\d+\|N/A\|.*")
"""What squeue prints besides: an empty line, a cluster's name (before Slurm 20.11), a job of salloc."""
FOLLOW = "the jobs run on; bench sweep run follows them again"
UNRELEASED = re.compile(r"Unable to clean up job allocation (\d+)")
"""The words of salloc, which asks the controller once to end its job."""
SUBMITTED = re.compile(r"(?m)^(?P<job>\d+)(;(?P<cluster>\S+))?$")


class Slurm(Backend):
    """Runs blocks on the nodes of a cluster, one on each at a time; without a common file system by salloc."""

    options = SlurmOptions

    def run(self, request: SweepRequest) -> SweepEnd:
        options = options_of(SlurmOptions, request.sweep)
        submitting = ("salloc", "srun") if options.scratch else ("sbatch",)
        for program in (*submitting, "squeue", "scancel"):
            if shutil.which(program) is None:
                raise RequestError(
                    f"{program} is not on the PATH: this machine submits to no Slurm",
                    remedy="go to a login node of the cluster, or choose another kind in [engine]",
                )
        by = _by_salloc if options.scratch else _by_array
        run_blocks = partial(by, request, options)
        return run_rounds(request, run_blocks, options.at_once or 1)

    def check_node(self) -> None:
        """Raise RequestError if the block has fewer CPUs than its job, or shares its node with other jobs."""
        job = os.environ.get("SLURM_JOB_ID")
        if job is None:
            return
        cpu_count = len(os.sched_getaffinity(0))
        of_job = re.match(r"\d+", os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        if of_job and cpu_count < int(of_job[0]):
            raise RequestError(
                f"the block may use {cpu_count} of the {count(int(of_job[0]), 'CPU')} of its job",
                remedy="start it by bench sweep run, which asks for all of them",
            )
        try:
            # One task of an array has the number of the whole, for which all tasks are listed.
            answer = _ask(["squeue", "--noheader", f"--jobs={job}", "--format=%h"])
        except BenchError:  # the controller is away, or this node has no squeue: --exclusive was given
            return
        sharing = set(answer.split())
        shared = sorted(sharing - {"NO"})
        if shared:
            raise RequestError(
                f"other jobs may run on the node of the block (OverSubscribe={', '.join(shared)})",
                remedy="choose a partition that is not OverSubscribe=FORCE in [engine]",
            )

    def dry_run(self, request: SweepRequest) -> None:
        """Say what would be handed to sbatch now, in a comment of the script."""
        options = options_of(SlurmOptions, request.sweep)
        blocks = next_round(request, options.at_once or 1)
        shebang, _, rest = _script(request, options, blocks).partition("\n")
        cells = count(len(cells_of(request.sweep)), "cell")
        targets = ", ".join(request.sweep.targets) or "the targets that a node measures"
        comment = f"# {count(len(blocks), 'block')} of {cells} on {targets} would go to Slurm, each to its own node."
        click.echo(f"{shebang}\n{comment}\n{rest}", nl=False)

    def queue(self, sweep: Sweep, directory: Path) -> list[str]:
        try:
            sweep_tasks = tasks(selection(sweep, directory))
            waiting = [task for task in sweep_tasks if not task.ended]
        except BenchError as error:  # the records are here all the same
            return [f"the queue cannot be seen from here: {error.message}"]
        return [f"in the queue: block {task.block} of job {task.job}, {task}" for task in waiting]

    def stop(self, sweep: Sweep, directory: Path) -> list[str]:
        return self.cancel(sweep, directory, waiting_alone=True)

    def cancel(self, sweep: Sweep, directory: Path, *, waiting_alone: bool = False) -> list[str]:
        selected = selection(sweep, directory)
        listed = tasks(selected)
        removed = [task for task in listed if task.state == "PD" or not (waiting_alone or task.ended)]
        if waiting_alone:
            selected = [*selected, "--state=PENDING"]
        if removed:
            _ask(["scancel", *selected])
        return [f"block {task.block} of job {task.job} was removed from the queue ({task})" for task in removed]


def _by_array(request: SweepRequest, options: SlurmOptions, blocks: list[int]) -> None:
    directory = request.directory.path
    note = request.observer.note
    before = tasks(selection(request.sweep, directory))
    queued = {task.block for task in before if not task.ended}
    new = [block for block in blocks if block not in queued]
    if new:
        (directory / LOGS).mkdir(exist_ok=True)
        job, cluster = submit(_script(request, options, new))
        if cluster:  # a later command may have another environment
            write_atomic(directory / CLUSTER, f"{cluster}\n", below=directory)
        note(f"job {job} ({job_name(request.sweep, directory)}): {count(len(new), 'block')} in the queue")
    if queued:
        note(f"{count(len(queued), 'block')} already in the queue, which this process follows")
    ended = [task for task in before if task.ended]
    followed = FollowedQueue(selection(request.sweep, directory), options.poll_s, note, ended)
    follower_count = min(len(blocks), MOST_FOLLOWED)
    names = [f"slurm-{number}" for number in range(follower_count)]
    openers = dict.fromkeys(names, partial(TaskProcess, followed))
    run_on(openers, request, blocks, stay="the jobs stay in the queue")


def _by_salloc(request: SweepRequest, options: SlurmOptions, blocks: list[int]) -> None:
    name = job_name(request.sweep, request.directory.path)
    limit = time_limit(options, estimate_s(request))
    # A job for each block, which waits in the queue until a node is free. Not of srun alone, which takes --exclusive
    # for its task as well, and gives it one CPU of the node.
    job = ["salloc", "--quiet", *resources(options, name, limit)]
    task = ["srun", "--quiet", "--kill-on-bad-exit=1", "--nodes=1", "--ntasks=1", "--cpu-bind=none"]
    bench = [options.bench or BENCH, *BLOCK, "--scratch", str(options.scratch)]
    command = [*job, *task, *bench]
    release = partial(release_jobs, options, request.observer.note)
    salloc_count = min(len(blocks), options.at_once or AT_ONCE)
    openers = {}
    for number in range(salloc_count):
        name = f"salloc-{number}"
        openers[name] = stream(request, name, command, without=own_variables(), after=release)
    run_on(openers, request, blocks)


def release_jobs(options: SlurmOptions, note: Callable[[str], None], complaints: str) -> None:
    """End the jobs that salloc could not end, by its own words: they would keep their nodes without it."""
    for job in UNRELEASED.findall(complaints):
        try:
            _end(["scancel", "--quiet", *clusters(options), job], options.poll_s, note)
        except BenchError as error:
            note(f"{error.message}; see whether job {job} still holds its node: squeue, scancel {job}")


def _end(scancel: Sequence[str], poll_s: float, note: Callable[[str], None]) -> None:
    """Run scancel until the controller answers. Raises AwayError if it is away too long."""
    patience = Patience(AWAY_AT_MOST_S)
    while True:
        try:
            _ask(scancel)
        except AwayError as error:
            _bear(patience, error, note, f"job {scancel[-1]} keeps its node")
            time.sleep(poll_s)
        else:
            return


def _bear(patience: Patience, error: AwayError, note: Callable[[str], None], meanwhile: str) -> None:
    """Note that the controller is away, once. Raises the error if that lasts too long."""
    if not patience.away:
        note(f"{error.message}; {meanwhile}, and it is asked again for {AWAY_AT_MOST_S:g} s")
    patience.bear(error)


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
    """Return the options for sbatch and salloc: one whole node for each block, of the kind that the options name."""
    of_plan = options.model_dump(include={"partition", "account", "qos", "reservation", "constraint", "exclude"})
    wanted = {
        "job-name": name,
        "nodes": "1",
        "ntasks": "1",
        "mem": "0",  # all of the node's; else the share that its default gives to one CPU
        "time": limit,
    }
    for key, value in of_plan.items():
        wanted[key] = value or of_user(key)
    words = [f"--{key}={value}" for key, value in wanted.items() if value]
    all_words = ("--exclusive", *words, *options.further, *clusters(options))
    return list(dict.fromkeys(all_words))


def of_user(key: str) -> str | None:
    """Return the user's own choice, by a variable as sbatch or srun reads it."""
    if key not in OF_USER:
        return None
    return os.environ.get(f"SBATCH_{key.upper()}") or os.environ.get(f"SLURM_{key.upper()}")


def own_variables() -> list[str]:
    """Return the variables that Slurm's programs are started without.

    In the shell of a job they would make a block a part of that job; elsewhere they are defaults that change options.
    """
    return [name for name in os.environ if name.startswith(PREFIXES) and name not in CONNECTION]


def clusters(options: SlurmOptions) -> list[str]:
    """Return the option for the clusters that take the jobs, which squeue and scancel need as well as sbatch."""
    planned = [word for word in options.further if word.startswith("--clusters=")]
    if planned:
        return planned[-1:]
    chosen = of_user("clusters")
    return [f"--clusters={chosen}"] if chosen else []


def _script(request: SweepRequest, options: SlurmOptions, blocks: Sequence[int]) -> str:
    file = request.file.absolute()
    directory = request.directory.path.absolute()
    bench = options.bench or BENCH
    run = [bench, "sweep", "run", str(file), "--out", str(directory), "--take-over", "--only-block"]
    name = job_name(request.sweep, directory)
    limit = time_limit(options, estimate_s(request))
    return script(options, name, directory, run, blocks, limit)


def script(
    options: SlurmOptions,
    name: str,
    directory: Path,
    command: Sequence[str],
    blocks: Iterable[int],
    limit: str | None,
) -> str:
    """Return the script for sbatch. ``command`` runs one block, whose number is put behind it.

    It holds only fixed text and quoted words. Relative paths of the plan start from the directory of this process.
    Raises RequestError for a word that no quotes can hold.
    """
    log = str(directory / LOGS / "slurm").replace("%", "%%") + "-%A_%a.log"
    at_once = ""
    if options.at_once:
        at_once = f"%{options.at_once}"
    options_of_sbatch = [
        *resources(options, name, limit),
        f"--array={format_cpu_list(blocks)}{at_once}",
        f"--chdir={Path.cwd()}",
        f"--output={log}",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:TERM@{NOTICE_S}",
    ]
    for word in (*options_of_sbatch, *command):
        if has_control_characters(word):  # a line break would begin a line of its own
            raise RequestError(
                f"{word!r} cannot stand in a batch script: it holds a line break or another control character",
                remedy="give another --out, or call the plan, or its directory, something else",
            )
    directives = [f"#SBATCH {shlex.quote(word)}" for word in options_of_sbatch]
    lines = [
        "#!/bin/sh",
        *directives,
        'echo "block $SLURM_ARRAY_TASK_ID on $SLURMD_NODENAME, restarts ${SLURM_RESTART_COUNT:-0}"',
        f"{shlex.quote(command[0])} clean  # what a killed block has left here",
        f'exec {shlex.join(command)} "$SLURM_ARRAY_TASK_ID"',
        "",
    ]
    return "\n".join(lines)


def submit(text: str) -> tuple[str, str | None]:
    """Hand the script to sbatch; return the job's number, and its cluster if sbatch names one.

    Raises CommandError with Slurm's objection, and MeasurementError for an answer without a number.
    """
    # The script's options again on the command line: a wrapper of sbatch may read them there alone.
    words = []
    for line in text.splitlines():
        if line.startswith("#SBATCH "):
            words.append(shlex.split(line)[1])
    answer = call(["sbatch", "--parsable", *words], text, remedy=REMEDY, without=own_variables())
    jobs = list(SUBMITTED.finditer(answer))
    if not jobs:
        raise _unreadable("sbatch", answer)
    submitted = jobs[-1]  # a site's own words may come before it
    return submitted["job"], submitted["cluster"]


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
        return self.state in ENDED_CODES

    @property
    def final(self) -> RequestError | None:
        """Why it waits, if no waiting helps."""
        if self.state != "PD":
            return None
        for pattern, remedy in FINAL:
            if re.search(pattern, self.reason, re.IGNORECASE):
                task = f"{self.job}_{self.block}"
                repeat = "bench sweep cancel removes the task before you run it again"
                advice = remedy.format(task=task, again=repeat)
                return RequestError(f"task {task} will not start by waiting: {self.reason}", remedy=advice)
        return None

    def __str__(self) -> str:
        if self.state == "PD":
            return f"waiting ({self.reason})"
        if self.ended:
            return f"ended ({self.state})"
        return f"{self.state} on {self.node}".replace("R on", "running on")


def selection(sweep: Sweep, directory: Path) -> list[str]:
    """Return the options by which squeue and scancel find a sweep's jobs, in the cluster that took them or would."""
    try:
        named = (directory / CLUSTER).read_text(errors="replace")
        kept = CLUSTER_NAME.fullmatch(named.strip())
    except FileNotFoundError:
        kept = None
    if kept:
        where = [f"--clusters={kept[0]}"]
    else:
        where = clusters(options_of(SlurmOptions, sweep))
    return [*where, "--me", f"--name={job_name(sweep, directory)}"]


def tasks(selected: Sequence[str]) -> list[ArrayTask]:
    """Return the tasks of a ``selection``, including ended ones that Slurm still remembers (minutes).

    Raises MeasurementError for an answer that is not Slurm's.
    """
    listed = []
    form = ("--array", "--states=all", "--noheader", "--format=%F|%K|%t|%N|%r")
    answer = _ask(["squeue", *selected, *form])
    for line in answer.splitlines():
        fields = TASK.fullmatch(line.strip())
        if fields:
            task = ArrayTask(
                job=fields["job"],
                block=int(fields["block"]),
                state=fields["state"],
                reason=fields["reason"],
                node=fields["node"],
            )
            listed.append(task)
        elif not NO_TASK.fullmatch(line.strip()):
            raise _unreadable("squeue", line)
    return listed


def _ask(argv: Sequence[str]) -> str:
    """Run squeue or scancel. Raises AwayError while the controller does not answer."""
    try:
        return call(argv, remedy=REMEDY, without=own_variables())
    except CommandError as error:
        if error.returncode is not None and not AWAY.search(error.output_tail):
            raise
        reason = error.output_tail or error.message
        raise AwayError("the controller of Slurm", reason, kind="slurm-away", remedy=f"{FOLLOW}; {REMEDY}") from error


def _unreadable(program: str, text: str) -> MeasurementError:
    return MeasurementError(
        f"the answer of {program} is not Slurm's: {text.strip()[:300]!r}", kind="slurm", remedy=REMEDY
    )


class FollowedQueue:
    """The tasks of a sweep in the queue, which is asked once for all blocks that are followed."""

    def __init__(
        self,
        selected: list[str],
        poll_s: float,
        note: Callable[[str], None],
        ended: list[ArrayTask],
    ) -> None:
        """``note`` gets each change, but not of the tasks that had ``ended`` before."""
        self._selected = selected
        self.poll_s = poll_s
        self._note = note
        self._asking = threading.Lock()
        self._asked_s = -math.inf
        self._newest = {task.block: task for task in ended}
        self._patience = Patience(AWAY_AT_MOST_S)

    def newest(self, block: int) -> ArrayTask | None:
        """Return the newest task of a block, not older than ``poll_s``; None if Slurm has forgotten it.

        While the controller is away it is the task that was seen last. Raises AwayError if that lasts too long.
        """
        with self._asking:
            if time.monotonic() - self._asked_s >= self.poll_s:
                self._look()
                self._asked_s = time.monotonic()
            unseen = None
            if self._patience.away:
                unseen = ArrayTask("", block, "", "", "")
            return self._newest.get(block, unseen)

    def _look(self) -> None:
        try:
            seen = tasks(self._selected)
        except AwayError as error:
            _bear(self._patience, error, self._note, "the tasks run on")
            return
        self._patience.answered()
        ordered = sorted(seen, key=lambda task: (not task.ended, int(task.job)))
        newest = {task.block: task for task in ordered}
        for number, task in sorted(newest.items()):
            if str(task) != str(self._newest.get(number)):
                self._note(f"block {number}: {task}")
        self._newest = newest


class TaskProcess:
    """A task of an array job, which writes its records into the common directory itself. See ``BlockProcess``.

    The task outlives this process: stopping leaves it in the queue.
    """

    where = ""

    def __init__(self, followed: FollowedQueue, block: int) -> None:
        self._followed = followed
        self._block = block
        self._stopped = threading.Event()

    def lines(self) -> Generator[str, None, None]:
        """Wait until the task is not in the queue any more; whether its records are whole, the directory shows."""
        while not self._stopped.is_set():
            task = self._followed.newest(self._block)
            if task is None or task.ended:
                yield ENDED
                return
            if task.final:
                raise task.final
            self._stopped.wait(self._followed.poll_s)

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        """Release nothing."""

    def lost(self) -> BenchError:
        return MeasurementError("it is not followed any more", kind="stopped")
