"""Latency against rate: what each target answers in at each rate of requests, up to where it cannot keep up."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from analysis.compare.rates import AT_RATE
from analysis.compare.results import Comparison, Contrast, Group
from analysis.figures import drawing
from analysis.figures.colours import palette
from analysis.figures.lettering import label
from analysis.figures.reference import Reference
from analysis.report.formatting import drawable

_PERCENTILES = {"p50": "-", "p95": "--", "p99": ":"}
"""The style of the line of each percentile."""
_KNEE = "knee"
_LEAST_RATES = 2
Curve = Mapping[float, Contrast]
"""A metric of one target by the rate, from the lowest."""
Panel = Mapping[tuple[str, str], Curve]
"""The curves of one latency by target and percentile."""


def rate_lines(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield one drawing for each server that was asked at several rates."""
    for group in comparison.groups:
        panels = _panels(group)
        if not panels:
            continue
        title = f"Latency of {group.model} by rate"
        drawn = drawing.of_a_page(list(panels.items()))
        with drawing.style():
            chart = _chart(group, dict(drawn), title)
        yield drawing.Drawing(
            f"{group.model}-latency-by-rate",
            title,
            chart,
            description="in ms by requests per second; the table holds the values",
            foot=drawing.left_out(len(drawn), len(panels), "panels"),
        )


def _panels(group: Group) -> dict[str, Panel]:
    """Return the curves by what was timed; without those of one rate, which are no curves."""
    panels: dict[str, dict[tuple[str, str], dict[float, Contrast]]] = {}
    for summary in group.targets:
        measured = drawable(group.of_target(summary.target))
        for name, contrast in measured.items():
            measured_at = AT_RATE.fullmatch(name)
            if not measured_at or contrast.value is None:
                continue
            timed, _, percentile = measured_at["name"].rpartition("-")
            curves = panels.setdefault(timed, {})
            curve = curves.setdefault((summary.target, percentile), {})
            curve[float(measured_at["rate"])] = contrast
    drawn: dict[str, Panel] = {}
    for timed, curves in panels.items():
        long_enough = {}
        for key, curve in curves.items():
            if len(curve) >= _LEAST_RATES:
                long_enough[key] = dict(sorted(curve.items()))
        if long_enough:
            drawn[timed] = long_enough
    return drawn


def _chart(group: Group, panels: Mapping[str, Panel], title: str) -> Figure:
    rows, columns = drawing.grid(len(panels))
    chart = drawing.canvas(max(6.4, 4.8 * columns), 4.2 * rows)
    every = list(chart.subplots(rows, columns, squeeze=False).flat)
    colours = palette([summary.target for summary in group.targets])
    knees = _knees(group)
    below = "95 % intervals; requests are sent whether those before are answered or not"
    if knees:
        below += "\nvertical lines: the knee, the highest rate that keeps the limit"
    for axes, (timed, curves) in zip(every, panels.items(), strict=True):
        for (target, percentile), curve in curves.items():
            look = {
                "color": colours[target],
                "linestyle": _PERCENTILES.get(percentile, "-."),
                "marker": drawing.MARKERS.get(target, "P"),
            }
            _draw(axes, curve, look)
        for target, rate in knees.items():
            axes.axvline(rate, color=colours[target], linewidth=2.5, zorder=1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        rates = sorted(set[float]().union(*curves.values()))
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        towards = drawing.direction("ms", more_is_better=False)
        label(
            axes,
            title if axes is every[0] else "",
            f"{timed}; {below}",
            f"ms\n{towards}",
            normalised=False,
        )
        axes.set_xlabel("requests per second")
    keys = chain.from_iterable(panels.values())
    percentiles = list(dict.fromkeys(percentile for _, percentile in keys))
    entries = _entries(group, percentiles)
    drawing.legend_below(chart, entries, len(group.targets) + len(percentiles))
    return chart


def _draw(axes: Axes, curve: Curve, look: dict[str, Any]) -> None:
    heights = [contrast.value or math.nan for contrast in curve.values()]
    axes.plot(list(curve), heights, markersize=5, linewidth=1.5, **look)
    for rate, contrast in curve.items():
        if contrast.value_interval:
            low, high = contrast.value_interval
            axes.vlines(rate, low, high, color=look["color"], linewidth=1)


def _knees(group: Group) -> dict[str, float]:
    """Return the knee of each target that has one in all of its trials."""
    knees = {}
    for summary in group.targets:
        measured = drawable(group.of_target(summary.target))
        knee = measured.get(_KNEE)
        if knee and knee.value is not None:
            knees[summary.target] = knee.value
    return knees


def _entries(group: Group, percentiles: Sequence[str]) -> list[Any]:
    legend = drawing.legend([group])
    entries: list[Any] = drawing.dot_entries(legend)
    for percentile in percentiles:
        look: dict[str, Any] = {"color": "0.3", "linestyle": _PERCENTILES.get(percentile, "-.")}
        entries.append(Line2D([], [], label=percentile, **look))
    return entries
