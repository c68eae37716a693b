"""How the numbers of a group are laid out, the same for the terminal, Markdown and the page.

Targets below each other and metrics beside each other; the other way round where a probe has many metrics.
"""

from dataclasses import dataclass

from analysis.compare.results import Estimate, Group, TargetSummary
from analysis.load.metrics import Metric

_MOST_COLUMNS = 3
Cell = Estimate | str | None
"""An estimate, a text, or nothing measured."""


@dataclass(frozen=True)
class Head:
    """Of a row or a column. Notes are what its numbers must not be read without."""

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """Rows of cells under heads; ``corner`` says what the rows are."""

    corner: str
    columns: tuple[Head, ...]
    rows: tuple[tuple[Head, tuple[Cell, ...]], ...]


def grid(group: Group) -> Grid:
    targets = tuple(Head(summary.target, summary.notes) for summary in group.targets)
    titles = tuple(Head(title(metric)) for metric in group.metrics)
    cells = [tuple(summary.estimates.get(metric.name) for metric in group.metrics) for summary in group.targets]
    trials = tuple(_trials(summary) for summary in group.targets)
    if len(group.metrics) <= _MOST_COLUMNS:
        rows = tuple((head, (*found, how_many)) for head, found, how_many in zip(targets, cells, trials, strict=True))
        return Grid("target", (*titles, Head("trials")), rows)
    turned = ((head, tuple(found[place] for found in cells)) for place, head in enumerate(titles))
    return Grid("metric", targets, (*turned, (Head("trials"), trials)))


def title(metric: Metric) -> str:
    return metric.unit if metric.name == "throughput" and not metric.model else f"{metric.name} {metric.unit}"


def _trials(summary: TargetSummary) -> str:
    return f"{summary.ok}, {summary.failed} failed" if summary.failed else str(summary.ok)
