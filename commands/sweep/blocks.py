"""What is left of a sweep that other machines run: which elements, with which files, for about how long."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from commands.sweep.resolve import decisions_of
from suite.errors import RequestError
from suite.plan import Plan
from suite.results.store import PLAN, stored_plan
from suite.sweep.cells import cells_of
from suite.sweep.converged import ENOUGH, decide, decided
from suite.sweep.estimate import durations_below, total
from suite.sweep.pool import POOL
from suite.trial_names import files_of_block

if TYPE_CHECKING:
    from commands.sweep.backends.registry import SweepRequest
    from suite.records.record import TrialRecord
    from suite.sweep.cell_run import CellRun


def runs_of(request: "SweepRequest") -> "list[CellRun]":
    """Of every cell, begun or not."""
    retries = request.sweep.budget.retries
    return [request.directory.cell(cell.cell_id, retries) for cell in cells_of(request.sweep)]


def finished(request: "SweepRequest") -> "dict[tuple[str, str], TrialRecord]":
    """The last record of every trial, by cell and trial."""
    return {(run.directory.name, record.trial_id): record for run in runs_of(request) for record in run.records()}


def elements_left(request: "SweepRequest") -> list[int]:
    """The blocks of which some cell has trials to run. Of a cell that no machine has begun, all of them."""
    narrow = decided(request.directory.path, request.sweep) if request.sweep.until else frozenset()
    return _left(request, narrow)


def _left(request: "SweepRequest", narrow: Collection[str]) -> list[int]:
    going_on = [run for run in runs_of(request) if run.directory.name not in narrow]
    return sorted({block for run in going_on for block in _blocks_left(run, request.sweep.element_count)})


def next_round(request: "SweepRequest", at_once: int) -> list[int]:
    """The elements to hand out now: all that are left. With ``until`` as many as are certain to be needed, or as run at
    once. Which cells they are of is decided here and, unless it is a dry run, written down for the elements.
    """
    if not request.sweep.until:
        return elements_left(request)
    decision = decisions_of(request.sweep)
    decisions = {run.directory.name: decision(run) for run in runs_of(request)}
    narrow = [name for name, each in decisions.items() if each.stop]
    if not request.dry_run:
        decide(request.directory.path, request.sweep, narrow)
    return _left(request, narrow)[: max(at_once, *(each.at_least for each in decisions.values()))]


def _blocks_left(run: "CellRun", blocks: int) -> Iterator[int]:
    plan = run.plan()
    done = set(run.finished())
    for block in range(blocks):
        if plan is None or any(trial.trial_id not in done for trial in plan.trials_of(block)):
            yield block


def _readable(run: Path) -> Plan | None:
    """What lies beside this sweep may be of any suite, and is no reason to end."""
    try:
        return stored_plan(run)
    except RequestError:
        return None


def files_of(directory: Path, block: int) -> list[Path]:
    """What an element needs of the output directory, and what its block has there already. Warm-ups are block 0's."""
    of_the_block = (path for name in files_of_block(block) for path in directory.glob(f"*/*/{name}"))
    whole = (directory / name for name in ("sweep.json", POOL, ENOUGH))
    return [path for path in (*whole, *directory.glob(f"*/{PLAN}"), *of_the_block) if path.is_file()]


def estimate_s(request: "SweepRequest") -> float | None:
    """Seconds of one element, from records of this sweep and of those beside it; None where something is unknown.

    A cell that was not begun here is known by its plan in an earlier sweep: its name says all that matters.
    """
    beside = request.directory.path.absolute().parent
    durations = durations_below(beside)
    blocks = {0, request.sweep.element_count - 1}  # the first has the warm-ups
    each: list[float | None] = []
    for run in runs_of(request):
        places = (run.directory, *sorted(beside.glob(f"*/{run.directory.name}")))
        plan = next(filter(None, map(_readable, places)), None)
        times = [durations.of_block(plan, block) for block in blocks] if plan else [None]
        each.append(None if None in times else max(filter(None, times), default=0.0))
    return total(each)
