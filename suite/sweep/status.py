"""Find out from its directory how far a sweep is."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from suite.errors import RequestError
from suite.part import Part
from suite.plan import Trial
from suite.records.headers import headers
from suite.results.store import RESULTS
from suite.sweep.cell_run import CellRun, StopRule
from suite.sweep.directory import SweepDirectory
from suite.sweep.estimate import Durations, total
from suite.sweep.locks import LockHolder, holders
from suite.sweep.model import Sweep
from suite.trial_names import arm_name

State = Literal["done", "failed", "running", "missing"]


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
    state: Literal["running", "stopping", "complete", "failed", "incomplete"]
    """``stopping`` after the current trial; the last three where no process runs it."""
    cells: tuple[CellStatus, ...]
    running: tuple[LockHolder, ...]
    blocks_left: tuple[int, ...]
    """The blocks that still have trials to run."""
    left_s: float | None
    """Seconds that these take; None if unknown."""

    def count(self, state: State) -> int:
        """Return how many trials of all cells are in the state."""
        return sum(getattr(counts, state) for cell in self.cells for counts in cell.arms.values())


def status_of(directory: Path, stop_rule: StopRule | None = None) -> SweepStatus:
    """Return how far the sweep is; nothing is written. ``stop_rule`` is that of an open-ended sweep.

    Raises RequestError for a directory that does not hold a sweep.
    """
    sweep_directory = SweepDirectory(directory)
    accepted = sweep_directory.begun()
    now = holders(directory)
    running = {(holder.cell, holder.trial) for holder in now}
    cells, left, seconds = [], set(), []
    for cell_id, settings in accepted.cells.items():
        seen = _Cell(sweep_directory.cell(cell_id, accepted.sweep.budget.retries), accepted.sweep)
        seen.converged = stop_rule is not None and stop_rule(seen.run) is not None
        cells.append(CellStatus(cell_id=cell_id, settings=settings, arms=seen.arms(running), converged=seen.converged))
        if not seen.converged:
            left |= seen.blocks_left()
            seconds.append(seen.left_s())
    state = _state(sweep_directory, now, cells, left)
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
    found = sorted(results.glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise RequestError(f"no sweep in {results}/", remedy="begin one with: bench sweep run smoke")
    return found[-1].parent


class _Cell:
    """The records of a cell, compared with its plan."""

    def __init__(self, run: CellRun, sweep: Sweep) -> None:
        self.run = run
        self.converged = False
        self._plan = run.plan()
        self._sweep = sweep
        self._states: dict[str, State] = {}
        self._durations = Durations()
        for header in headers(run.directory):
            self._states[header.trial_id] = "done" if header.ok else "failed"
            self._durations.add(header)

    def arms(self, running: set[tuple[str | None, str | None]]) -> dict[str, TrialCounts]:
        counted: dict[str, Counter[str]] = {}
        for _, trial in self._trials():
            now = (self.run.directory.name, trial.trial_id) in running
            state = "running" if now else self._states.get(trial.trial_id, "missing")
            name = arm_name(trial.target, trial.replica, trial.ablation, trial.aggressor)
            counted.setdefault(name, Counter())[state] += 1
        return {name: TrialCounts(**counted[name]) for name in sorted(counted)}

    def blocks_left(self) -> set[int]:
        if self._plan is None:
            return set(range(self._sweep.block_count if not self._sweep.open_ended else 1))
        return {block for block, _ in self._unfinished()}

    def left_s(self) -> float | None:
        """Return the seconds that the unfinished trials take, as estimated from finished ones of this cell."""
        if self._plan is None:
            return None
        return total(self._durations.of(trial) for _, trial in self._unfinished())

    def _unfinished(self) -> Iterator[tuple[int, Trial]]:
        failed_often = {name for name, count in self.run.attempts().items() if count > self.run.retries}
        for block, trial in self._trials():
            if self._states.get(trial.trial_id) != "done" and trial.trial_id not in failed_often:
                yield block, trial

    def _trials(self) -> Iterator[tuple[int, Trial]]:
        """Yield the trials of all blocks; of an open-ended sweep those begun, and the least to come."""
        if self._plan is None:
            return
        blocks = self._sweep.block_count
        if self._sweep.open_ended:
            begun = sum(self._begun(block) for block in range(blocks))
            blocks = begun if self.converged else min(blocks, max(self._sweep.min_blocks or 1, begun + 1))
        for block in range(blocks):
            for trial in self._plan.trials_of(block):
                yield block, trial

    def _begun(self, block: int) -> bool:
        assert self._plan is not None  # noqa: S101 (asked by the caller)
        return any(trial.trial_id in self._states for trial in self._plan.trials_of(block))


def _state(
    directory: SweepDirectory, now: list[LockHolder], cells: list[CellStatus], left: set[int]
) -> Literal["running", "stopping", "complete", "failed", "incomplete"]:
    if now:
        return "stopping" if directory.stop_requested() else "running"
    if left:
        return "incomplete"
    return "failed" if any(counts.failed for cell in cells for counts in cell.arms.values()) else "complete"
