"""Run a sweep block by block, every cell in each, so that a sweep cut off at any point is balanced."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from suite.interfaces import Observer, OpenAccount, OpenTarget, Scenario
from suite.loop import Loop
from suite.plan import Plan, Trial
from suite.records.environment import Environment
from suite.records.headers import headers
from suite.records.record import TrialRecord
from suite.results.store import StopRequested, stop_requested
from suite.sweep.cells import Cell
from suite.sweep.directory import CellRun, StopRule, SweepDirectory
from suite.sweep.locks import Lock, block_lock, locked, remove_stale
from suite.sweep.model import Sweep
from suite.units import count


@dataclass(frozen=True, eq=False)
class ReadyCell:
    """A cell with everything that running it takes. Its plan has as many blocks as the sweep has at most."""

    cell: Cell
    plan: Plan
    scenario: Scenario
    open_target: OpenTarget


@dataclass
class Runner:
    """Runs blocks of a sweep in its directory."""

    sweep: Sweep
    directory: SweepDirectory
    cells: Sequence[ReadyCell]
    environment: Callable[[], Environment]
    """Describes this machine, for the records."""
    open_account: OpenAccount
    observer: Observer
    stop_rule: StopRule | None = None
    take_over: bool = False
    made: list[TrialRecord] = field(default_factory=list)
    """The records of this process."""
    _converged: set[str] = field(default_factory=set)

    def run(self, blocks: Iterable[int]) -> str | None:
        """Run what is missing of the blocks; return why it ended before they were done, None if they are.

        Every trial is saved before the next begins. Raises StoreError when a record cannot be written, RequestError
        when another process runs one of the blocks or when a cell's run was begun under another plan.
        """
        blocks = list(blocks)
        runs = {ready: self.directory.cell(ready.cell.cell_id, self.sweep.budget.retries) for ready in self.cells}
        for ready, run in runs.items():
            run.begin(ready.plan)
        missing = _missing(runs, blocks)
        total = sum(1 for ready in self.cells for block in blocks for _ in ready.plan.trials_of(block))
        if missing < total:
            self.observer.note(f"{total - missing} of {count(total, 'trial')} are there already and are kept")
        observer = _SweepObserver(self.observer, self.directory, missing, self.made)
        try:
            return self._run_blocks(runs, blocks, observer)
        except StopRequested:
            return "it was asked to stop"

    def _run_blocks(
        self, runs: "dict[ReadyCell, CellRun]", blocks: Sequence[int], observer: "_SweepObserver"
    ) -> str | None:
        # The budget counts what the trials of the records took, and from now on what this process takes.
        budget_s = self.sweep.budget.total_s
        begin_s = time.monotonic()
        if budget_s is not None:
            begin_s -= sum(header.duration_s for run in runs.values() for header in headers(run.directory))
        for block in blocks:
            left = {ready: run for ready, run in runs.items() if not self._has_converged(ready, run)}
            if not left:
                return None
            if not _missing(left, [block]):
                remove_stale(self.directory.path, block_lock(block))
                continue
            if budget_s is not None and time.monotonic() - begin_s >= budget_s:
                return f"the budget of {self.sweep.budget.total} is spent"
            with locked(self.directory.path, block_lock(block), take_over=self.take_over) as lock:
                observer.lock = lock
                for ready, run in left.items():
                    self._run_cell(ready, run, block, observer)
        return None

    def _has_converged(self, ready: ReadyCell, run: CellRun) -> bool:
        name, why = ready.cell.cell_id, self.stop_rule(run) if self.stop_rule else None
        if why and name not in self._converged:
            self._converged.add(name)
            self.observer.note(f"{name} is done: {why}")
        return why is not None

    def _run_cell(self, ready: ReadyCell, run: CellRun, block: int, observer: "_SweepObserver") -> None:
        """Run one block of one cell; try again right after what failed, so that the block stays close in time."""
        observer.cell = ready.cell.cell_id
        loop = Loop(ready.scenario, ready.open_target, run, observer, self.environment, self.open_account)
        while records := loop.run(ready.plan, block):
            if not any(record.outcome.status == "failed" for record in records):
                return


def _missing(runs: "dict[ReadyCell, CellRun]", blocks: Sequence[int]) -> int:
    return sum(len(trials) for ready, run in runs.items() for trials in run.left(ready.plan, blocks).values())


class _SweepObserver:
    """Wraps an observer: numbers trials across the sweep, writes them to the lock, and honours stop requests.

    Appends every record to ``made``, those of a block that is stopped, too.
    """

    def __init__(self, observer: Observer, directory: SweepDirectory, total: int, made: list[TrialRecord]) -> None:
        self.phase, self.note = observer.phase, observer.note
        self._observer, self._directory, self._made = observer, directory, made
        self._number, self._total = 0, total
        self.lock: Lock | None = None
        self.cell = ""

    def trial_started(self, trial: Trial, number: int, of: int) -> None:
        del number, of  # of one block of one cell
        if stop_requested(self._directory.path):
            raise StopRequested
        self._number += 1
        self._total = max(self._total, self._number)  # a trial that is tried again is one more
        if self.lock:
            self.lock.update(
                cell=self.cell, trial=trial.trial_id, target=trial.target, number=self._number, of=self._total
            )
        self._observer.trial_started(trial, self._number, self._total)

    def trial_finished(self, record: TrialRecord) -> None:
        self._made.append(record)
        if self.lock:  # whoever looks now sees that it is done
            self.lock.update(cell=None, trial=None, target=None)
        self._observer.trial_finished(record)
