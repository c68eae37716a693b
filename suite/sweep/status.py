"""Find out from its directory how far a sweep is."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from suite.errors import RequestError
from suite.part import Part
from suite.plan import Plan, Trial
from suite.records.headers import headers
from suite.results.layout import results_directory
from suite.results.store import stop_requested
from suite.sweep.directory import CellRun, StopRule, SweepDirectory
from suite.sweep.estimate import Durations, Source
from suite.sweep.file import Sweep
from suite.sweep.locks import LockHolder, holders
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
    left_s: float | None
    """Seconds that these take; None while a cell was not begun."""
    left_source: Source | None = None
    """The least certain source of these seconds."""

    def count(self, state: TrialState) -> int:
        return sum(getattr(counts, state) for cell in self.cells for counts in cell.arms.values())


def status_of(directory: Path, stop_rule: StopRule | None = None) -> SweepStatus:
    """Return the progress of the sweep; ``stop_rule`` is an open-ended one's. Raises RequestError if there is none."""
    sweep_directory = SweepDirectory(directory)
    accepted = sweep_directory.begun()
    sweep = accepted.sweep
    running = holders(directory)
    names = {(holder.cell, holder.trial) for holder in running}
    durations = Durations()
    cells = []
    left = []
    for cell_id, settings in accepted.cells.items():
        run = sweep_directory.cell(cell_id, sweep.budget.retries)
        converged = stop_rule is not None and stop_rule(run) is not None
        arms, trials_left = _progress_of(run, sweep, names, durations, converged=converged)
        cell = CellStatus(cell_id=cell_id, settings=settings, arms=arms, converged=converged)
        cells.append(cell)
        if not converged:
            left.append(trials_left)
    blocks_left = set(itertools.chain(*filter(None, left)))
    if None in left:
        blocks_left |= set(range(1 if sweep.open_ended else sweep.block_count))
    guess = durations.guess(*(trial for trials in filter(None, left) for trial in itertools.chain(*trials.values())))
    return SweepStatus(
        name=sweep.name,
        directory=str(directory),
        state=_state(directory, cells, running=bool(running), incomplete=bool(blocks_left)),
        cells=tuple(cells),
        running=tuple(running),
        blocks_left=tuple(sorted(blocks_left)),
        left_s=None if None in left else guess.seconds,
        left_source=None if None in left else guess.source,
    )


def _state(directory: Path, cells: Iterable[CellStatus], *, running: bool, incomplete: bool) -> SweepState:
    if running:
        if stop_requested(directory):
            return "stopping"
        return "running"
    failed = any(counts.failed for cell in cells for counts in cell.arms.values())
    if incomplete:
        return "incomplete"
    return "failed" if failed else "complete"


def latest_sweep(results: Path | None = None) -> Path:
    """Return the sweep below ``results`` that was begun or changed last. Raises RequestError when there is none."""
    results = results or results_directory()
    plans = sorted(results.glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
    if not plans:
        raise RequestError(f"no sweep in {results}/", remedy="begin one with: bench sweep run smoke")
    return plans[-1].parent


def _progress_of(
    run: CellRun,
    sweep: Sweep,
    running: Iterable[tuple[str | None, str | None]],
    durations: Durations,
    *,
    converged: bool,
) -> tuple[dict[str, TrialCounts], dict[int, list[Trial]] | None]:
    """Return the counts of a cell's arms, and its trials left by block or None; add its records to ``durations``."""
    states: dict[str, TrialState] = {}
    for header in headers(run.directory):
        states[header.trial_id] = "done" if header.ok else "failed"
        durations.add(header)
    plan = run.plan()
    if plan is None:
        return {}, None
    blocks = _expected_blocks(plan, sweep, states, converged=converged)
    finished = {name for name, count in run.attempts().items() if count > run.retries}
    finished |= {name for name, state in states.items() if state == "done"}
    running_here = {trial for cell, trial in running if cell == run.directory.name}
    arms = _counts(itertools.chain(*blocks), states, running_here)
    return arms, _left(blocks, finished)


def _left(blocks: Iterable[Iterable[Trial]], finished: Container[str]) -> dict[int, list[Trial]]:
    """Return the trials that are left, by block."""
    left = {}
    for block, trials in enumerate(blocks):
        unfinished = [trial for trial in trials if trial.trial_id not in finished]
        if unfinished:
            left[block] = unfinished
    return left


def _counts(
    trials: Iterable[Trial], states: Mapping[str, TrialState], running: Container[str | None]
) -> dict[str, TrialCounts]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for trial in trials:
        state = "running" if trial.trial_id in running else states.get(trial.trial_id, "missing")
        counts[arm_name(*trial.arm, trial.job.design)][state] += 1
    return {name: TrialCounts(**counts[name]) for name in sorted(counts)}


def _expected_blocks(plan: Plan, sweep: Sweep, begun: Container[str], *, converged: bool) -> list[list[Trial]]:
    """Return the trials of each block; of an open-ended sweep those begun, and the least that there will be."""
    blocks = [list(plan.trials_of(block)) for block in range(sweep.block_count)]
    if not sweep.open_ended:
        return blocks
    count = 0
    for trials in blocks:
        count += any(trial.trial_id in begun for trial in trials)
    return blocks[: count if converged else count + 1]
