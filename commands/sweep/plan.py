"""``bench sweep plan``: show what a sweep will run, without starting anything."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from analysis.figures import reference
from analysis.statistics.sequential import LEAST_BLOCKS
from commands.output import Output
from commands.paths import UserPath
from commands.run.prepare import this_host
from commands.sweep.backends.base import backend_of
from commands.sweep.resolve import PlanFile, Planned, resolve
from suite.interfaces import Note
from suite.part import Part
from suite.results.layout import results_directory
from suite.sweep.directory import SweepDirectory, default_directory
from suite.sweep.estimate import SOURCES, Durations, Source, durations_below, least_certain
from suite.sweep.file import Sweep, load_sweep
from suite.units import count, format_duration


class PlannedCell(Part):
    """A cell: ``first_s`` are the seconds of its first block, with the warm-up before it; ``block_s`` of each other."""

    cell_id: str
    settings: dict[str, Any]
    command: list[str]
    refused: str | None = None
    remedy: str | None = None
    targets: tuple[str, ...] = ()
    data: str | None = None
    """The data set that is read: ``imagefolder of 1,000 images, digest 0a1b2c3d``; None without one."""
    trials: int = 0
    trials_left: int = 0
    first_s: float | None = None
    block_s: float | None = None
    source: Source | None = None
    """The least certain source of these seconds."""


class PlannedOutput(Output):
    """The trials that a sweep will run; ``changes`` are lines. Seconds are None if every cell is refused."""

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
    source: Source | None
    """The least certain source of these seconds."""
    budget_s: float | None
    """The seconds after which no block begins; None without a budget."""
    path_only: tuple[str, ...]
    """The targets that work here, and whose numbers are no measurement."""
    paper_figures: list[int]
    """The figures of Lin, Pai and Chou (2018) that the cells measure completely, in the paper's sizes and budget."""
    changes: list[str]
    cells: list[PlannedCell]

    @property
    def early_end(self) -> str:
        """Return how early the budget is expected to end the sweep; empty if it does not."""
        if not self.budget_s or not self.total_s or not is_spent_before(self.budget_s, self.total_s):
            return ""
        share = self.budget_s / self.total_s
        blocks = int(self.blocks * share)
        planned = count(self.blocks, "block")
        ended = f"incomplete: the budget of {format_duration(self.budget_s)} ends it"
        if blocks == 0:
            return f"{ended} within the first of {planned}: no figure is complete"
        figures = "every figure then has these"
        if blocks < LEAST_BLOCKS:
            figures = f"no figure has the {LEAST_BLOCKS} blocks of a verdict by then"
        return f"{ended} after about {blocks} of {planned}; {figures}"

    @property
    def data_sets(self) -> list[str]:
        """Return a line for each data set that a cell reads."""
        lines = (f"data set: {cell.data}" for cell in self.cells if cell.data)
        return list(dict.fromkeys(lines))


def is_spent_before(budget_s: float | None, total_s: float | None) -> bool:
    return budget_s is not None and total_s is not None and budget_s < total_s


