"""Scaling: the speed-up over the number of workers, a line for each target beside the ideal."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from matplotlib.figure import Figure

from analysis.compare.results import Arm, Comparison, Effect, Measured
from analysis.figures.drawing import Drawing, canvas, entry, label, legend_below, palette, style
from analysis.figures.reference import Reference
from analysis.report.formatting import notes_of
from suite.units import count


class ScaledPoint(NamedTuple):
    """The speed-up of one number of workers; 1 for the smallest."""

    target: str
    workers: int
    ratio: float
    interval: tuple[float, float] | None
    notes: tuple[str, ...]


def _point(arm: Arm, measured: Measured) -> ScaledPoint:
    speed_up = measured.get("speed-up", Effect(ratio=1.0))
    workers = arm.division.workers if arm.division else 1
    return ScaledPoint(arm.target, workers, speed_up.ratio or 1.0, speed_up.interval, notes_of(measured))


def speed_up_lines(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield a drawing for each model and kind of scaling."""
    kinds = ((kind, arm, measured) for kind in ("strong", "weak") for arm, measured in comparison.of_kind(kind).items())
    for (kind, model), rows in groupby(kinds, lambda row: (row[0], row[1].model)):
        title = f"{kind.capitalize()} scaling of {model}"
        with style():
            chart = _lines([_point(arm, measured) for _, arm, measured in rows], title)
        yield Drawing(f"{model}-{kind}-scaling", title, chart, description="speed-up; the table holds the values")


def _lines(points: Sequence[ScaledPoint], title: str) -> Figure:
    chart = canvas(6.4, 4.2)
    axes = chart.subplots()
    targets = {target: [*of_target] for target, of_target in groupby(points, lambda point: point.target)}
    colours, numbers = palette([*targets]), sorted({point.workers for point in points})
    for target, of_target in targets.items():
        ratios = [point.ratio for point in of_target]
        axes.plot([point.workers for point in of_target], ratios, marker="o", color=colours[target])
    for point in points:
        axes.vlines(point.workers, *(point.interval or (point.ratio, point.ratio)), color=colours[point.target])
    axes.plot(numbers, [workers / numbers[0] for workers in numbers], linestyle=":", color="0.2")
    axes.set_xticks(numbers)
    below = f"over {count(numbers[0], 'worker')}, with 95 % intervals; dotted: the ideal"
    label(axes, title, below, "speed-up", normalised=False)
    axes.set_xlabel("workers")
    legend_below(chart, [entry(target, own[-1].notes) for target, own in targets.items()], len(targets))
    return chart
