"""Find out from its directory how far a sweep is."""

from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any, Literal

from suite.errors import RequestError
from suite.part import Part
from suite.records.headers import headers
from suite.results.store import RESULTS
from suite.sweep.directory import CellRun, StopRule, SweepDirectory
from suite.sweep.estimate import Durations, total
from suite.sweep.locks import LockHolder, holders
from suite.sweep.model import Sweep
from suite.trial_names import arm_name

TrialState = Literal["done", "failed", "running", "missing"]
SweepState = Literal["running", "stopping", "complete", "failed", "incomplete"]


class TrialCounts(Part):
    """Trials of one arm of a cell; ``failed`` are those whose last attempt so far has failed."""

    done: int = 0
    failed: int = 0
    running: int = 0
    missing: int = 0


class CellStatus(Part):
    """One cell; ``arms`` by their names, as ``suite.trial_names.arm_name`` gives them."""

    cell_id: str
    settings: dict[str, Any]
    arms: dict[str, TrialCounts]
    converged: bool = False
    """Whether it needs no further block, with ``until`` or ``detect``."""


class SweepStatus(Part):
    """All of a sweep."""

    name: str
    directory: str
    state: SweepState
    """``stopping`` after the current trial; the last three if no process runs it."""
    cells: tuple[CellStatus, ...]
    running: tuple[LockHolder, ...]
    blocks_left: tuple[int, ...]
    """The blocks that still have trials to run."""
    left_s: float | None
    """Seconds that these take; None if unknown."""

    def count(self, state: TrialState) -> int:
        return sum(getattr(counts, state) for cell in self.cells for counts in cell.arms.values())


def status_of(directory: Path, stop_rule: StopRule | None = None) -> SweepStatus:
    """Return how far the sweep is; nothing is written. ``stop_rule`` is that of an open-ended sweep.

    Raises RequestError for a directory that does not hold a sweep.
    """
    sweep_directory = SweepDirectory(directory)
    accepted = sweep_directory.begun()
    now = holders(directory)
    running = {(holder.cell, holder.trial) for holder in now}
    retries = accepted.sweep.budget.retries
    cells, left, seconds = [], set(), []
    for cell_id, settings in accepted.cells.items():
        run = sweep_directory.cell(cell_id, retries)
        converged = stop_rule is not None and stop_rule(run) is not None
        arms, own_left, own_s = _progress_of(run, accepted.sweep, running, converged=converged)
        cells.append(CellStatus(cell_id=cell_id, settings=settings, arms=arms, converged=converged))
        if not converged:
            left |= own_left
            seconds.append(own_s)
    state: SweepState = "incomplete" if left else "complete"
    if now:
        state = "stopping" if sweep_directory.stop_requested() else "running"
    elif not left and any(counts.failed for cell in cells for counts in cell.arms.values()):
        state = "failed"
    return SweepStatus(
        name=accepted.sweep.name,
        directory=str(directory),
        state=state,
        cells=tuple(cells),
        running=tuple(now),
        blocks_left=tuple(sorted(left)),
        left_s=total(seconds),
    )


def latest_sweep(results: Path = RESULTS) -> Path:
    """Return the sweep below ``results`` that was begun or changed last. Raises RequestError when there is none."""
    plans = sorted(results.glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
    if not plans:
        raise RequestError(f"no sweep in {results}/", remedy="begin one with: bench sweep run smoke")
    return plans[-1].parent


def _progress_of(
    run: CellRun, sweep: Sweep, running: Container[tuple[str | None, str | None]], *, converged: bool
) -> tuple[dict[str, TrialCounts], set[int], float | None]:
    """Return the counts of a cell's arms, the blocks that it has left, and the seconds that these take, if known."""
    states: dict[str, TrialState] = {}
    durations = Durations()
    for header in headers(run.directory):
        states[header.trial_id] = "done" if header.ok else "failed"
        durations.add(header)
    plan = run.plan()
    if plan is None:
        return {}, set(range(1 if sweep.open_ended else sweep.block_count)), None
    blocks = [list(plan.trials_of(block)) for block in range(sweep.block_count)]
    if sweep.open_ended:  # those that were begun, and the least that there will be
        begun = sum(any(trial.trial_id in states for trial in trials) for trials in blocks)
        del blocks[begun if converged else max(sweep.min_blocks or 1, begun + 1) :]
    failed_often = {name for name, count in run.attempts().items() if count > run.retries}
    counted: dict[str, Counter[str]] = {}
    blocks_left: set[int] = set()
    seconds: list[float | None] = []
    for block, trials in enumerate(blocks):
        for trial in trials:
            now = (run.directory.name, trial.trial_id) in running
            state = "running" if now else states.get(trial.trial_id, "missing")
            name = arm_name(trial.target, trial.replica, trial.ablation, trial.aggressor, trial.job.design)
            counted.setdefault(name, Counter())[state] += 1
            if states.get(trial.trial_id) != "done" and trial.trial_id not in failed_often:
                blocks_left.add(block)
                seconds.append(durations.of(trial))
    arms = {name: TrialCounts(**counted[name]) for name in sorted(counted)}
    return arms, blocks_left, total(seconds)
