"""A table as data: rows of cells under heads, which the terminal, Markdown and the page render in their own ways."""

from dataclasses import dataclass

from analysis.compare.results import Comparison, Effect, Estimate, Group, TargetSummary
from analysis.load.metrics import Metric
from analysis.report.formatting import number, ratio, shown
from suite.job.ablations import label_of
from suite.records.columns import LATELY
from suite.records.record import EPOCH_METRICS, SCALED_EPOCH

_MOST_METRICS = 3
EXPECTED = "expected"
"""The head of the column of expected throughputs."""
Cell = Estimate | Effect | tuple[str, ...] | str | None
"""An estimate, an effect, texts that belong together (inside and all-in), a text; None where nothing was measured."""


@dataclass(frozen=True)
class Head:
    """The head of a row or a column. Its numbers must not be read without the notes."""

    text: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.text, *(f"({note})" for note in self.notes)))


@dataclass(frozen=True)
class Table:
    """Rows of cells under heads; ``corner`` says what the rows are, ``across`` what the columns are."""

    corner: str
    across: str
    columns: tuple[Head, ...]
    rows: tuple[tuple[Head, tuple[Cell, ...]], ...]
    caption: str = ""

    def turned(self) -> "Table":
        """Return the table with its rows as columns."""
        columns = tuple(head for head, _ in self.rows)
        rows = tuple((head, tuple(cells[place] for _, cells in self.rows)) for place, head in enumerate(self.columns))
        return Table(self.across, self.corner, columns, rows, self.caption)


def line(cell: Cell) -> str:
    """Return a cell in one line: ``12.3 0.972x (0.951 to 0.989), slower``; a dash where nothing was measured."""
    if isinstance(cell, Estimate):
        return f"{number(cell.value)} {ratio(cell)}".rstrip()
    if isinstance(cell, Effect):
        return ratio(cell)
    return " / ".join(cell) if isinstance(cell, tuple) else cell or "-"


def results_table(group: Group, *, full: bool = True) -> Table:
    """Return targets below each other and metrics beside each other; turned where a probe has many metrics.

    ``full``: with what supports the numbers, the expected throughput and the step tail of a training. Epochs have a
    table of their own.
    """
    metrics = [each for each in group.metrics if each.name not in EPOCH_METRICS]
    wide = len(shown(metrics)) <= _MOST_METRICS
    metrics = metrics if full else list(shown(metrics))
    columns = [*(Head(title(metric)) for metric in metrics), Head("trials")]
    rows: list[tuple[Head, list[Cell]]] = [
        (
            Head(summary.target, summary.notes),
            [*(summary.estimates.get(metric.name) for metric in metrics), _trials(summary)],
        )
        for summary in group.targets
    ]
    first = [summary.estimates.get("throughput") for summary in group.targets]
    if full and wide and any(found and found.expected for found in first):
        columns.insert(1, Head(EXPECTED))
        for (_, cells), found in zip(rows, first, strict=True):
            cells.insert(1, _expected(found))
    table = Table("target", "metric", tuple(columns), tuple((head, tuple(cells)) for head, cells in rows))
    return table if wide else table.turned()


def shows_expected(comparison: Comparison) -> bool:
    """Return whether any full table has the column of expected throughputs."""
    return any(head.text == EXPECTED for group in comparison.groups for head in results_table(group).columns)


def _expected(found: Estimate | None) -> Cell:
    if not found or not found.expected:
        return None
    return Effect(found.expected.ratio, found.blocks, found.expected.interval, None)


def epoch_table(group: Group) -> Table | None:
    """Return the times of epochs and the last losses of every target; None for a job without epochs."""
    metrics = [each for each in group.metrics if each.name in EPOCH_METRICS and _measured(group, each)]
    if not metrics:
        return None
    names = dict.fromkeys(name for summary in group.targets for name in summary.losses)
    columns = (*(Head(title(metric)) for metric in metrics), *map(Head, names))
    rows = tuple(
        (
            Head(summary.target, summary.notes),
            (
                *(summary.estimates.get(metric.name) for metric in metrics),
                *(number(summary.losses[name]) if name in summary.losses else None for name in names),
            ),
        )
        for summary in group.targets
    )
    scaled = ", scaled from a share of one" if metrics[0].name == SCALED_EPOCH else ""
    return Table("target", "metric", columns, rows, f"time per epoch{scaled}; losses: the last {LATELY} steps, or all")


def _measured(group: Group, metric: Metric) -> bool:
    return any(metric.name in summary.estimates for summary in group.targets)


def ablation_table(group: Group) -> Table:
    """Return targets with an ablation below each other and metrics beside each other."""
    metrics = shown(group.metrics)
    rows = tuple(
        (
            Head(f"{one.target}, {label_of(one.ablation)}", one.notes),
            tuple(one.effects.get(metric.name) for metric in metrics),
        )
        for one in group.ablations
    )
    caption = "switched in the same blocks, over the same target as it is"
    table = Table("switched", "metric", tuple(Head(metric.name) for metric in metrics), rows, caption)
    return table if len(metrics) <= _MOST_METRICS else table.turned()


def title(metric: Metric) -> str:
    """Return the head of a metric; the throughput of a training goes by its unit alone."""
    return metric.unit if metric.name == "throughput" and not metric.model else f"{metric.name} {metric.unit}"


def _trials(summary: TargetSummary) -> str:
    return f"{summary.ok}, {summary.failed} failed" if summary.failed else str(summary.ok)
