"""The sweep backend ``local``: this machine, one trial at a time."""

from collections.abc import Sequence
from functools import cache

from commands.run.prepare import host_environment
from commands.sweep.backends.base import Backend, SweepEnd, SweepRequest
from commands.sweep.backends.rounds import stop_rule_of
from provisioning.metrics import accounting
from suite.sweep.directory import CellRun, StopRule
from suite.sweep.runner import ReadyCell, Runner


class Local(Backend):
    """Runs every block in this process."""

    runs_here = True

    def run(self, request: SweepRequest) -> SweepEnd:
        return run_here(request, range(request.sweep.block_count), stop_rule_of(request.sweep))

    def dry_run(self, request: SweepRequest) -> None:
        """See ``Backend``: the cells are checked already."""


def run_block(request: SweepRequest, block: int, *, take_over: bool = False) -> SweepEnd:
    """Run one block on this machine. In an open-ended sweep, whoever hands out the blocks chose its cells."""
    converged = request.directory.converged(request.sweep)

    def stop_rule(run: CellRun) -> str | None:
        return "it needs no further block" if run.directory.name in converged else None

    return run_here(request, [block], stop_rule, take_over=take_over)


def run_here(
    request: SweepRequest, blocks: Sequence[int], stop_rule: StopRule | None, *, take_over: bool = False
) -> SweepEnd:
    """Run the blocks in this process; without ``stop_rule`` each to its end.

    ``take_over``: locks that other machines hold are those of processes that have ended.
    """
    note = cache(request.observer.note)  # each holds for all cells
    cells = []
    for cell in request.planned:
        if cell.ready:
            cell.ready.prepare(note)
            cells.append(ReadyCell(cell.cell, cell.ready.plan, cell.ready.scenario, cell.ready.open_target))
    runner = Runner(
        request.sweep,
        request.directory,
        cells,
        host_environment,
        accounting.accounts(),
        request.observer,
        stop_rule,
        take_over,
    )
    reason = runner.run(blocks)
    return SweepEnd(runner.made, reason)
