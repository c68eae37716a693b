"""Latencies of a service by percentile: a line per target, and a panel for each way in which requests come."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.compare.results import Comparison, Group
from analysis.figures.drawing import Drawing, canvas, style
from analysis.figures.reference import Reference
from analysis.figures.style import label, legend, legend_below, palette, targets_of
from analysis.load.metrics import Metric

_LATENCY = re.compile(r"latency-p(?P<percent>\d+)(?:-at-(?P<rate>[0-9.e+]+)-per-s)?")
_CLOSED = "one client, in a closed loop"
Panels = Mapping[str, Mapping[int, Metric]]


def latency_lines(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield one drawing per model that was served."""
    for group in comparison.groups:
        if panels := _panels(group):
            title = f"Latency of {group.model} by percentile"
            with style():
                chart = _chart(group, panels, title)
            yield Drawing(f"{group.model}-latency", title, chart, description="in ms; the table holds the values")


def _panels(group: Group) -> Panels:
    """Return the latencies of a model by the way in which requests came, and by percentile."""
    found: dict[str, dict[int, Metric]] = {}
    for metric in group.metrics:
        name = _LATENCY.fullmatch(metric.name)
        if name and any(metric.name in summary.estimates for summary in group.targets):
            way = f"{name['rate']} requests/s, answered or not" if name["rate"] else _CLOSED
            found.setdefault(way, {})[int(name["percent"])] = metric
    return found


def _chart(group: Group, panels: Panels, title: str) -> Figure:
    targets = targets_of([group])
    chart = canvas(max(6.4, 4.2 * len(panels)), 4.2)
    every = chart.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (way, metrics) in zip(every, panels.items(), strict=True):
        _lines(axes, group, metrics)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
        unit = next(iter(metrics.values())).unit
        label(axes, title if axes is every[0] else "", way, unit, normalised=False)
    legend_below(chart, legend([group], targets), len(targets))
    return chart


def _lines(axes: Axes, group: Group, metrics: Mapping[int, Metric]) -> None:
    percents = sorted(metrics)
    colours = palette([summary.target for summary in group.targets])
    look: dict[str, Any] = {"marker": "o", "markersize": 5, "linewidth": 1.5}
    for summary in group.targets:
        known = [(place, summary.estimates.get(metrics[each].name)) for place, each in enumerate(percents)]
        points = [(place, estimate.value) for place, estimate in known if estimate]
        places, values = [place for place, _ in points], [value for _, value in points]
        axes.plot(places, values, color=colours[summary.target], **look)
    axes.set_xticks(range(len(percents)), [f"p{each}" for each in percents])
