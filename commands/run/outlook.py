"""Follow a run: number its trials over the whole of it, and say after each block how far it is."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

from suite.errors import RequestError
from suite.plan import Plan, Trial
from suite.progress import Allowance, Display, Lines
from suite.records.headers import headers
from suite.records.record import TrialRecord
from suite.results.store import Run, StopRequested, stop_requested
from suite.units import count, format_duration

MOST_SHOWN = 3
"""The ratios that are shown after a block, those with the widest intervals; more would not fit a line."""


class Outlook:
    """Wraps an observer: knows how many blocks the run is expected to have, and says how far it is."""

    def __init__(self, observer: Lines | Display, plan: Plan, store: Run) -> None:
        self.phase = observer.phase
        self.clock = observer.clock
        self.note = observer.note
        self.blocks = plan.blocks
        """The blocks that are expected in all."""
        self._observer = observer
        self._store = store
        self._ratios = plan.job.sharing is None
        trials = list(plan.trials_of(0))
        self._of_block = sum(not trial.warm_up for trial in trials)
        self._warm_ups = len(trials) - self._of_block
        self._allowance = Allowance()
        self.deadline_s: float | None = None
        """When the budget is spent, on the monotonic clock; None without one."""
        self.made: list[TrialRecord] = []
        """The records of this process."""

    def trial_started(self, trial: Trial, number: int, of: int) -> None:
        del number, of  # of one block
        if stop_requested(self._store.directory):
            raise StopRequested
        number = trial.block * self._of_block + trial.position + 1
        if not trial.warm_up:
            number += self._warm_ups
        block_end = self._warm_ups + (trial.block + 1) * self._of_block
        left_of_block = block_end - number + 1
        blocks = self.blocks_in_budget(trial.block, left_of_block)
        expected = self._warm_ups + blocks * self._of_block
        self._observer.trial_started(trial, number, expected)

    def blocks_in_budget(self, block: int, trials_left: int = 0) -> int:
        """Return the blocks that should begin within the budget, of those expected; ``block`` has trials left."""
        block_s = self.clock.seconds_of(self._of_block)
        if self.deadline_s is None or not block_s:
            return self.blocks
        of_this_block_s = block_s * trials_left / self._of_block
        left_s = self.deadline_s - time.monotonic() - of_this_block_s
        more = max(0, math.ceil(left_s / block_s))
        return min(self.blocks, block + 1 + more)

    def spent(self, done: str, more: str = "") -> bool:
        """Return whether the budget is spent; if so, say that the run stops."""
        spent = self.deadline_s is not None and time.monotonic() > self.deadline_s
        if spent:
            self.note(f"stopped after {done}: the budget is spent{more}")
        return spent

    def all_failed(self, done: str) -> bool:
        """Return whether not one trial of this process succeeded; if so, say that the run stops."""
        outcomes = [record.outcome for record in self.made]
        failed = bool(outcomes) and all(outcome.status == "failed" for outcome in outcomes)
        if failed:
            why = "every trial has failed"
            if all(outcome.kind == "timeout" for outcome in outcomes):
                load = f"the load of this machine is {os.getloadavg()[0]:.1f}"
                why += f" to end in time; {load}: stop what else runs, or give more with --budget"
            self.note(f"stopped after {done}: {why}")
        return failed

    def trial_finished(self, record: TrialRecord) -> None:
        self.made.append(record)
        self._observer.trial_finished(record)

    @property
    def trials(self) -> int:
        """Return the trials that are expected in all, those of the warm-up too."""
        return self._warm_ups + self.blocks * self._of_block

    def kept(self) -> int:
        return len(set(self._store.finished()))

    def note_failed(self) -> None:
        """Say what becomes of the trials that failed before."""
        failed = sum(not header.ok for header in headers(self._store.directory))
        if failed:
            fate = "repeated" if self._store.repeats_failed else "kept (--repeat-failed repeats them)"
            self.note(f"{count(failed, 'failed trial')} {fate}: they count as failed")

    def begun(self) -> None:
        kept = self.kept()
        if kept:
            self.note(f"{kept} of {self.trials} trials are there already and are kept")

    def block_ended(self, block: int, *, at_least: bool = False) -> None:
        """Say the intervals so far, and the blocks and the time to go of the whole."""
        done = block + 1
        blocks = self.blocks_in_budget(block)
        if done >= blocks or not self._allowance.left():
            return
        with self._allowance.spending():
            ratios = intervals_so_far(self._store.directory) if self._ratios else {}
        texts = [f"{name} {interval_text(*ratio)}" for name, ratio in ratios.items()]
        narrower = len(texts) - MOST_SHOWN
        if narrower > 0:
            texts[MOST_SHOWN:] = [f"{narrower} narrower"]
        if self._ratios and not texts:
            texts = not_yet_measured(done)
        if not texts:  # blocks and time alone stand in the line of each trial, too
            return
        trials_left = (blocks - done) * self._of_block
        seconds = self.clock.seconds_of(trials_left)
        if seconds:
            texts.append(f"about {format_duration(seconds)} to go")
        total = count(blocks, "block")
        if blocks < self.blocks:
            total = f"{total} in the budget"
        elif at_least:
            total = f"at least {total}"
        self.note(f"after {done} of {total}: {'; '.join(texts)}")


def not_yet_measured(blocks: int) -> list[str]:
    """Return that so many blocks are too few for a number; nothing where they are enough."""
    # As above.
    from analysis.report.formatting import not_yet

    reason = not_yet(blocks)
    return [reason] if reason else []


def interval_text(ratio: float, low: float, high: float) -> str:
    """Return ``0.982 (0.975 to 0.989)``, or that it is too noisy to say."""
    # As below.
    from analysis.report.formatting import TOO_NOISY, sensible

    if not sensible((low, high)):
        return TOO_NOISY
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def intervals_so_far(run: Path) -> Mapping[str, tuple[float, float, float]]:
    """Return each ratio of a run so far with the ends of its interval, the widest first; none if no record counts."""
    # Here, since pandas takes as long to import as everything else together.
    from analysis.audit.audit import audited
    from analysis.compare.convergence import intervals
    from analysis.load.records import load

    try:
        return intervals(audited(load([run])))
    except RequestError:
        return {}
