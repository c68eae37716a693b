"""The stop rule of a sweep with ``until``: a cell needs no further block when ``bench run --until`` would stop."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from suite.sweep.cell_run import CellRun, StopRule
from suite.sweep.model import Sweep
from suite.units import parse_share

if TYPE_CHECKING:
    from analysis.statistics.sequential import Decision


def decisions_of(sweep: Sweep) -> "Callable[[CellRun], Decision]":
    """Return what decides from a cell's records whether its intervals are narrow enough. The sweep has ``until``."""
    # Not at the top: pandas and scipy take most of a second, and few sweeps have ``until``.
    from analysis.compare.convergence import should_stop_run
    from analysis.load.records import load
    from analysis.statistics.sequential import LEAST_BLOCKS, should_stop

    half_width = parse_share(sweep.until or "")
    # One more than there are: the rule must not stop for want of blocks, or a last one that was cut off would stay so.
    most = sweep.block_count + 1
    least = sweep.min_blocks or min(LEAST_BLOCKS, sweep.block_count)

    def decision(run: CellRun) -> "Decision":
        if all(record.warm_up for record in run.records()):
            return should_stop({}, half_width, min_blocks=least, max_blocks=most)
        return should_stop_run(load([run.directory]), half_width, min_blocks=least, max_blocks=most)

    return decision


def stop_rule_of(sweep: Sweep) -> StopRule | None:
    """Return why a cell needs no further block, decided from its records; None for a sweep without ``until``."""
    if sweep.until is None:
        return None
    decision = decisions_of(sweep)
    return lambda run: now.reason if (now := decision(run)).stop else None
