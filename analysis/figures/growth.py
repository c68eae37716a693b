"""Instances that were opened together: their time and memory by their number."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes

from analysis.compare.results import Arm, Comparison, Measured
from analysis.compare.scaling import EACH, TIMES
from analysis.figures import drawing
from analysis.figures.reference import Reference
from analysis.load.metrics import Metric
from analysis.report.sweeps.growth import named
from suite.trial_names import instances_in

_MARKERS = "osD^vPX*"


def together_lines(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield a drawing for each job whose trials opened several instances: time beside memory."""
    for job, arms in groupby(comparison.of_kind("together").items(), lambda item: item[0].job):
        lines: dict[str, list[tuple[Arm, Measured]]] = {}
        for arm, measured in arms:
            lines.setdefault(named(arm), []).append((arm, measured))
        title = "Opened together"
        with drawing.style():
            chart = drawing.canvas(9.6, 4.2)
            for axes, metric, unit in zip(chart.subplots(1, 2), (TIMES[0], EACH[0]), ("s", "MB each"), strict=True):
                for number, (name, of_name) in enumerate(lines.items()):
                    look = {"color": f"C{number}", "marker": _MARKERS[number % len(_MARKERS)], "label": name}
                    _line(axes, of_name, metric, **look)
                axes.set_ylim(bottom=0)
                below = f"{metric.name}; {job}\nmean over the blocks, with 95 % intervals"
                drawing.label(axes, title if metric is TIMES[0] else "", below, unit, normalised=False)
                axes.set_xlabel("instances")
                axes.set_xticks(sorted({instances_in(arm.model) for of_name in lines.values() for arm, _ in of_name}))
            chart.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        yield drawing.Drawing("together", title, chart, description="in s and MB; the table holds the values")


def _line(axes: Axes, arms: list[tuple[Arm, Measured]], metric: Metric, **look: Any) -> None:  # noqa: ANN401
    points = {instances_in(arm.model): one for arm, of in arms if (one := of.get(metric.name))}
    many = sorted(points)
    axes.plot(many, [points[number].value or 0.0 for number in many], **look)
    for number, one in points.items():
        axes.vlines(number, *(one.value_interval or [one.value or 0.0] * 2), color=look["color"], linewidth=1)
