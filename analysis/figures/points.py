"""Points: every trial as a dot, which bars of a mean cannot show, and lines through them.

Lines are the latencies of a service by percentile, the speed-up over the number of workers beside the ideal, and time
and memory by the number of instances that were opened together. An arm with a price is a point of time and money.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from analysis.compare.results import Arm, Comparison, Contrast, Effect, Group, Measured
from analysis.compare.scaling import EACH, TIMES
from analysis.costs.job import TIME
from analysis.costs.prices import RATES
from analysis.figures import drawing
from analysis.figures.reference import Reference
from analysis.load.metrics import METRICS, Metric
from analysis.report.costs import arms, name_of
from analysis.report.formatting import drawable, hidden, notes_of
from analysis.report.sweeps.scaling import named
from suite.targets import BASELINE
from suite.trial_names import instances_in
from suite.units import count

_MOST_VECTORS = 2000
"""More dots than these are drawn as one image inside an SVG, which would otherwise grow by 100 bytes for each."""
_LATENCY = re.compile(r"latency-p(?P<percent>\d+)(?:-at-(?P<rate>[0-9.e+]+)-per-s)?")
_CLOSED = "one client, in a closed loop"
_MARKERS = "osD^vPX*"
Panels = Mapping[str, Mapping[int, Metric]]


def every_trial(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield the throughput of each finished training over bare metal's geometric mean, so that outliers show."""
    metric, groups = METRICS[0], comparison.groups
    base = {
        group.model: measured[metric.name].value
        for group in groups
        if metric.name in (measured := drawable(group.of_target(BASELINE)))
    }
    if not base or comparison.trials.empty or comparison.jobs[0].traits.probes:
        return
    trials = comparison.trials[comparison.trials["model"].isin(list(base))]
    dots = pd.DataFrame({"model": trials["model"].astype(str), "target": trials["target"].astype(str)})
    dots["ratio"] = trials[metric.column] / dots["model"].map(base)
    with drawing.style():
        chart = _dots(dots, groups, [group.model for group in groups if group.model in base])
    text = "throughput of every single trial relative to bare metal's mean, one dot per trial"
    yield drawing.Drawing("trials", "Every trial", chart, description=text)


def _dots(dots: pd.DataFrame, groups: Sequence[Group], models: list[str]) -> Figure:
    legend = {target: entry for target, entry in drawing.legend(groups).items() if target in set(dots["target"])}
    targets = [*legend]
    chart = drawing.canvas(max(6.4, 2.0 + 0.75 * len(models) * len(targets)), 4.2)
    axes = chart.subplots()
    order = {"x": "model", "y": "ratio", "hue": "target", "order": models, "hue_order": targets}
    # Not jittered: the same records give the same picture, and equal values are to lie on each other.
    look = {"dodge": True, "jitter": False, "alpha": 0.6, "size": 6, "legend": False, "ax": axes}
    sns.stripplot(dots, **order, **look, palette=drawing.palette(targets), rasterized=len(dots) > _MOST_VECTORS)
    drawing.scale(axes, dots["ratio"])
    if axes.get_yscale() == "linear":
        margin = 0.1 * (dots["ratio"].max() - dots["ratio"].min()) or 0.1
        axes.set_ylim(dots["ratio"].min() - margin, dots["ratio"].max() + margin)
    below = f"{groups[0].job}\none dot per trial, over the geometric mean of {BASELINE}"
    drawing.label(axes, "Every trial: throughput", below, f"relative to {BASELINE}", normalised=True)
    for entry in legend.values():
        entry.set_hatch("")
    drawing.legend_below(chart, [*legend.values()], len(targets))
    return chart


