"""The steps of a run: its plan at once, or grown as its records decide."""

import time
from collections.abc import Callable, Generator, Iterator

from commands.run.earlier import earlier_records
from commands.sweep.view import span
from suite.plan import Detection, Plan
from suite.request.parts import MOST_BLOCKS, RepetitionOptions
from suite.results.store import RESULTS, Run
from suite.sweep.estimate import durations_below, total

Note = Callable[[str], None]


def steps(plan: Plan, asked: RepetitionOptions, store: Run, note: Note) -> Iterator[Plan]:
    """Yield the plan; with ``until``, block after block of it; with ``detect``, its pilot and then all of it."""
    if asked.half_width is not None:
        yield from _until(plan, asked, asked.half_width, store, note)
    elif asked.difference is not None:
        yield from _detect(plan, asked, asked.difference, store, note)
    else:
        yield plan


def _until(plan: Plan, asked: RepetitionOptions, half_width: float, store: Run, note: Note) -> Iterator[Plan]:
    # Here, since pandas takes as long to import as everything else together, and few runs need it.
    from analysis.compare.convergence import should_stop_run
    from analysis.load.records import load
    from analysis.statistics.sequential import LEAST_BLOCKS

    least, most = asked.min_blocks or LEAST_BLOCKS, asked.max_blocks or MOST_BLOCKS
    deadline = time.monotonic() + asked.budget_s if asked.budget_s else None
    stored = store.plan()
    # A run that was killed had decided to go on when it grew: the block it had begun is finished first.
    for blocks in range(min(stored.blocks, most) if stored else 1, most + 1):
        yield plan.model_copy(update={"blocks": blocks})
        if deadline is not None and time.monotonic() > deadline:
            note(f"stopped after {blocks} blocks: the budget of {asked.budget_s:.0f} s is spent")
            return
        decision = should_stop_run(load([store.directory]), half_width, min_blocks=least, max_blocks=most)
        if decision.stop:
            note(f"stopped after {blocks} blocks: {decision.reason}")
            return


def _detect(plan: Plan, asked: RepetitionOptions, difference: float, store: Run, note: Note) -> Iterator[Plan]:
    # As above.
    from analysis.compare.detection import PILOT_BLOCKS, pilot_of, plan_detection
    from analysis.load.records import load

    least, most = asked.min_blocks or 1, asked.max_blocks or MOST_BLOCKS
    deadline = time.monotonic() + asked.budget_s if asked.budget_s else None
    stored, place = store.plan(), store.directory
    found = stored.detection if stored else None
    if stored is None and (earlier := earlier_records(plan)):
        found, place = plan_detection(earlier, difference, least=least, most=most, source="earlier"), RESULTS
    # A run that continues keeps what was planned, unless it is asked for something else.
    kept = found is not None and found.difference == difference and least <= found.blocks <= most
    if found is None or not kept or (found.capped and found.blocks < most):
        pilot, place = min(PILOT_BLOCKS, most), store.directory
        note(f"{pilot} blocks first, as a pilot; then the number of all blocks is fixed")
        if not (yield from _grown(plan, pilot, store, deadline, note)):
            return
        found = plan_detection(pilot_of(load([place])), difference, least=least, most=most, source="pilot")
        if found is None:
            note(f"stopped after {pilot} blocks: no target has enough ratios to plan from; see bench compare {place}")
            return
    planned = plan.model_copy(update={"blocks": found.blocks, "detection": found})
    durations, finished = durations_below(place), set(store.finished())
    left = (durations.of(trial) for trial in planned.trials() if trial.trial_id not in finished)
    note(announcement(found, total(left)))
    yield from _grown(planned, found.blocks, store, deadline, note)


def _grown(plan: Plan, blocks: int, store: Run, deadline: float | None, note: Note) -> Generator[Plan, None, bool]:
    """Yield the plan with so many blocks, with a deadline block after block; return whether it came to its end."""
    stored = store.plan()
    begun = min(stored.blocks, blocks) if stored else 1
    for each in [blocks] if deadline is None else range(begun, blocks + 1):
        yield plan.model_copy(update={"blocks": each})
        if deadline is not None and each < blocks and time.monotonic() > deadline:
            note(f"stopped after {each} of {blocks} blocks: the budget is spent")
            return False
    return True


def announcement(found: Detection, left_s: float | None) -> str:
    """Return how many blocks a difference takes, how long they take, and why."""
    time_left = "" if left_s is None or left_s <= 0 else f", {span(left_s)} more,"
    before = f"pilot of {found.measured} blocks" if found.source == "pilot" else f"{found.measured} earlier blocks"
    why = f"{before}: the standard deviation of {found.ratio} is {_percent(found.deviation)} from block to block"
    if not found.capped:
        return (
            f"about {found.blocks} blocks in all{time_left} detect a difference of {_percent(found.difference)} with a "
            f"chance of 80 % ({why})"
        )
    takes = "more blocks than can be run" if found.needed is None else f"about {found.needed} blocks"
    sees = "nothing that is small" if found.detectable is None else f"{_percent(found.detectable)}"
    return (
        f"a difference of {_percent(found.difference)} takes {takes} ({why}); the most that are asked for, "
        f"{found.blocks} blocks{time_left} detect {sees}: give more with --max-blocks, or a larger --detect"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
