"""The margin of a comparison: as it is asked for now, or as the runs were planned with it."""

from collections.abc import Iterable
from pathlib import Path

from analysis.statistics.ratios import MARGIN
from suite.errors import RequestError
from suite.results.store import stored_plan


def margin_of(runs: Iterable[Path], asked: float | None = None) -> float:
    """Return the margin, a share: the one that is asked for, else the one that all plans state, else the usual one."""
    if asked is not None:
        return asked
    planned = {_planned(run) for run in runs}
    return planned.pop() or MARGIN if len(planned) == 1 else MARGIN


def _planned(run: Path) -> float | None:
    try:
        return stored_plan(run).margin
    except RequestError:  # records without a plan
        return None
