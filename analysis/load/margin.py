"""How runs were planned to be judged: their margin, and whether they went on until they had a verdict."""

from collections.abc import Iterable
from pathlib import Path

from analysis.statistics.ratios import MARGIN
from analysis.statistics.sequential import LEAST_BLOCKS
from suite.errors import RequestError
from suite.plan import Plan
from suite.results.store import stored_plan


def margin_of(runs: Iterable[Path], asked: float | None = None) -> float:
    """Return the margin, a share: the one that is asked for, else the one that all plans state, else the usual one."""
    if asked is not None:
        return asked
    planned = {plan.margin if (plan := _plan(run)) else None for run in runs}
    return planned.pop() or MARGIN if len(planned) == 1 else MARGIN


def looked_after(runs: Iterable[Path]) -> int | None:
    """Return the blocks after which the first of the runs ``--until decided`` began to look; None if there is none."""
    requests = [plan.request for run in runs if (plan := _plan(run)) and plan.request]
    least = [one.repetitions.min_blocks or LEAST_BLOCKS for one in requests if one.repetitions.decides]
    return max(min(least), LEAST_BLOCKS) if least else None


def _plan(run: Path) -> Plan | None:
    try:
        return stored_plan(run)
    except RequestError:  # records without a plan
        return None
