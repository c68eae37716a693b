"""Scaling: the speed-up over the number of workers, a line for each target beside the ideal."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from matplotlib.figure import Figure

from analysis.compare.results import Comparison, Scaling, Uncertain
from analysis.figures.drawing import Drawing, canvas, entry, label, legend_below, palette, style
from analysis.figures.reference import Reference
from suite.units import count


def speed_up_lines(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield a drawing for each model and kind of scaling."""
    for (kind, model), rows in groupby(comparison.scaling, lambda row: (row.kind, row.model)):
        title = f"{kind.capitalize()} scaling of {model}"
        with style():
            chart = _lines([*rows], title)
        yield Drawing(f"{model}-{kind}-scaling", title, chart, description="speed-up; the table holds the values")


def _lines(rows: Sequence[Scaling], title: str) -> Figure:
    chart = canvas(6.4, 4.2)
    axes = chart.subplots()
    targets = {target: [*points] for target, points in groupby(rows, lambda row: row.target)}
    colours, numbers = palette([*targets]), sorted({row.workers for row in rows})
    for target, points in targets.items():
        speed_ups = {point.workers: point.values.get("speed-up", Uncertain(1.0)) for point in points}
        axes.plot([*speed_ups], [one.value for one in speed_ups.values()], marker="o", color=colours[target])
        for workers, one in speed_ups.items():
            axes.vlines(workers, *(one.interval or (one.value, one.value)), color=colours[target])
    axes.plot(numbers, [workers / numbers[0] for workers in numbers], linestyle=":", color="0.2")
    axes.set_xticks(numbers)
    below = f"over {count(numbers[0], 'worker')}, with 95 % intervals; dotted: the ideal"
    label(axes, title, below, "speed-up", normalised=False)
    axes.set_xlabel("workers")
    legend_below(chart, [entry(target, points[-1].notes) for target, points in targets.items()], len(targets))
    return chart
