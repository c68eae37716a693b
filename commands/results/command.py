"""``bench results``: lists, shows, notes, exports, packs and removes runs."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import click
from rich.table import Table

from commands.lazy import SuggestingGroup
from commands.output import Output
from commands.paths import UserPath, complete_run_name
from commands.results.pack import pack, verify
from commands.results.removal import described, name_foreign, removable
from commands.results.removal import remove as remove_contents
from commands.results.show import find_record, notes_lines, record_json, record_lines, run_lines, run_output
from commands.run.options import latest
from suite.errors import RequestError
from suite.results.layout import results_directory
from suite.results.notes import RunNotes, matches, read_notes, readable_notes, write_notes
from suite.results.runs import SWEEP, find_run, find_runs
from suite.results.summary import RunSummary, summarise
from suite.units import count
from suite.untrusted.console import PlainConsole

FORMATS = ("parquet", "csv", "jsonl")
_UNBOUNDED = 240
"""Columns of a table that goes to a file or a pipe."""
_TITLES = {"run": 20, "started (UTC)": 16, "ok": 2, "failed": 6, "blocks": 6, "what": 12}
"""The columns with their least widths. The longest texts stand last; they go on below each other."""
places = click.argument("places", nargs=-1, type=UserPath())
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=SuggestingGroup, commands=(pack, verify))
def results() -> None:
    """List, show, note, export, pack and remove runs and records.

    \b
    Examples:
      bench results list
      bench results show 20180312T101500-4242
      bench results export --format parquet --out trials.parquet
      bench results pack results/night --out night.tar.gz
    """


@results.command("list")
@places
@click.option("--text", default="", help="Only runs with each of these words in name, model, target, note or tags.")
@as_json
def list_runs(places: tuple[Path, ...], text: str, as_json: bool) -> None:
    """List runs and sweeps, or the cells of a given sweep.

    Default: those in results/.

    \b
    Examples:
      bench results list
      bench results list results/sweep
      bench results list --text "baseline resnet50"
      bench results list results /mnt/other/results --json
    """
    summaries = map(summarise, find_runs(places or [results_directory()]))
    runs = [run for run in summaries if not text or _matches(text, run)]
    rows = entries(runs, places)
    if as_json:
        listed(rows).tell()
        return
    if not rows:
        if text:
            raise RequestError(f"there is no run with {text!r}", remedy="leave --text out")
        raise RequestError("there is no run", remedy="make one with: bench run --target all")
    width = None if sys.stdout.isatty() else _UNBOUNDED
    PlainConsole(width=width).print(as_table(rows))


def _matches(text: str, run: RunSummary) -> bool:
    directory = Path(run.directory)
    name = "/".join(directory.parts[-2:])  # of a cell the sweep, too
    return matches(text, name, run, readable_notes(directory))


@dataclass(frozen=True)
class ListEntry:
    """A run, or a sweep with the runs that are its cells."""

    directory: str
    runs: tuple[RunSummary, ...]
    is_sweep: bool

    @property
    def started_at(self) -> str:
        """Return the begin of its first trial; empty without one."""
        begins = (run.started_at for run in self.runs)
        return min(filter(None, begins), default="")

    def total(self, name: str) -> int:
        return sum(getattr(run, name) for run in self.runs)

    @property
    def damaged(self) -> bool:
        return any(run.failed or run.unreadable or run.problem for run in self.runs)

    @property
    def what(self) -> str:
        """Return ``sweep of 4 cells: synthetic, resnet50 on bare-metal, container``."""
        scenarios = dict.fromkeys(run.scenario for run in self.runs if run.scenario)
        models = dict.fromkeys(chain.from_iterable(run.models for run in self.runs))
        targets = dict.fromkeys(chain.from_iterable(run.targets for run in self.runs))
        work = "no plan"
        if scenarios:
            work = f"{', '.join(scenarios)}, {', '.join(models)} on {', '.join(targets)}"
        cells = f"sweep of {count(len(self.runs), 'cell')}: " if self.is_sweep else ""
        tags = readable_notes(Path(self.directory)).tags
        tagged = f" [{', '.join(tags)}]" if tags else ""
        return f"{cells}{work}{tagged}"


def entries(runs: Sequence[RunSummary], named: Sequence[Path]) -> list[ListEntry]:
    """Return runs and sweeps by the time of their first trial. A sweep that was named itself is shown as its cells."""
    opened = {directory.resolve() for directory in named}
    members: dict[str, list[RunSummary]] = {}
    for run in runs:
        directory = Path(run.directory)
        parent = directory.parent
        was_named = not opened.isdisjoint({parent.resolve(), directory.resolve()})
        if was_named or not (parent / SWEEP).is_file():
            entry = run.directory
        else:
            entry = str(parent)
        members.setdefault(entry, []).append(run)
    rows = []
    for entry, cells in members.items():
        is_sweep = cells[0].directory != entry
        rows.append(ListEntry(entry, tuple(cells), is_sweep=is_sweep))
    return sorted(rows, key=lambda row: (row.started_at, row.directory))


def as_table(rows: Sequence[ListEntry]) -> Table:
    """Return the entries as a table that fits 80 columns."""
    table = Table(box=None, pad_edge=False)
    for title, width in _TITLES.items():
        numeric = title in ("ok", "failed", "blocks")
        justify: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(title, justify=justify, overflow="fold", min_width=width)
    for entry in rows:
        count = entry.total("unreadable")
        unreadable = f" +{count} unreadable" if count else ""
        table.add_row(
            entry.directory,
            entry.started_at[:16].replace("T", " "),
            str(entry.total("ok")),
            f"{entry.total('failed')}{unreadable}",
            str(max(run.blocks for run in entry.runs)),
            entry.what,
            style="red" if entry.damaged else "",
        )
    return table


@dataclass(frozen=True)
class ListedRun(RunSummary):
    """A run in the JSON of the list."""

    sweep: str | None = None
    """The directory of the sweep of which it is a cell."""
    notes: RunNotes = field(default_factory=RunNotes)


@dataclass(frozen=True)
class ListedSweep:
    """A sweep in the JSON of the list."""

    directory: str
    started_at: str
    cells: tuple[str, ...]
    """The names of their directories."""


class ListOutput(Output):
    """All runs, those of sweeps too, and the sweeps."""

    runs: list[ListedRun]
    sweeps: list[ListedSweep]


def listed(rows: Sequence[ListEntry]) -> ListOutput:
    runs = []
    sweeps = []
    for entry in rows:
        sweep = entry.directory if entry.is_sweep else None
        for run in entry.runs:
            notes = readable_notes(Path(run.directory))
            runs.append(ListedRun(**asdict(run), sweep=sweep, notes=notes))
        if entry.is_sweep:
            cells = tuple(Path(run.directory).name for run in entry.runs)
            sweeps.append(ListedSweep(entry.directory, entry.started_at, cells))
    return ListOutput(runs=runs, sweeps=sweeps)


@results.command()
@click.argument("name", required=False, shell_complete=complete_run_name)
@as_json
def show(name: str | None, as_json: bool) -> None:
    """Show a run or a record.

    A run has a name or a directory, a record RUN/TRIAL or a file. Default: the latest run.

    \b
    Examples:
      bench results show
      bench results show 20180312T101500-4242
      bench results show results/night/trials/synthetic-resnet50-vm-b000.json --json
      bench results show night/synthetic-resnet50-vm-b000
    """
    record = find_record(name) if name else None
    if record:
        if as_json:
            text = json.dumps(record_json(record), indent=1)
        else:
            text = "\n".join(record_lines(record))
        click.echo(text)
        return
    if name:
        run = find_run(name)
    else:
        run = latest()
    if as_json:
        run_output(run).tell()
    else:
        click.echo("\n".join(run_lines(run)))


@results.command()
@click.argument("name", shell_complete=complete_run_name)
@click.argument("text", required=False)
@click.option("--tag", "tags", multiple=True, help="Tag to add. Repeatable.")
@click.option("--untag", "untags", multiple=True, help="Tag to take away. Repeatable.")
def note(name: str, text: str | None, tags: tuple[str, ...], untags: tuple[str, ...]) -> None:
    """Put a note and tags on a run, or show them. They change no record and no number.

    TEXT replaces the note; an empty one removes it.

    \b
    Examples:
      bench results note night "after the kernel update" --tag kernel-6.9
      bench results note night --untag kernel-6.9
      bench results note night
    """
    run = find_run(name)
    before = read_notes(run)
    kept = [tag for tag in before.tags if tag not in untags]
    note_text = before.text if text is None else text
    after = RunNotes.of(note_text, [*kept, *tags])
    if after != before:
        write_notes(run, after)
    for line in notes_lines(after):
        click.echo(line)


@results.command()
@click.argument("places", nargs=-1, required=True, type=UserPath())
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(places: tuple[Path, ...], yes: bool) -> None:
    """Remove runs or whole sweeps, with their records, logs and figures. Asks first.

    Only what the suite has written is removed. Other files in a run's directory stay and are named.

    \b
    Examples:
      bench results remove results/20180312T101500-4242
      bench results remove results/night --yes
    """
    chosen = {place.resolve(): (place, removable(place)) for place in places}
    for place, contents in chosen.values():
        click.echo(f"to be removed: {place}: {described(contents)}", err=True)
        for foreign in contents.foreign:
            name_foreign(foreign)
    if not yes:
        click.confirm("Remove for good?", abort=True, err=True)
    for place, contents in chosen.values():
        remove_contents(contents)
        click.echo(f"removed: {place}")


@results.command()
@places
@click.option("--format", "form", type=click.Choice(FORMATS), default="csv", show_default=True)
@click.option("--out", type=UserPath(), help="File to write. Default: standard output.")
@click.option("--steps", is_flag=True, help="Write one row per measured step instead of one per trial.")
def export(places: tuple[Path, ...], form: Any, out: Path | None, steps: bool) -> None:  # noqa: ANN401
    """Export all trials as one flat table.

    Failed and warm-up ones are in it.

    docs/reference/outputs.md describes the columns.

    \b
    Examples:
      bench results export > trials.csv
      bench results export results/night --format parquet --out night.parquet
      bench results export --steps --format jsonl --out steps.jsonl
    """
    # Not at the top: pandas takes half a second, and listing 100,000 records little more.
    from analysis.load.records import load
    from analysis.report.export import steps_tables, text, trials_table, write
    from analysis.warnings.types import AnalysisWarning

    if form == "parquet" and out is None:
        raise RequestError("--format parquet needs a file", remedy="name it with --out trials.parquet")
    records = load(find_runs(places or [results_directory()]), warm_ups=True)
    skipped: list[AnalysisWarning] = []
    if steps:
        tables = steps_tables(records, skipped)
    else:
        tables = iter([trials_table(records)])
    if out:
        row_count = write(tables, form, out)
        click.echo(f"{row_count} rows: {out}", err=True)
    else:
        for number, table in enumerate(tables):
            rows = text(table, form, header=number == 0)
            click.echo(rows, nl=False)
    for warning in (*records.warnings, *skipped):
        click.echo(f"warning: {warning.message}", err=True)
