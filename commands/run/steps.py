"""The steps of a run: block after block of its plan, which may grow as its records decide."""

import math
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.run.outlook import Outlook
from commands.run.prepare import this_host
from suite.differ import Host, differences
from suite.errors import BenchError
from suite.job.job import IN_COLUMNS, Job, settings
from suite.plan import WARM_UP, Detection, Plan
from suite.records.headers import headers
from suite.request.repetitions import MOST_BLOCKS, RepetitionOptions
from suite.results.layout import results_directory
from suite.results.runs import find_runs
from suite.results.store import Run, stored_plan
from suite.units import count, format_duration

if TYPE_CHECKING:
    from analysis.load.records import Records

Step = tuple[Plan, int]
"""A plan, as long as it is by now, and the block of it that is due."""


def steps(plan: Plan, asked: RepetitionOptions, store: Run, outlook: Outlook) -> Iterator[Step]:
    """Yield the blocks of the plan; with ``until`` as many as it takes, with ``detect`` a pilot and then the others."""
    if asked.budget_s is not None:  # the trials of earlier calls count
        left_s = asked.budget_s - spent_s(store)
        deadline_s = time.monotonic() + left_s
        outlook.deadline_s = deadline_s
        outlook.clock.deadline_s = deadline_s
    if asked.until is not None:
        yield from _until(plan, asked, store, outlook)
    elif asked.difference is not None:
        yield from _detect(plan, asked, asked.difference, store, outlook)
    else:
        outlook.begun()
        yield from _blocks(plan, store, outlook)


def _until(plan: Plan, asked: RepetitionOptions, store: Run, outlook: Outlook) -> Iterator[Step]:
    # Here, since pandas takes as long to import as everything else together, and few runs need it.
    from analysis.audit.audit import audited
    from analysis.compare.convergence import should_stop_run
    from analysis.load.records import load
    from analysis.statistics.sequential import LEAST_BLOCKS

    most = asked.max_blocks or MOST_BLOCKS
    # A run that was killed had decided to go on when it grew: the block it had begun is finished first.
    begun = _blocks_of(store, most)
    outlook.blocks = max(begun, min(LEAST_BLOCKS, most))
    outlook.begun()
    begun_plan = _of_blocks(plan, begun)
    may_begin = yield from _warm_up(begun_plan, store, outlook)
    if not may_begin or outlook.all_failed("the warm-up"):
        return
    unfinished = _unfinished(begun_plan, store)
    for block in (*unfinished, *range(begun, most)):
        done = block + 1
        yield _of_blocks(plan, max(done, begun)), block
        if done < begun:
            continue
        counted = count(done, "block")
        if outlook.all_failed(counted):
            return
        records = audited(load([store.directory]))
        decision = should_stop_run(records, asked, max_blocks=most)
        if decision.stop:
            outlook.note(f"stopped after {counted}: {decision.reason}")
            return
        if outlook.spent(counted, f"; {decision.reason}"):
            return
        more = max(decision.at_least, decision.expected or 0)
        outlook.blocks = min(done + more, most)
        outlook.block_ended(block, at_least=decision.expected is None)


def _detect(plan: Plan, asked: RepetitionOptions, difference: float, store: Run, outlook: Outlook) -> Iterator[Step]:
    # As above.
    from analysis.audit.audit import audited
    from analysis.compare.convergence import PILOT_BLOCKS, pilot_of, plan_detection
    from analysis.load.records import load

    most = asked.max_blocks or MOST_BLOCKS
    detection = known_detection(plan, asked, difference, store)
    pilot = min(PILOT_BLOCKS, most)
    outlook.blocks = detection.blocks if detection else pilot
    outlook.begun()
    if detection is None:
        outlook.note(f"{pilot} blocks first, as a pilot; then the number of all blocks is fixed")
        finished = yield from _blocks(_of_blocks(plan, pilot), store, outlook)
        if not finished:
            return
        records = audited(load([store.directory]))
        detection = plan_detection(pilot_of(records), difference, most=most, source="pilot")
        if detection is None:
            why = f"no target has enough ratios to plan from; see bench compare {store.directory}"
            outlook.note(f"stopped after {pilot} blocks: {why}")
            return
    planned = plan.model_copy(update={"blocks": detection.blocks, "detection": detection})
    outlook.blocks = detection.blocks
    trials_left = outlook.trials - outlook.kept()
    left_s = outlook.clock.seconds_of(trials_left)
    outlook.note(announcement(detection, left_s))
    yield from _blocks(planned, store, outlook)


def known_detection(plan: Plan, asked: RepetitionOptions, difference: float, store: Run) -> Detection | None:
    """Return the blocks that the run has planned or, before it begins, that earlier runs give; None if neither do."""
    # As above.
    from analysis.compare.convergence import plan_detection

    most = asked.max_blocks or MOST_BLOCKS
    stored = store.plan()
    detection = stored.detection if stored else None
    if stored is None:
        earlier = _earlier_records(plan)
        if earlier:
            detection = plan_detection(earlier, difference, most=most, source="earlier")
    # A run that continues keeps what was planned, unless it is asked for something else.
    if detection and detection.serves(difference, most):
        return detection
    return None


