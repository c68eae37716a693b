"""The plans of runs, and how they are to be judged: their margin, and whether they went on until they had a verdict."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from analysis.statistics.sequential import LEAST_BLOCKS
from suite.errors import RequestError
from suite.plan import Plan
from suite.request.repetitions import MARGIN
from suite.results.runs import accepted_sweep, is_run, sweep_around
from suite.results.store import stored_plan


def plan_of(run: Path) -> Plan | None:
    """Return the plan of a run; None where it has none that can be read."""
    try:
        return stored_plan(run)
    except RequestError:
        return None


def margin_of(runs: Iterable[Path], requested: float | None = None) -> float:
    """Return the margin, a share: the requested one, else the one that all plans state, else the usual one."""
    if requested is not None:
        return requested
    planned = {plan.margin if (plan := plan_of(run)) else None for run in runs}
    return planned.pop() or MARGIN if len(planned) == 1 else MARGIN


def looked_after(runs: Iterable[Path]) -> int | None:
    """Return the blocks after which a run ``--until decided`` began to look; None if there is none among the runs."""
    plans = filter(None, map(plan_of, runs))
    return LEAST_BLOCKS if any(plan.request and plan.request.repetitions.decides for plan in plans) else None


def extendable(directories: Sequence[Path]) -> Path | None:
    """Return the only run, which can be continued; None for several, a sweep, and a cell, which its sweep extends."""
    only = directories[0] if len(directories) == 1 else None
    return only if only and is_run(only) and not sweep_around(only) else None


def open_ended(run: Path) -> bool:
    """Return whether a stop rule decides how many blocks a run has; of a cell, that of its sweep."""
    with suppress(RequestError):
        if (accepted := accepted_sweep(run.parent)) is not None:
            return accepted.sweep.open_ended
    plan = plan_of(run)
    return bool(plan and plan.request and plan.request.repetitions.open_ended)
