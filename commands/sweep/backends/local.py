"""The sweep backend ``local``: this machine, one trial at a time.

A sweep is run block by block, every cell in each, so that one that is cut off at any point is balanced.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from commands.run.prepare import Ready, host_environment
from commands.sweep.backends.base import Backend, SweepEnd, SweepRequest, backend_of
from commands.sweep.backends.rounds import stop_rule_of
from provisioning.metrics import accounting
from suite.interfaces import Observer, OpenAccount
from suite.loop import Loop
from suite.plan import Trial
from suite.records.headers import headers
from suite.records.record import TrialRecord
from suite.results.store import StopRequested, stop_requested
from suite.sweep.directory import CellRun, StopRule, SweepDirectory
from suite.sweep.locks import Lock, block_lock, locked, remove_stale
from suite.units import count

Runs = Sequence[tuple[Ready, CellRun]]
"""The cells that can be run here, each with its run. Their plans have as many blocks as the sweep has at most."""


class Local(Backend):
    runs_here = True

    def run(self, request: SweepRequest) -> SweepEnd:
        return run_here(request, range(request.sweep.block_count), stop_rule_of(request.sweep))

    def dry_run(self, request: SweepRequest) -> None:
        """See ``Backend``: the cells are checked already."""


def run_block(request: SweepRequest, block: int) -> SweepEnd:
    """Run one block on this machine. In an open-ended sweep, whoever hands out the blocks chose its cells."""
    backend_of(request.sweep).check_node()
    converged = request.directory.converged(request.sweep)

    def stop_rule(run: CellRun) -> str | None:
        if run.directory.name in converged:
            return "it needs no further block"
        return None

    return run_here(request, [block], stop_rule)


def run_here(request: SweepRequest, blocks: Iterable[int], stop_rule: StopRule | None) -> SweepEnd:
    """Run the blocks in this process; without ``stop_rule`` each to its end."""
    note = cache(request.observer.note)  # each holds for all cells
    prepared = []
    for cell in request.planned:
        if cell.ready:
            cell = replace(cell, ready=cell.ready.prepare(note))
        prepared.append(cell)
    runner = Runner(replace(request, planned=prepared), stop_rule)
    reason = runner.run(blocks)
    return SweepEnd(runner.made, reason)


@dataclass
class Runner:
    request: SweepRequest
    stop_rule: StopRule | None = None
    made: list[TrialRecord] = field(default_factory=list)
    _open_account: OpenAccount = field(default_factory=accounting.accounts)
    _converged: set[str] = field(default_factory=set)

    def run(self, blocks: Iterable[int]) -> str | None:
        """Run what is missing of the blocks; return why it ended before they were done, None if they are.

        Every trial is saved before the next begins. Raises StoreError when a record cannot be written, RequestError
        when another process runs one of the blocks or when a cell's run was begun under another plan.
        """
        blocks = list(blocks)
        directory = self.request.directory
        retries = self.request.sweep.budget.retries
        runs = []
        for planned in self.request.planned:
            if planned.ready:
                run = directory.cell(planned.cell.cell_id, retries)
                runs.append((planned.ready, run))
        for ready, run in runs:
            run.begin(ready.plan)
        missing = _missing(runs, blocks)
        total = _total(runs, blocks)
        if missing < total:
            self.request.observer.note(f"{total - missing} of {count(total, 'trial')} are there already and are kept")
        observer = _SweepObserver(self.request.observer, directory, missing, self.made)
        try:
            return self._run_blocks(runs, blocks, observer)
        except StopRequested:
            return "it was asked to stop"

    def _run_blocks(self, runs: Runs, blocks: Sequence[int], observer: "_SweepObserver") -> str | None:
        # The budget counts what the trials of the records took, and from now on what this process takes.
        budget = self.request.sweep.budget
        directory = self.request.directory.path
        begin_s = time.monotonic()
        if budget.total_s is not None:
            for _, run in runs:
                begin_s -= sum(header.duration_s for header in headers(run.directory))
        for block in blocks:
            left = [(ready, run) for ready, run in runs if not self._has_converged(run)]
            if not left:
                return None
            if not _missing(left, [block]):
                remove_stale(directory, block_lock(block))
                continue
            spent_s = time.monotonic() - begin_s
            if budget.total_s is not None and spent_s >= budget.total_s:
                return f"the budget of {budget.total} is spent"
            take_over = self.request.take_over
            with locked(directory, block_lock(block), take_over=take_over) as lock:
                observer.lock = lock
                for ready, run in left:
                    self._run_cell(ready, run, block, observer)
        return None

    def _has_converged(self, run: CellRun) -> bool:
        name = run.directory.name
        why = self.stop_rule(run) if self.stop_rule else None
        if why and name not in self._converged:
            self._converged.add(name)
            self.request.observer.note(f"{name} is done: {why}")
        return why is not None

    def _run_cell(self, ready: Ready, run: CellRun, block: int, observer: "_SweepObserver") -> None:
        """Run one block of one cell; try again right after what failed, so that the block stays close in time."""
        observer.cell = run.directory.name
        loop = Loop(
            ready.scenario,
            ready.open_target,
            run,
            observer,
            host_environment,
            self._open_account,
            fixes_steps=backend_of(self.request.sweep).runs_here,
        )
        while records := loop.run(ready.plan, block):
            if not any(record.outcome.status == "failed" for record in records):
                return


def _missing(runs: Runs, blocks: Sequence[int]) -> int:
    missing = 0
    for ready, run in runs:
        left = run.left(ready.plan, blocks)
        missing += sum(map(len, left.values()))
    return missing


def _total(runs: Runs, blocks: Sequence[int]) -> int:
    total = 0
    for ready, _ in runs:
        for block in blocks:
            total += len(list(ready.plan.trials_of(block)))
    return total


class _SweepObserver:
    """Wraps an observer: numbers trials across the sweep, writes them to the lock, and honours stop requests.

    Appends every record to ``made``, those of a block that is stopped, too.
    """

    def __init__(
        self,
        observer: Observer,
        directory: SweepDirectory,
        total: int,
        made: list[TrialRecord],
    ) -> None:
        self.phase = observer.phase
        self.note = observer.note
        self._observer = observer
        self._directory = directory
        self._made = made
        self._number = 0
        self._total = total
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
                cell=self.cell,
                trial=trial.trial_id,
                target=trial.target,
                number=self._number,
                of=self._total,
            )
        self._observer.trial_started(trial, self._number, self._total)

    def trial_finished(self, record: TrialRecord) -> None:
        self._made.append(record)
        if self.lock:  # whoever looks now sees that it is done
            self.lock.update(cell=None, trial=None, target=None)
        self._observer.trial_finished(record)
