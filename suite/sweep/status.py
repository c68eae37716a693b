"""How far a sweep is, from what lies in its directory."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from suite.errors import RequestError
from suite.plan import Trial, arm_name
from suite.results.store import RESULTS
from suite.sweep.cell_run import CellRun, Enough
from suite.sweep.directory import SweepDirectory
from suite.sweep.estimate import Durations, raw_records, total
from suite.sweep.locks import Holder, holders
from suite.sweep.model import Sweep

State = Literal["done", "failed", "running", "missing"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Counts(_Part):
    """Trials of one target of a cell. ``failed``: in the last attempt so far."""

    done: int = 0
    failed: int = 0
    running: int = 0
    missing: int = 0


class CellStatus(_Part):
    """``arms``: by target, with ``-again`` for the second bare metal, ``+NAME`` for a switched property, and
    ``-beside-NAME`` for an aggressor that runs beside the victim."""

    cell_id: str
    settings: dict[str, Any]
    arms: dict[str, Counts]
    enough: bool = False
    """With ``until``: its intervals are narrow enough."""


class SweepStatus(_Part):
    """``state``: ``running``, ``stopping`` after a trial, or what it came to when nobody runs it."""

    name: str
    directory: str
    state: Literal["running", "stopping", "complete", "failed", "incomplete"]
    cells: tuple[CellStatus, ...]
    running: tuple[Holder, ...]
    elements_left: tuple[int, ...]
    """The blocks that still have trials to run."""
    left_s: float | None
    """How long these take; None where it is not known."""

    def count(self, state: State) -> int:
        return sum(getattr(counts, state) for cell in self.cells for counts in cell.arms.values())


def status_of(directory: Path, enough: Enough | None = None) -> SweepStatus:
    """Reads only. ``enough``: of a sweep with ``until``, why a cell needs no further block.

    Raises RequestError for a directory that holds no sweep.
    """
    sweep_directory = SweepDirectory(directory)
    accepted = sweep_directory.accepted()
    if accepted is None:
        raise RequestError(f"no sweep in {directory}", remedy="name the directory of one: the one given to --out")
    now = holders(directory)
    running = {(holder.cell, holder.trial) for holder in now}
    cells, left, seconds = [], set(), []
    for cell_id, settings in accepted.cells.items():
        seen = _Cell(sweep_directory.cell(cell_id, accepted.sweep.budget.retries), accepted.sweep)
        seen.enough = enough is not None and enough(seen.run) is not None
        cells.append(CellStatus(cell_id=cell_id, settings=settings, arms=seen.arms(running), enough=seen.enough))
        if not seen.enough:
            left |= seen.blocks_left()
            seconds.append(seen.left_s())
    state = _state(sweep_directory, now, cells, left)
    return SweepStatus(
        name=accepted.sweep.name,
        directory=str(directory),
        state=state,
        cells=tuple(cells),
        running=tuple(now),
        elements_left=tuple(sorted(left)),
        left_s=total(seconds),
    )


def latest_sweep(results: Path = RESULTS) -> Path:
    """The sweep below ``results`` that was begun or changed last. Raises RequestError when there is none."""
    found = sorted(results.glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise RequestError(f"no sweep in {results}/", remedy="begin one with: bench sweep run smoke")
    return found[-1].parent


class _Cell:
    """The records of a cell beside its plan."""

    def __init__(self, run: CellRun, sweep: Sweep) -> None:
        self.run = run
        self.enough = False
        self._plan = run.plan()
        self._sweep = sweep
        self._states: dict[str, State] = {}
        self._durations = Durations()
        for record in raw_records(run.directory):
            ok = (record.get("outcome") or {}).get("status") == "ok"
            self._states[record["trial_id"]] = "done" if ok else "failed"
            self._durations.add(record)

    def arms(self, running: set[tuple[str | None, str | None]]) -> dict[str, Counts]:
        counted: dict[str, Counter[str]] = {}
        for _, trial in self._trials():
            now = (self.run.directory.name, trial.trial_id) in running
            state = "running" if now else self._states.get(trial.trial_id, "missing")
            name = arm_name(trial.target, trial.replica, trial.ablation, trial.aggressor)
            counted.setdefault(name, Counter())[state] += 1
        return {name: Counts(**counted[name]) for name in sorted(counted)}

    def blocks_left(self) -> set[int]:
        if self._plan is None:
            return set(range(self._sweep.element_count if not self._sweep.until else 1))
        return {block for block, _ in self._unfinished()}

    def left_s(self) -> float | None:
        """From the trials of this cell that are done."""
        if self._plan is None:
            return None
        return total(self._durations.of(trial) for _, trial in self._unfinished())

    def _unfinished(self) -> Iterator[tuple[int, Trial]]:
        failed_often = {name for name, count in self.run.attempts().items() if count > self.run.retries}
        for block, trial in self._trials():
            if self._states.get(trial.trial_id) != "done" and trial.trial_id not in failed_often:
                yield block, trial

    def _trials(self) -> Iterator[tuple[int, Trial]]:
        """With ``until`` of the blocks that were begun, and of the least that there will be if these are not enough."""
        if self._plan is None:
            return
        blocks = self._sweep.element_count
        if self._sweep.until:
            begun = sum(self._begun(block) for block in range(blocks))
            blocks = begun if self.enough else min(blocks, max(self._sweep.min_blocks or 1, begun + 1))
        for block in range(blocks):
            for trial in self._plan.trials_of(block):
                yield block, trial

    def _begun(self, block: int) -> bool:
        assert self._plan is not None  # noqa: S101 (asked by the caller)
        return any(trial.trial_id in self._states for trial in self._plan.trials_of(block))


def _state(
    directory: SweepDirectory, now: list[Holder], cells: list[CellStatus], left: set[int]
) -> Literal["running", "stopping", "complete", "failed", "incomplete"]:
    if now:
        return "stopping" if directory.stop_requested() else "running"
    if left:
        return "incomplete"
    return "failed" if any(counts.failed for cell in cells for counts in cell.arms.values()) else "complete"
