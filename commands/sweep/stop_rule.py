"""The stop rule of an open-ended sweep: a cell needs no further block when ``bench run`` would stop.

With ``detect``, each cell is planned from its own pilot alone: other cells, and earlier runs, may have been measured on
other machines than those that share its blocks.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from suite.sweep.cell_run import CellRun, StopRule
from suite.sweep.model import Sweep

if TYPE_CHECKING:
    from analysis.statistics.sequential import Decision


def decisions_of(sweep: Sweep) -> "Callable[[CellRun], Decision]":
    """Return what decides from a cell's records whether it needs no further block. The sweep is open-ended."""
    # Not at the top: pandas and scipy take most of a second, and few sweeps are open-ended.
    from analysis.compare.convergence import should_stop_run
    from analysis.compare.detection import should_stop_detecting
    from analysis.load.records import load
    from analysis.statistics.sequential import LEAST_BLOCKS

    # One more than there are: the rule must not stop for want of blocks, or a last one that was cut off would stay so.
    most = sweep.block_count + 1
    least = sweep.min_blocks or min(LEAST_BLOCKS, sweep.block_count)

    def until(run: CellRun) -> "Decision":
        counts = any(not record.warm_up for record in run.records())
        records = load([run.directory]) if counts else None
        return should_stop_run(records, sweep, min_blocks=least, max_blocks=most)

    def detect(run: CellRun) -> "Decision":
        plan, finished = run.plan(), set(run.finished())
        every = range(sweep.block_count if plan else 0)
        blocks = sum(all(trial.trial_id in finished for trial in plan.trials_of(block)) for block in every if plan)
        return should_stop_detecting(
            lambda: load([run.directory]), sweep.difference or 0.0, blocks, least=least, most=sweep.block_count
        )

    return until if sweep.until else detect


def stop_rule_of(sweep: Sweep) -> StopRule | None:
    """Return why a cell needs no further block, decided from its records; None unless the sweep is open-ended."""
    if not sweep.open_ended:
        return None
    decision = decisions_of(sweep)
    return lambda run: now.reason if (now := decision(run)).stop else None
