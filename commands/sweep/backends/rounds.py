"""Hand out what is left of a sweep to other machines, round by round, and receive the records."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from commands.sweep.backends.base import SweepEnd, SweepRequest, job_name
from commands.sweep.backends.dispatch import Dispatcher, Executor, OpenBlock
from provisioning.batch.remote import StreamProcess
from suite.errors import MeasurementError, RequestError
from suite.plan import Plan
from suite.records.record import TrialRecord
from suite.results.layout import CONVERGED, LOGS, POOL
from suite.results.store import PLAN, stop_requested, stored_plan
from suite.sweep.cells import cells_of
from suite.sweep.directory import CellRun, StopRule
from suite.sweep.estimate import durations_below
from suite.sweep.file import Sweep
from suite.sweep.file_transfer import encode_file
from suite.sweep.pool import Receiver
from suite.trial_names import files_of_block
from suite.units import count

if TYPE_CHECKING:
    from analysis.statistics.sequential import Decision

BLOCK = ("sweep", "block")
"""The command that runs a block on another machine."""


def run_rounds(request: SweepRequest, run: Callable[[list[int]], None], at_once: int) -> SweepEnd:
    """Hand blocks to ``run``, which returns when they have ended, until none is left or a stop was requested.

    Raises MeasurementError when blocks were not completed.
    """
    directory = request.directory.path
    before = _records(request)
    while blocks := next_round(request, at_once):
        run(blocks)
        if stop_requested(directory):
            break
        lost = sorted({*blocks} & {*blocks_left(request)})
        if lost:
            numbers = ", ".join(map(str, lost))
            raise MeasurementError(
                f"{len(lost)} of {count(len(blocks), 'block')} not completed: {numbers}",
                remedy=f"their logs are in {directory / 'logs'}; bench sweep run tries them again",
            )
    later = _records(request)
    records = [record for key, record in later.items() if before.get(key) != record]
    reason = None
    if stop_requested(directory):
        reason = "it was asked to stop"
    return SweepEnd(records, reason)


def run_on(
    openers: Mapping[str, OpenBlock],
    request: SweepRequest,
    blocks: list[int],
    *,
    stay: str | None = None,
) -> None:
    """Run the blocks as executors become free: for each name, what starts a block there.

    ``stay`` notes on Ctrl-C that blocks which run now go on without this process.
    """
    receive = Receiver(request.sweep, request.directory)
    executors = [Executor(name, open_block, receive) for name, open_block in openers.items()]
    stop = partial(stop_requested, request.directory.path)
    dispatcher = Dispatcher(executors, blocks, request.observer.note, stop)
    try:
        dispatcher.run()
    except KeyboardInterrupt:
        if stay:
            request.observer.note(f"{stay}; bench sweep run follows them again")
            request.observer.note(f"end them with: bench sweep cancel {request.directory.path}")
        raise


def stream(
    request: SweepRequest,
    name: str,
    command: Sequence[str],
    wrap: Callable[[Sequence[str]], list[str]] = list,
    *,
    without: Collection[str] = (),
    after: Callable[[str], None] = lambda _: None,
) -> OpenBlock:
    """Return what starts a block by ``command``, which ends in ``BLOCK`` and options; ``wrap`` takes it elsewhere.

    It runs ``without`` these variables; ``after`` it the end of its standard error is passed on.
    """
    directory = request.directory.path.absolute()
    words = [*command, "--name", job_name(request.sweep, directory)]

    def start(block: int) -> StreamProcess:
        paths = files_to_send(directory, block)
        files = [encode_file(directory, path) for path in paths]
        log = directory / LOGS / f"{name}.log"
        argv = wrap([*words, str(block)])
        return StreamProcess(argv, files, log, without=without, after=after)

    return start


def blocks_left(request: SweepRequest) -> list[int]:
    """Return the blocks in which some cell has trials to run: all of them for a cell that no machine has begun."""
    return _left(request, request.directory.converged(request.sweep))


def next_round(request: SweepRequest, at_once: int) -> list[int]:
    """Return the blocks to hand out now: all that are left.

    Of an open-ended sweep these are as many as are certain to be needed, or as run ``at_once``. Which cells they hold
    is decided here and, unless it is a dry run, written down for the machines that run them.
    """
    if not request.sweep.open_ended:
        return blocks_left(request)
    decision = decisions_of(request.sweep)
    runs = _runs(request)
    decisions = {run.directory.name: decision(run) for run in runs}
    converged = [name for name, verdict in decisions.items() if verdict.stop]
    if not request.dry_run:
        request.directory.write_converged(request.sweep, converged)
    wanted = (verdict.at_least for verdict in decisions.values())
    most = max(at_once, *wanted)
    return _left(request, converged)[:most]


def files_to_send(directory: Path, block: int) -> list[Path]:
    """Return what a machine needs of the output directory to run a block, with what the block has there already."""
    of_sweep = (directory / name for name in ("sweep.json", POOL, CONVERGED))
    names = files_of_block(block)
    of_block = (path for name in names for path in directory.glob(f"*/*/{name}"))
    paths = (*of_sweep, *directory.glob(f"*/{PLAN}"), *of_block)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def estimate_s(request: SweepRequest) -> float | None:
    """Return the seconds of the longest block, from records of this sweep and of those beside it; None if unknown.

    A cell that was not begun here is known by its plan in an earlier sweep: its name says all that matters.
    """
    results = request.directory.path.absolute().parent
    durations = durations_below(results)
    blocks = {0, request.sweep.block_count - 1}  # the first has the warm-ups
    seconds = 0.0
    for run in _runs(request):
        of_other_sweeps = sorted(results.glob(f"*/{run.directory.name}"))
        plans = map(_readable_plan, (run.directory, *of_other_sweeps))
        plan = next(filter(None, plans), None)
        if plan is None:
            return None
        guesses = []
        for block in blocks:
            trials = plan.trials_of(block)
            guesses.append(durations.guess(*trials))
        if any(guess.source != "records" for guess in guesses):
            return None
        seconds += max(guess.seconds for guess in guesses)
    return seconds


def _runs(request: SweepRequest) -> list[CellRun]:
    retries = request.sweep.budget.retries
    cells = cells_of(request.sweep)
    return [request.directory.cell(cell.cell_id, retries) for cell in cells]


def _records(request: SweepRequest) -> dict[tuple[str, str], TrialRecord]:
    records = {}
    for run in _runs(request):
        cell = run.directory.name
        for record in run.records():
            records[cell, record.trial_id] = record
    return records


def _left(request: SweepRequest, converged: Collection[str]) -> list[int]:
    blocks = range(request.sweep.block_count)
    left = set[int]()
    for run in _runs(request):
        if run.directory.name in converged:
            continue
        plan = run.plan()
        if plan:
            left.update(run.left(plan, blocks))
        else:
            left.update(blocks)
    return sorted(left)


def _readable_plan(run: Path) -> Plan | None:
    try:
        return stored_plan(run)
    except RequestError:  # what lies beside this sweep may be of any version of the suite
        return None


def decisions_of(sweep: Sweep) -> "Callable[[CellRun], Decision]":
    """Return what decides from a cell's records whether it needs no further block. The sweep is open-ended."""
    # Not at the top: pandas and scipy take most of a second, and few sweeps are open-ended.
    from analysis.compare.convergence import should_stop_detecting, should_stop_run
    from analysis.load.records import load

    # One more than there are: the rule must not stop for want of blocks, or a last one that was cut off would stay so.
    most = sweep.block_count + 1

    def until(run: CellRun) -> "Decision":
        counts = any(not record.warm_up for record in run.records())
        records = load([run.directory]) if counts else None
        return should_stop_run(records, sweep, max_blocks=most)

    def detect(run: CellRun) -> "Decision":
        plan = run.plan()
        blocks = range(sweep.block_count)
        finished = 0
        if plan:
            left = run.left(plan, blocks)
            finished = len(blocks) - len(left)
        difference = sweep.difference or 0.0
        return should_stop_detecting(lambda: load([run.directory]), difference, finished, most=len(blocks))

    return until if sweep.until else detect


def stop_rule_of(sweep: Sweep) -> StopRule | None:
    """Return why a cell needs no further block, decided from its records; None unless the sweep is open-ended."""
    if not sweep.open_ended:
        return None
    decide = decisions_of(sweep)

    def reason(run: CellRun) -> str | None:
        decision = decide(run)
        if decision.stop:
            return decision.reason
        return None

    return reason
