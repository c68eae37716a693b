"""``bench sweep plan``: show what a sweep will run, without starting anything."""

import sys
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel, ConfigDict

from commands.output import Output
from commands.run.options import PlanFile
from commands.sweep.backends.base import backend_of
from commands.sweep.resolve import Planned, resolve
from suite.results.store import RESULTS
from suite.sweep.directory import SweepDirectory, default_directory
from suite.sweep.estimate import Durations, durations_below, total
from suite.sweep.file import load_sweep
from suite.sweep.model import Sweep
from suite.units import format_duration


class PlannedCell(BaseModel):
    """A cell: ``first_s`` are the seconds of its first block, with the warm-up before it; ``block_s`` of each other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cell_id: str
    settings: dict[str, Any]
    command: list[str]
    refused: str | None = None
    remedy: str | None = None
    targets: tuple[str, ...] = ()
    trials: int = 0
    trials_left: int = 0
    first_s: float | None = None
    block_s: float | None = None


class PlannedOutput(Output):
    """The trials that a sweep will run; ``changes`` are lines. Seconds are None if no earlier trial gives them."""

    name: str
    directory: str
    engine: str
    blocks: int
    until: str | None
    detect: str | None
    trials: int
    trials_left: int
    block_s: float | None
    total_s: float | None
    changes: list[str]
    cells: list[PlannedCell]


@click.command()
@click.argument("file", type=PlanFile())
@click.option("--out", type=click.Path(path_type=Path), help="Directory. Default: the plan's, else results/NAME.")
@click.option(
    "--estimate-from",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory of earlier records for the estimate. Default: results/.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(file: Path, out: Path | None, estimate_from: Path | None, as_json: bool) -> None:
    """Show the cells and trials of a sweep, the estimated time, and refusals with reasons.

    Starts nothing and writes nothing. Exit code 2 when a cell is refused.

    \b
    Examples:
      bench sweep plan smoke
      bench sweep plan paper-single --estimate-from results/lastyear --json
    """
    sweep = load_sweep(file)
    backend_of(sweep).check(sweep)
    planned = resolve(sweep, lambda text: click.echo(text, err=True))
    directory = SweepDirectory(out or default_directory(sweep))
    described = _described(sweep, directory, planned, durations_below(estimate_from or RESULTS))
    if as_json:
        described.tell()
    else:
        _print(described)
    if any(cell.refusal for cell in planned):
        sys.exit(2)


def _described(sweep: Sweep, directory: SweepDirectory, planned: list[Planned], durations: Durations) -> PlannedOutput:
    cells = [_cell(sweep, directory, item, durations) for item in planned]
    runnable = [cell for cell in cells if not cell.refused]
    first_s, block_s = (
        total(getattr(cell, name) for cell in runnable) if runnable else None for name in ("first_s", "block_s")
    )
    is_known = None not in (first_s, block_s)
    return PlannedOutput(
        name=sweep.name,
        directory=str(directory.path),
        engine=sweep.engine.kind,
        blocks=sweep.block_count,
        until=sweep.until,
        detect=sweep.detect,
        trials=sum(cell.trials for cell in cells),
        trials_left=sum(cell.trials_left for cell in cells),
        block_s=block_s,
        total_s=(first_s or 0) + (sweep.block_count - 1) * (block_s or 0) if is_known else None,
        changes=directory.changes(sweep, [item.cell for item in planned]).lines(),
        cells=cells,
    )


def _cell(sweep: Sweep, directory: SweepDirectory, each: Planned, durations: Durations) -> PlannedCell:
    cell = PlannedCell(cell_id=each.cell.cell_id, settings=each.cell.settings, command=each.command)
    if each.ready is None:
        message, remedy = (each.refusal.message, each.refusal.remedy) if each.refusal else ("refused", None)
        return cell.model_copy(update={"refused": message, "remedy": remedy})
    plan = each.ready.plan
    run = directory.cell(each.cell.cell_id, sweep.budget.retries)
    planned = {
        "targets": plan.targets,
        "trials": sum(1 for _ in plan.trials()),
        "trials_left": sum(map(len, run.left(plan, range(plan.blocks)).values())),
        "first_s": durations.of_block(plan, 0),
        "block_s": durations.of_block(plan, 1),
    }
    return cell.model_copy(update=planned)


def _print(described: PlannedOutput) -> None:
    def time_of(seconds: float | None) -> str:
        return "unknown" if seconds is None else format_duration(seconds)

    refusals: dict[str, list[str]] = {}
    for cell in described.cells:
        if cell.refused:
            reason = f"{cell.refused} (what to do: {cell.remedy})"
            refusals.setdefault(reason, []).append(cell.cell_id)
        else:
            targets = ", ".join(cell.targets)
            click.echo(f"{cell.cell_id}: {cell.trials} trials on {targets}; a block: {time_of(cell.block_s)}")
    for reason, cells in refusals.items():
        click.echo(f"refused: {', '.join(cells)}: {reason}")
    for line in described.changes:
        click.echo(line)
    most = "at most " if described.until or described.detect else ""
    click.echo(
        f"{len(described.cells)} cells, {most}{described.blocks} blocks, {described.trials} trials "
        f"({described.trials_left} to be run) into {described.directory}, by the engine {described.engine}; "
        f"time: {most if described.total_s else ''}{time_of(described.total_s)}"
    )
