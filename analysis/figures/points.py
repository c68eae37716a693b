"""Points: every trial as a dot, which bars of a mean cannot show, and the latencies of a service by percentile."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from analysis.compare.results import Comparison, Group
from analysis.figures.drawing import Drawing, canvas, label, legend, legend_below, palette, scale, style, targets_of
from analysis.figures.reference import Reference
from analysis.load.metrics import METRICS, Metric
from analysis.report.formatting import sensible
from suite.targets import BASELINE

_MOST_VECTORS = 2000
"""More dots than these are drawn as one image inside an SVG, which would otherwise grow by 100 bytes for each."""
_LATENCY = re.compile(r"latency-p(?P<percent>\d+)(?:-at-(?P<rate>[0-9.e+]+)-per-s)?")
_CLOSED = "one client, in a closed loop"
Panels = Mapping[str, Mapping[int, Metric]]


def every_trial(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield the throughput of each finished trial over the geometric mean of bare metal, so that outliers show.

    Nothing is drawn for probes, and of models that have no bare metal.
    """
    metric, groups = METRICS[0], comparison.groups
    base = {
        group.model: measured[metric.name].value
        for group in groups
        if metric.name in (measured := group.of_target(BASELINE))
    }
    if not base or comparison.trials.empty or comparison.jobs[0].traits.probes:
        return
    trials = comparison.trials[comparison.trials["model"].isin(list(base))]
    dots = pd.DataFrame({"model": trials["model"].astype(str), "target": trials["target"].astype(str)})
    dots["ratio"] = trials[metric.column] / dots["model"].map(base)
    with style():
        chart = _dots(dots, groups, [group.model for group in groups if group.model in base])
    text = "throughput of every single trial relative to bare metal's mean, one dot per trial"
    yield Drawing("trials", "Every trial", chart, description=text)


def _dots(dots: pd.DataFrame, groups: Sequence[Group], models: list[str]) -> Figure:
    targets = [target for target in targets_of(groups) if target in set(dots["target"])]
    chart = canvas(max(6.4, 2.0 + 0.75 * len(models) * len(targets)), 4.2)
    axes = chart.subplots()
    order = {"x": "model", "y": "ratio", "hue": "target", "order": models, "hue_order": targets}
    # Not jittered: the same records give the same picture, and equal values are to lie on each other.
    look = {"dodge": True, "jitter": False, "alpha": 0.6, "size": 6, "legend": False}
    sns.stripplot(dots, **order, **look, palette=palette(targets), rasterized=len(dots) > _MOST_VECTORS, ax=axes)
    scale(axes, dots["ratio"])
    if axes.get_yscale() == "linear":
        margin = 0.1 * (dots["ratio"].max() - dots["ratio"].min()) or 0.1
        axes.set_ylim(dots["ratio"].min() - margin, dots["ratio"].max() + margin)
    below = f"{groups[0].job}\none dot per trial, over the geometric mean of {BASELINE}"
    label(axes, "Every trial: throughput", below, f"relative to {BASELINE}", normalised=True)
    entries = legend(groups, targets)
    for entry in entries:
        entry.set_hatch("")
    legend_below(chart, entries, len(targets))
    return chart


def latency_lines(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield one drawing per model that was served."""
    for group in comparison.groups:
        if panels := _panels(group):
            title = f"Latency of {group.model} by percentile"
            with style():
                chart = _latencies(group, panels, title)
            yield Drawing(f"{group.model}-latency", title, chart, description="in ms; the table holds the values")


def _panels(group: Group) -> Panels:
    """Return the latencies of a model by the way in which requests came, and by percentile."""
    panels: dict[str, dict[int, Metric]] = {}
    for metric in group.metrics:
        name = _LATENCY.fullmatch(metric.name)
        if name and metric.name in group.measured:
            way = f"{name['rate']} requests/s, answered or not" if name["rate"] else _CLOSED
            panels.setdefault(way, {})[int(name["percent"])] = metric
    return panels


def _latencies(group: Group, panels: Panels, title: str) -> Figure:
    targets = targets_of([group])
    chart = canvas(max(6.4, 4.2 * len(panels)), 4.2)
    every = chart.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (way, metrics) in zip(every, panels.items(), strict=True):
        _lines(axes, group, metrics)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        unit = next(iter(metrics.values())).unit
        below = f"{way}\nbars: the 95 % interval of the ratio to {BASELINE}"
        label(axes, title if axes is every[0] else "", below, unit, normalised=False)
    legend_below(chart, legend([group], targets), len(targets))
    return chart


def _lines(axes: Axes, group: Group, metrics: Mapping[int, Metric]) -> None:
    percents = sorted(metrics)
    colours = palette([summary.target for summary in group.targets])
    look: dict[str, Any] = {"marker": "o", "markersize": 5, "linewidth": 1.5}
    names = {place: metrics[percent].name for place, percent in enumerate(percents)}
    for summary in group.targets:
        measured = group.of_target(summary.target)
        points = {place: measured[name] for place, name in names.items() if name in measured}
        colour = colours[summary.target]
        axes.plot(list(points), [one.value or float("nan") for one in points.values()], color=colour, **look)
        for place, one in points.items():
            if one.value and one.ratio and one.interval and sensible(one.interval):
                low, high = (one.value / one.ratio * end for end in one.interval)
                axes.vlines(place, low, high, color=colour, linewidth=1)
    axes.set_xticks(range(len(percents)), [f"p{each}" for each in percents])
