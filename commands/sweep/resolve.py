"""From a plan file's cells to runs: each goes the way of ``bench run``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from commands.run.prepare import Ready, host_environment, ready
from provisioning import doctor, ledger
from provisioning.doctor import Check
from provisioning.metrics import accounting
from suite.errors import RequestError
from suite.interfaces import Observer
from suite.request.request import RunRequest
from suite.sweep.cell_run import CellRun, Enough
from suite.sweep.cells import Cell, cells_of, request_of
from suite.sweep.directory import SweepDirectory
from suite.sweep.model import Sweep, key_of
from suite.sweep.runner import Host, ReadyCell, Runner
from suite.units import parse_share

if TYPE_CHECKING:
    from analysis.statistics.sequential import Decision

Note = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """A cell, checked on this machine: ready to run, or refused with a reason."""

    cell: Cell
    request: RunRequest | None = None
    """None where the cell asks for what no machine can do."""
    ready: Ready | None = None
    refusal: RequestError | None = None

    @property
    def command(self) -> list[str]:
        """Return the command that runs such a cell by itself; empty where there is none."""
        return self.request.command() if self.request else []


def resolve(sweep: Sweep, note: Note) -> list[Planned]:
    """Return every cell of the sweep, checked on this machine. Nothing is started.

    Raises RequestError for a plan without cells.
    """
    cells = cells_of(sweep)
    note(f"{len(cells)} cells; checking this machine")
    checks = doctor.examine()
    say = _once(note)
    return [_planned(sweep, cell, checks, say) for cell in cells]


def _planned(sweep: Sweep, cell: Cell, checks: Sequence[Check], note: Note) -> Planned:
    request = None
    try:
        request = request_of(sweep, cell)
        made = ready(request, note, checks)
    except RequestError as error:
        return Planned(cell, request, refusal=error.spelled(key_of))
    plan = made.plan.model_copy(update={"blocks": sweep.element_count})
    return Planned(cell, request, replace(made, plan=plan))


def refuse_refused(planned: Sequence[Planned]) -> None:
    """Raise RequestError naming every cell that cannot be run."""
    refused = [(each.cell.cell_id, each.refusal) for each in planned if each.refusal]
    if refused:
        reasons = "; ".join(f"{name}: {error.message}" for name, error in refused if error)
        remedies = dict.fromkeys(error.remedy for _, error in refused if error and error.remedy)
        raise RequestError(
            f"{len(refused)} of {len(planned)} cells cannot be run here: {reasons}",
            remedy="; ".join([*remedies, "or exclude such cells in the plan"]),
        )


def _once(note: Note) -> Note:
    """Return a ``note`` that says nothing twice: what was said of one cell holds for the next."""
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            note(text)

    return say


def runner_of(
    sweep: Sweep,
    directory: SweepDirectory,
    planned: Sequence[Planned],
    observer: Observer,
    *,
    enough: Enough | None = None,
    take_over: bool = False,
) -> Runner:
    """Return what runs blocks of the sweep on this machine. Without ``enough`` each of them is run to its end."""
    cells = [
        ReadyCell(each.cell, each.ready.plan, each.ready.scenario, each.ready.open_target)
        for each in planned
        if each.ready
    ]
    host = Host(host_environment, accounting.open_account)
    return Runner(sweep, directory, cells, host, observer, enough, take_over)


def prepare(planned: Sequence[Planned], note: Note) -> None:
    """Make what is made once and kept, for all cells."""
    say = _once(note)
    for each in planned:
        if each.ready:
            each.ready.prepare(say)


def decisions_of(sweep: Sweep) -> "Callable[[CellRun], Decision]":
    """Return what decides whether the intervals of a cell are narrow enough, as ``bench run --until`` decides it."""
    # Here, since pandas takes as long to import as everything else together, and only a sweep with until needs it.
    from analysis.load.records import load
    from analysis.statistics.sequential import LEAST_BLOCKS, should_stop, should_stop_run

    half_width = parse_share(sweep.until or "")
    # That there is no further block is no reason of the intervals': the last one, begun and cut off, is to be ended.
    most = sweep.element_count + 1
    least = sweep.min_blocks or min(LEAST_BLOCKS, sweep.element_count)

    def decision(run: CellRun) -> "Decision":
        if all(record.warm_up for record in run.records()):
            return should_stop({}, half_width, min_blocks=least, max_blocks=most)
        return should_stop_run(load([run.directory]), half_width, min_blocks=least, max_blocks=most)

    return decision


def enough_of(sweep: Sweep) -> Enough | None:
    """Return what says why a cell needs no further block; None for a sweep without ``until``."""
    if sweep.until is None:
        return None
    decision = decisions_of(sweep)

    def enough(run: CellRun) -> str | None:
        now = decision(run)
        return now.reason if now.stop else None

    return enough


@contextmanager
def ledger_of(directory: Path) -> Iterator[None]:
    """Keep the directory in the ledger, so that ``bench clean`` finds what a killed sweep leaves half written."""
    with ledger.holding("run-directory", str(directory.absolute())):
        yield