def _earlier_records(plan: Plan) -> "Records | None":
    """Return the trials of the jobs and targets of a plan from earlier runs of this machine; None if there are none."""
    # As above.
    from analysis.load.records import load

    here = this_host()
    results = results_directory()
    stored = find_runs([results]) if results.is_dir() else []
    runs = [run for run in stored if _is_like(run, plan, here)]
    try:
        records = load(runs)
    except BenchError:  # no run, or none that can be read
        return None
    trials = records.trials
    of_models = trials["model"].isin(plan.models)
    on_targets = trials["target"].isin(plan.targets)
    return replace(records, trials=trials[of_models & on_targets])


def _is_like(run: Path, plan: Plan, here: Host) -> bool:
    try:
        before = stored_plan(run)
    except BenchError:
        return False
    if not set(plan.targets) <= set(before.targets):
        return False
    measured = [_key(job) for job in before.jobs]
    if any(_key(job) not in measured for job in plan.jobs):
        return False
    hosts = {header.host for header in headers(run)}
    return all(host.machine == here.machine and not differences([here, host]) for host in hosts)


def _key(job: Job) -> dict[str, Any]:
    columns = {name: getattr(job, name) for name in IN_COLUMNS}
    return {**columns, **settings(job)}


def _of_blocks(plan: Plan, blocks: int) -> Plan:
    return plan.model_copy(update={"blocks": blocks})


def _blocks(plan: Plan, store: Run, outlook: Outlook) -> Generator[Step, None, bool]:
    """Yield the plan block by block; with a deadline it grows with them. Return whether it came to its end."""
    begun = _blocks_of(store, plan.blocks)
    may_begin = yield from _warm_up(_of_blocks(plan, begun), store, outlook)
    if not may_begin:
        return False
    for block in _unfinished(plan, store):
        if block >= begun and outlook.spent(f"{block} of {count(plan.blocks, 'block')}"):
            return False
        if outlook.deadline_s is None:
            grown = plan
        else:
            grown = _of_blocks(plan, max(block + 1, begun))
        yield grown, block
        outlook.block_ended(block)
    return True


def _warm_up(plan: Plan, store: Run, outlook: Outlook) -> Generator[Step, None, bool]:
    """Yield the warm-up by itself, since the budget may end with it. Return whether the first block may begin."""
    if outlook.deadline_s is None or not plan.warmup_blocks or begun_blocks(store):
        return True
    yield plan, WARM_UP
    return not outlook.spent("the warm-up", f"; to go on: bench run --continue {store.directory} --budget TIME")


def begun_blocks(store: Run) -> int:
    """Return how many blocks the stored plan has; 0 if nothing but the warm-up was measured."""
    stored = store.plan()
    if stored and not all(header.warm_up for header in headers(store.directory)):
        return stored.blocks
    return 0


def _blocks_of(store: Run, most: int) -> int:
    """Return how many blocks the stored plan has, at most so many; 1 where nothing is stored."""
    stored = store.plan()
    if stored:
        return min(stored.blocks, most)
    return 1


def _unfinished(plan: Plan, store: Run) -> list[int]:
    """Return the blocks that have trials left, and the last one: with it, the plan is stored whole."""
    finished = set(store.finished())
    last = plan.blocks - 1
    unfinished = {last}
    for trial in plan.trials():
        if trial.trial_id not in finished:
            unfinished.add(0 if trial.warm_up else trial.block)
    return sorted(unfinished)


def spent_s(store: Run) -> float:
    return math.fsum(header.duration_s for header in headers(store.directory))


def announcement(sizing: Detection, left_s: float | None) -> str:
    """Return how many blocks a difference takes, how long they take, and why."""
    time_left = "" if left_s is None or left_s <= 0 else f", {format_duration(left_s)} more,"
    before = f"pilot of {sizing.measured} blocks" if sizing.source == "pilot" else f"{sizing.measured} earlier blocks"
    why = f"{before}: the standard deviation of {sizing.ratio} is {_percent(sizing.deviation)} from block to block"
    if not sizing.capped:
        return (
            f"about {sizing.blocks} blocks in all{time_left} detect a difference of {_percent(sizing.difference)} with "
            f"a chance of 80 % ({why})"
        )
    takes = "more blocks than can be run" if sizing.needed is None else f"about {sizing.needed} blocks"
    if sizing.detectable is None:
        sees = "nothing that is small"
    else:
        sees = f"{_percent(sizing.detectable)}"
    return (
        f"a difference of {_percent(sizing.difference)} takes {takes} ({why}); the most that are asked for, "
        f"{sizing.blocks} blocks{time_left} detect {sees}: give more with --max-blocks, or a larger --detect"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
