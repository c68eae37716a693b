"""Describe all runs below some places as rows: a run each, and a sweep each for its cells."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from commands.output import Output
from suite.results.runs import SWEEP, RunSummary

_TITLES = {"run": 20, "started (UTC)": 16, "ok": 2, "failed": 6, "blocks": 6, "what": 12}
"""The columns with their least widths. The longest texts stand last; they go on below each other."""


@dataclass(frozen=True)
class ListEntry:
    """A run, or a sweep with the runs that are its cells."""

    directory: str
    runs: tuple[RunSummary, ...]
    is_sweep: bool

    @property
    def started_at(self) -> str:
        """Return when its first trial began; empty without one."""
        return min((run.started_at for run in self.runs if run.started_at), default="")

    def count(self, name: str) -> int:
        """Return the sum of a number over its runs."""
        return sum(getattr(run, name) for run in self.runs)

    @property
    def damaged(self) -> bool:
        """Return whether anything in it failed, or cannot be read."""
        return any(run.failed or run.unreadable or run.problem for run in self.runs)

    @property
    def what(self) -> str:
        """Return ``sweep of 4 cells: synthetic, resnet50 on bare-metal, container``."""
        names = {
            name: ", ".join(dict.fromkeys(one for run in self.runs for one in getattr(run, name)))
            for name in ("models", "targets")
        }
        scenarios = ", ".join(dict.fromkeys(run.scenario for run in self.runs if run.scenario))
        cells = f"sweep of {len(self.runs)} cell{'s' if len(self.runs) > 1 else ''}: " if self.is_sweep else ""
        return f"{cells}{scenarios}, {names['models']} on {names['targets']}" if scenarios else f"{cells}no plan"


def entries(runs: Sequence[RunSummary], places: Sequence[Path]) -> list[ListEntry]:
    """Return runs and sweeps by the time of their first trial. A sweep that is itself a place is shown as its cells."""
    opened = {place.resolve() for place in places}
    found: dict[str, list[RunSummary]] = {}
    for run in runs:
        parent = Path(run.directory).parent
        in_sweep = (parent / SWEEP).is_file() and not opened & {parent.resolve(), Path(run.directory).resolve()}
        found.setdefault(str(parent) if in_sweep else run.directory, []).append(run)
    made = [
        ListEntry(directory, tuple(members), is_sweep=members[0].directory != directory)
        for directory, members in found.items()
    ]
    return sorted(made, key=lambda entry: (entry.started_at, entry.directory))


def as_table(found: Sequence[ListEntry]) -> Table:
    """Return the entries as a table that fits 80 columns."""
    table = Table(box=None, pad_edge=False)
    for title, width in _TITLES.items():
        numeric = title in ("ok", "failed", "blocks")
        table.add_column(title, justify="right" if numeric else "left", overflow="fold", min_width=width)
    for entry in found:
        table.add_row(*_cells(entry), style="red" if entry.damaged else "")
    return table


def _cells(entry: ListEntry) -> Iterator[str]:
    unreadable = entry.count("unreadable")
    yield entry.directory
    yield entry.started_at[:16].replace("T", " ")
    yield str(entry.count("ok"))
    yield f"{entry.count('failed')} +{unreadable} unreadable" if unreadable else str(entry.count("failed"))
    yield str(max(run.blocks for run in entry.runs))
    yield entry.what


@dataclass(frozen=True)
class ListedRun(RunSummary):
    """A run in the JSON of the list."""

    sweep: str | None = None
    """The directory of the sweep of which it is a cell."""


@dataclass(frozen=True)
class ListedSweep:
    """A sweep in the JSON of the list."""

    directory: str
    started_at: str
    cells: tuple[str, ...]
    """The ids of its runs."""


class ListOutput(Output):
    """All runs, those of sweeps too, and the sweeps."""

    runs: list[ListedRun]
    sweeps: list[ListedSweep]


def as_json(found: Sequence[ListEntry]) -> ListOutput:
    """Return the entries for other programs."""
    return ListOutput(
        runs=[
            ListedRun(**asdict(run), sweep=entry.directory if entry.is_sweep else None)
            for entry in found
            for run in entry.runs
        ],
        sweeps=[
            ListedSweep(entry.directory, entry.started_at, tuple(run.run_id for run in entry.runs))
            for entry in found
            if entry.is_sweep
        ],
    )