@click.command()
@click.argument("file", type=PlanFile())
@click.option("--out", type=UserPath(), help="Directory. Default: the plan's, else results/NAME.")
@click.option(
    "--estimate-from",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory of earlier records for the estimate. Default: results/, and that of the sweep's directory.",
)
@click.option("--text", "as_text", is_flag=True, help="Print the plan file itself, to edit a copy of it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(file: Path, out: Path | None, estimate_from: Path | None, as_text: bool, as_json: bool) -> None:
    """Show the cells, time and refusals of a sweep.

    Refusals have their reasons.

    Starts nothing and writes nothing. Exit code 2 when a cell is refused.

    \b
    Examples:
      bench sweep plan smoke
      bench sweep plan cluster --text > mine.toml
      bench sweep plan paper --estimate-from results/lastyear --json
    """
    sweep = load_sweep(file)
    if as_text:
        click.echo(file.read_text(), nl=False)
        return
    directory = SweepDirectory(out or default_directory(sweep))
    planned = described(sweep, directory, lambda text: click.echo(text, err=True), estimate_from)
    if as_json:
        planned.tell()
    else:
        show(planned)
    if any(cell.refused for cell in planned.cells):
        sys.exit(2)


def described(
    sweep: Sweep,
    directory: SweepDirectory,
    note: Note,
    estimate_from: Path | None = None,
    planned: Sequence[Planned] = (),
) -> PlannedOutput:
    """Return the cells of a sweep, checked on this machine, with their estimated times. Raises RequestError.

    ``planned`` are the cells where they were checked already.
    """
    backend = backend_of(sweep)
    backend.check(sweep)
    planned = planned or resolve(sweep, note)
    durations = _durations(directory, estimate_from, here=backend.runs_here)
    cells = [_cell(sweep, directory, item, durations) for item in planned]
    runnable = [cell for cell in cells if not cell.refused]
    times = _times(runnable, sweep.block_count)
    prepared = [item.ready for item in planned if item.ready]
    complete = reference.complete_figures(ready.plan for ready in prepared)
    path_only: list[str] = []
    for ready in prepared:
        path_only += ready.site.path_only
    budget_s = sweep.budget.total_s
    if is_spent_before(budget_s, times["total_s"]):
        complete = []
    return PlannedOutput(
        name=sweep.name,
        directory=str(directory.path),
        engine=sweep.engine.kind,
        blocks=sweep.block_count,
        until=sweep.until,
        detect=sweep.detect,
        trials=sum(cell.trials for cell in cells),
        trials_left=sum(cell.trials_left for cell in cells),
        **times,
        budget_s=budget_s,
        path_only=tuple(dict.fromkeys(path_only)),
        paper_figures=complete,
        changes=directory.changes(sweep, [item.cell for item in planned]),
        cells=cells,
    )


def _durations(directory: SweepDirectory, estimate_from: Path | None, *, here: bool) -> Durations:
    """Return what earlier trials took: those below a directory, or of this machine if the sweep runs ``here``."""
    if estimate_from:
        return durations_below(estimate_from)
    host = this_host() if here else None
    return durations_below(results_directory(), directory.path.parent, here=host)


def _times(runnable: Sequence[PlannedCell], blocks: int) -> dict[str, Any]:
    """Return the seconds of a block and of all blocks, and their source; None if no cell can run."""
    if not runnable:
        return dict.fromkeys(("block_s", "total_s", "source"))
    first_s = sum(cell.first_s or 0.0 for cell in runnable)
    block_s = sum(cell.block_s or 0.0 for cell in runnable)
    sources = (cell.source for cell in runnable if cell.source)
    return {
        "block_s": block_s,
        "total_s": first_s + (blocks - 1) * block_s,
        "source": least_certain(sources),
    }


def _cell(sweep: Sweep, directory: SweepDirectory, planned: Planned, durations: Durations) -> PlannedCell:
    command = planned.request.command() if planned.request else []
    cell = PlannedCell(cell_id=planned.cell.cell_id, settings=planned.cell.settings, command=command)
    if planned.refusal:
        refusal = {"refused": planned.refusal.message, "remedy": planned.refusal.remedy}
        return cell.model_copy(update=refusal)
    assert planned.ready  # noqa: S101 (what is not refused)
    plan = planned.ready.plan
    run = directory.cell(cell.cell_id, sweep.budget.retries)
    trials_left = run.left(plan, range(plan.blocks))
    first = durations.guess(*plan.trials_of(0))
    later = durations.guess(*plan.trials_of(1))
    values = {
        "targets": plan.targets,
        "data": plan.job.dataset.label if plan.job.dataset else None,
        "trials": len(list(plan.trials())),
        "trials_left": sum(map(len, trials_left.values())),
        "first_s": first.seconds,
        "block_s": later.seconds,
        "source": first.source,
    }
    return cell.model_copy(update=values)


def show(described: PlannedOutput) -> None:
    """Print the cells, where they run, and how long."""
    for line in _lines(described):
        click.echo(line)


def _lines(described: PlannedOutput) -> Iterator[str]:
    yield from _lines_of_cells(described)
    yield from described.changes
    if described.path_only:
        yield f"no measurement here: {', '.join(described.path_only)}"
    if described.paper_figures:
        figures = ", ".join(map(str, described.paper_figures))
        yield f"{reference.SOURCE}, complete: figures {figures}"
    most = "at most " if described.until or described.detect else ""
    cells = count(len(described.cells), "cell")
    blocks = count(described.blocks, "block")
    trials = count(described.trials, "trial")
    yield (
        f"{cells}, {most}{blocks}, {trials} ({described.trials_left} to be run) "
        f"into {described.directory}, by the engine {described.engine}"
    )
    if described.total_s is not None and described.source:
        yield f"time: {most or 'about '}{format_duration(described.total_s)}, {SOURCES[described.source]}"
    if described.early_end:
        yield described.early_end


def _lines_of_cells(described: PlannedOutput) -> Iterator[str]:
    refusals: dict[str, list[str]] = {}
    for cell in described.cells:
        if cell.refused:
            reason = f"{cell.refused} (what to do: {cell.remedy})"
            refusals.setdefault(reason, []).append(cell.cell_id)
        else:
            targets = ", ".join(cell.targets)
            block = format_duration(cell.block_s or 0.0)
            yield f"{cell.cell_id}: {count(cell.trials, 'trial')} on {targets}; a block: {block}"
    for reason, cells in refusals.items():
        yield f"refused: {', '.join(cells)}: {reason}"
    yield from described.data_sets
