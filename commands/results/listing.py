"""Describe all runs below some places as rows: a run each, and a sweep each for its cells."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from commands.output import Output
from suite.results.runs import SWEEP, RunSummary
from suite.units import count

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
        """Return the begin of its first trial; empty without one."""
        return min((run.started_at for run in self.runs if run.started_at), default="")

    def total(self, name: str) -> int:
        return sum(getattr(run, name) for run in self.runs)

    @property
    def damaged(self) -> bool:
        return any(run.failed or run.unreadable or run.problem for run in self.runs)

    @property
    def what(self) -> str:
        """Return ``sweep of 4 cells: synthetic, resnet50 on bare-metal, container``."""
        names = {
            name: ", ".join(dict.fromkeys(member for run in self.runs for member in getattr(run, name)))
            for name in ("models", "targets")
        }
        scenarios = ", ".join(dict.fromkeys(run.scenario for run in self.runs if run.scenario))
        cells = f"sweep of {count(len(self.runs), 'cell')}: " if self.is_sweep else ""
        return f"{cells}{scenarios}, {names['models']} on {names['targets']}" if scenarios else f"{cells}no plan"


def entries(runs: Sequence[RunSummary], named: Sequence[Path]) -> list[ListEntry]:
    """Return runs and sweeps by the time of their first trial. A sweep that was named itself is shown as its cells."""
    opened = {directory.resolve() for directory in named}
    members: dict[str, list[RunSummary]] = {}
    for run in runs:
        parent = Path(run.directory).parent
        in_sweep = (parent / SWEEP).is_file() and not opened & {parent.resolve(), Path(run.directory).resolve()}
        members.setdefault(str(parent) if in_sweep else run.directory, []).append(run)
    rows = [
        ListEntry(directory, tuple(runs), is_sweep=runs[0].directory != directory)
        for directory, runs in members.items()
    ]
    return sorted(rows, key=lambda entry: (entry.started_at, entry.directory))


def as_table(rows: Sequence[ListEntry]) -> Table:
    """Return the entries as a table that fits 80 columns."""
    table = Table(box=None, pad_edge=False)
    for title, width in _TITLES.items():
        numeric = title in ("ok", "failed", "blocks")
        table.add_column(title, justify="right" if numeric else "left", overflow="fold", min_width=width)
    for entry in rows:
        unreadable = f" +{count} unreadable" if (count := entry.total("unreadable")) else ""
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


def as_json(rows: Sequence[ListEntry]) -> ListOutput:
    return ListOutput(
        runs=[
            ListedRun(**asdict(run), sweep=entry.directory if entry.is_sweep else None)
            for entry in rows
            for run in entry.runs
        ],
        sweeps=[
            ListedSweep(entry.directory, entry.started_at, tuple(run.run_id for run in entry.runs))
            for entry in rows
            if entry.is_sweep
        ],
    )