def latency_lines(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield one drawing per model that was served."""
    for group in comparison.groups:
        if panels := _panels(group):
            title = f"Latency of {group.model} by percentile"
            with drawing.style():
                chart = _latencies(group, panels, title)
            text = "in ms; the table holds the values"
            yield drawing.Drawing(f"{group.model}-latency", title, chart, description=text)


def _panels(group: Group) -> Panels:
    """Return the latencies of a model by the way in which requests came, and by percentile."""
    panels: dict[str, dict[int, Metric]] = {}
    for metric in group.metrics:
        name = _LATENCY.fullmatch(metric.name)
        if name and any(metric.name in drawable(group.of_target(one.target)) for one in group.targets):
            way = f"{name['rate']} requests/s, answered or not" if name["rate"] else _CLOSED
            panels.setdefault(way, {})[int(name["percent"])] = metric
    return panels


def _latencies(group: Group, panels: Panels, title: str) -> Figure:
    legend = drawing.legend([group])
    chart = drawing.canvas(max(6.4, 4.2 * len(panels)), 4.2)
    every = chart.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (way, metrics) in zip(every, panels.items(), strict=True):
        _lines(axes, group, metrics)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        unit = next(iter(metrics.values())).unit
        below = f"{way}\nbars: the 95 % interval of the ratio to {BASELINE}"
        drawing.label(axes, title if axes is every[0] else "", below, unit, normalised=False)
    drawing.legend_below(chart, [*legend.values()], len(legend))
    return chart


def _lines(axes: Axes, group: Group, metrics: Mapping[int, Metric]) -> None:
    percents = sorted(metrics)
    colours = drawing.palette([summary.target for summary in group.targets])
    look: dict[str, Any] = {"marker": "o", "markersize": 5, "linewidth": 1.5}
    names = {place: metrics[percent].name for place, percent in enumerate(percents)}
    for summary in group.targets:
        measured = drawable(group.of_target(summary.target))
        points = {place: measured[name] for place, name in names.items() if name in measured}
        colour = colours[summary.target]
        axes.plot(list(points), [one.value or float("nan") for one in points.values()], color=colour, **look)
        for place, one in points.items():
            if one.value and one.ratio and one.interval:
                low, high = (one.value / one.ratio * end for end in one.interval)
                axes.vlines(place, low, high, color=colour, linewidth=1)
    axes.set_xticks(range(len(percents)), [f"p{each}" for each in percents])


def speed_up_lines(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield a drawing for each model and kind of scaling."""
    kinds = ((kind, arm, measured) for kind in ("strong", "weak") for arm, measured in comparison.of_kind(kind).items())
    for (kind, model), rows in groupby(kinds, lambda row: (row[0], row[1].model)):
        title = f"{kind.capitalize()} scaling of {model}"
        arms = [(arm, measured) for _, arm, measured in rows]
        notes = {arm.target: notes_of(measured) for arm, measured in arms}
        smallest = Effect(ratio=1.0)
        speed_ups = [(arm, of.get("speed-up", smallest)) for arm, of in arms]
        points = [(arm, arm.division.workers, one) for arm, one in speed_ups if arm.division and not hidden(one)]
        if all(one is smallest for *_, one in points):
            continue
        with drawing.style():
            chart = _speed_ups(points, notes, title)
        text = "speed-up; the table holds the values"
        yield drawing.Drawing(f"{model}-{kind}-scaling", title, chart, description=text)


def _speed_ups(points: Sequence[tuple[Arm, int, Effect]], notes: Mapping[str, tuple[str, ...]], title: str) -> Figure:
    chart = drawing.canvas(6.4, 4.2)
    axes = chart.subplots()
    targets = {target: [*of_target] for target, of_target in groupby(points, lambda point: point[0].target)}
    colours, numbers = drawing.palette([*targets]), sorted({workers for _, workers, _ in points})
    for target, of_target in targets.items():
        ratios = [speed_up.ratio or 1.0 for *_, speed_up in of_target]
        axes.plot([workers for _, workers, _ in of_target], ratios, marker="o", color=colours[target])
    for arm, workers, speed_up in points:
        axes.vlines(workers, *(speed_up.interval or [speed_up.ratio or 1.0] * 2), color=colours[arm.target])
    axes.plot(numbers, [workers / numbers[0] for workers in numbers], linestyle=":", color="0.2")
    axes.set_xticks(numbers)
    below = f"over {count(numbers[0], 'worker')}, with 95 % intervals; dotted: the ideal"
    drawing.label(axes, title, below, "speed-up", normalised=False)
    axes.set_xlabel("workers")
    drawing.legend_below(chart, [drawing.entry(target, notes[target]) for target in targets], len(targets))
    return chart


def together_lines(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield a drawing for each job whose trials opened several instances: time beside memory."""
    for job, of_job in groupby(comparison.of_kind("together").items(), lambda item: item[0].job):
        lines: dict[str, dict[int, Measured]] = {}
        for arm, measured in of_job:
            if drawable(measured):
                lines.setdefault(named(arm), {})[instances_in(arm.model)] = drawable(measured)
        if not lines:
            continue
        title = "Opened together"
        with drawing.style():
            chart = drawing.canvas(9.6, 4.2)
            for axes, metric, unit in zip(chart.subplots(1, 2), (TIMES[0], EACH[0]), ("s", "MB each"), strict=True):
                _together(axes, lines, metric)
                axes.set_ylim(bottom=0)
                below = f"{metric.name}; {job}\nmean over the blocks, with 95 % intervals"
                drawing.label(axes, title * (metric is TIMES[0]), below, unit, normalised=False)
                axes.set_xlabel("instances")
                axes.set_xticks(sorted(set[int]().union(*lines.values())))
            chart.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        yield drawing.Drawing("together", title, chart, description="in s and MB; the table holds the values")


def _together(axes: Axes, lines: Mapping[str, Mapping[int, Measured]], metric: Metric) -> None:
    """Draw a line for each name, of one metric by the number of instances."""
    for place, (name, of_name) in enumerate(lines.items()):
        points = {number: of[metric.name] for number, of in of_name.items() if metric.name in of}
        colour = f"C{place}"
        values = [points[number].value or 0.0 for number in sorted(points)]
        axes.plot(sorted(points), values, color=colour, marker=_MARKERS[place % len(_MARKERS)], label=name)
        for number, one in points.items():
            axes.vlines(number, *(one.value_interval or [one.value or 0.0] * 2), color=colour, linewidth=1)


def time_money(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield one drawing for each kind of price."""
    every = {arm: drawable(measured) for arm, measured in arms(comparison).items()}
    for name in RATES:
        points = {arm: (row[TIME.name], row[name]) for arm, row in every.items() if {TIME.name, name} <= {*row}}
        if not points:
            continue
        title = f"Time and {name.replace('-', ' on ')} of a job"
        colours, currency = drawing.palette([arm.target for arm in points]), next(iter(points.values()))[1].metric.unit
        with drawing.style():
            chart = drawing.canvas(6.4, 4.6)
            axes = chart.subplots()
            for arm, pair in points.items():
                (x, across), (y, up) = map(_point, pair)
                look: dict[str, Any] = {"fmt": drawing.MARKERS.get(arm.target, "P"), "color": colours[arm.target]}
                axes.errorbar(x, y, up, across, capsize=3, **look)
                axes.annotate(name_of(arm, every), (x, y), xytext=(6, 6), textcoords="offset points", fontsize=9)
            drawing.label(axes, title, "with 95 % intervals; better is left and below", currency, normalised=False)
            axes.set_xlabel("seconds")
            axes.margins(0.2)
        drawing.stamp(chart, next(iter(points)).job.profile)
        yield drawing.Drawing(f"time-{name}", title, chart, description="the table holds the values")


def _point(row: Contrast) -> tuple[float, list[list[float]]]:
    """Return the value, and how far its interval reaches below and above."""
    value = row.value or 0.0
    low, high = row.value_interval or (value, value)
    return value, [[value - low], [high - value]]
