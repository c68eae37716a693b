"""Values of keys as bars over the base; along the axis everything in which the bars of a place agree."""

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.figure import Figure

from analysis.compare.results import Comparison, Contrast, known_first
from analysis.figures.bars import bar, draw_bars
from analysis.figures.drawing import Drawing, entry, stamp, style
from analysis.figures.reference import Reference
from analysis.report.formatting import rows_by_key
from suite.records.record import EPOCH_METRICS
from suite.targets import TARGETS


def value_bars(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield one drawing for each metric of trainings, such as the time per epoch by model and data set."""
    by_metric: dict[str, list[Contrast]] = {}
    for row in rows_by_key(comparison):
        if not row.metric.of_probe:
            by_metric.setdefault(row.metric.name, []).append(row)
    for name, rows in by_metric.items():
        keys = [value.partition("=")[0] for value in rows[0].base]
        title = f"{'Time per epoch' if name in EPOCH_METRICS else name.capitalize()} by {' and '.join(keys)}"
        with style():
            chart = _chart(rows, title)
        stamp(chart, rows[0].job.profile)
        yield Drawing("-".join(("by", *keys, name)), title, chart, description="the table holds the values")


def _chart(rows: Sequence[Contrast], title: str) -> Figure:
    notes = {row.target: dict[str, None]() for row in sorted(rows, key=lambda row: known_first(TARGETS, row.target))}
    for row in rows:
        notes[row.target] |= dict.fromkeys(row.notes)
    bars = pd.DataFrame(bar(_place(row, rows), row.target, row) for row in rows).assign(published=float("nan"))
    over = " or ".join(dict.fromkeys(", ".join(value.partition("=")[2] for value in row.base) for row in rows))
    legend = {target: entry(target, texts) for target, texts in notes.items()}
    return draw_bars(bars, legend, {}, title, str(rows[0].job), rows[0].metric.unit, over)


def _place(row: Contrast, rows: Sequence[Contrast]) -> str:
    """Return the values, below the model and the settings if these differ from bar to bar."""
    model = row.model if len({other.model for other in rows}) > 1 else ""
    variant = row.job.variant if len({other.job for other in rows}) > 1 else ""
    return "\n".join(filter(None, (model, variant, *(value.partition("=")[2] for value in row.arm.cell))))
