"""Points: every trial as a dot, which bars of a mean cannot show, and lines through them.

Lines are the latencies of a service by percentile, the speed-up over the number of workers beside the ideal, and time
and memory by the number of instances that were opened together. An arm with a price is a point of time and money.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from matplotlib.transforms import Bbox

from analysis.compare.results import Arm, Comparison, Contrast, Effect, Group, Measured
from analysis.compare.scaling import EACH, TIMES
from analysis.costs.job import TIME
from analysis.costs.prices import RATES
from analysis.figures import drawing
from analysis.figures.colours import colour_of, palette
from analysis.figures.lettering import axes_inches, filled, fit_names, label
from analysis.figures.reference import Reference
from analysis.load.metrics import METRICS, Metric
from analysis.report.costs import arms, name_of
from analysis.report.formatting import drawable, hidden, notes_of
from analysis.report.sweeps.scaling import named
from suite.targets import BASELINE, TARGETS
from suite.trial_names import instances_in
from suite.units import count

_MOST_VECTORS = 2000
"""More dots than these are drawn as one image inside an SVG, which would otherwise grow by 100 bytes for each."""
_LATENCY = re.compile(r"latency-p(?P<percent>\d+)(?:-at-(?P<rate>[0-9.e+]+)-per-s)?")
_CLOSED = "one client, in a closed loop"
_MARKERS = "osD^vPX*"
_MARK = 4.0
_BESIDE = 6.0
_LETTER = 5.6
_LINE = 11.0
"""The half of a mark, how far a name stands from it, and the size of a name, in points."""
_MOST_NAMES = 6
_NAME_SHARE = 0.4
"""The most names that stand at their points, and the share of the axes' width that the longest one may have."""
_KEY_LETTERS = 40
"""The letters of a line of a name in the legend."""
Place = tuple[float, float]
Panels = Mapping[str, Mapping[int, Metric]]


def every_trial(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield the throughput of each finished training over bare metal's geometric mean, so that outliers show."""
    if comparison.trials.empty or comparison.jobs[0].traits.probes:
        return
    metric = METRICS[0]
    groups = comparison.groups
    measured = {group.model: drawable(group.of_target(group.base)) for group in groups}
    base = {model: of[metric.name].value for model, of in measured.items() if metric.name in of}
    if not base:
        return
    has_base = comparison.trials["model"].isin(list(base))
    trials = comparison.trials[has_base]
    models = trials["model"].astype(str)
    dots = pd.DataFrame(
        {
            "model": models,
            "target": trials["target"].astype(str),
            "ratio": trials[metric.column] / models.map(base),
        }
    )
    with drawing.style():
        chart = _dots(dots, groups, list(base))
    text = "throughput of every single trial relative to bare metal's mean, one mark per trial"
    yield drawing.Drawing("trials", "Every trial", chart, description=text)


def _dots(dots: pd.DataFrame, groups: Sequence[Group], models: list[str]) -> Figure:
    shown = set(dots["target"])
    legend = {target: entry for target, entry in drawing.legend(groups).items() if target in shown}
    targets = list(legend)
    chart = drawing.canvas(drawing.size(len(models), len(targets)), 4.2)
    axes = chart.subplots()
    middles = dots["model"].map(models.index)
    for index, (target, colour) in enumerate(palette(targets).items()):
        of_target = dots["target"] == target
        # Not jittered: the same records give the same picture, and equal values are to lie on each other.
        share = (index + 0.5) / len(targets)
        shift = (share - 0.5) * drawing.WIDTH
        axes.plot(
            middles[of_target] + shift,
            dots.loc[of_target, "ratio"],
            drawing.MARKERS.get(target, "P"),
            color=colour,
            markersize=drawing.points(6),
            markeredgecolor="0.1",
            markeredgewidth=0.4,
            rasterized=len(dots) > _MOST_VECTORS,
        )
    axes.set_xlim(-0.5, len(models) - 0.5)
    axes.grid(visible=False, axis="x")
    drawing.scale(axes, dots["ratio"], around_one=True)
    fit_names(axes, models)
    below = f"{groups[0].job}\none mark per trial, over the geometric mean of {groups[0].base}"
    label(
        axes,
        "Every trial: throughput",
        below,
        f"relative to {groups[0].base}\n{drawing.common_direction(METRICS[:1])}",
        normalised=True,
    )
    drawing.legend_below(chart, drawing.dot_entries(legend), len(targets))
    return chart


def latency_lines(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield one drawing per model that was served."""
    for group in comparison.groups:
        panels = _panels(group)
        if panels:
            title = f"Latency of {group.model} by percentile"
            drawn = drawing.of_a_page(list(panels.items()))
            with drawing.style():
                chart = _latencies(group, dict(drawn), title)
            text = "in ms; the table holds the values"
            yield drawing.Drawing(
                f"{group.model}-latency",
                title,
                chart,
                description=text,
                foot=drawing.left_out(len(drawn), len(panels), "panels"),
            )


def _panels(group: Group) -> Panels:
    """Return the latencies of a model by the way in which requests came, and by percentile."""
    panels: dict[str, dict[int, Metric]] = {}
    measured = [drawable(group.of_target(summary.target)) for summary in group.targets]
    drawn = set[str]().union(*measured)
    for metric in group.metrics:
        name = _LATENCY.fullmatch(metric.name)
        if name and metric.name in drawn:
            way = _CLOSED
            if name["rate"]:
                way = f"{name['rate']} requests/s, answered or not"
            percent = int(name["percent"])
            panels.setdefault(way, {})[percent] = metric
    return panels


def _latencies(group: Group, panels: Panels, title: str) -> Figure:
    legend = drawing.legend([group])
    rows, columns = drawing.grid(len(panels))
    chart = drawing.canvas(max(6.4, 4.2 * columns), 4.2 * rows)
    every = chart.subplots(rows, columns, sharey=True, squeeze=False)
    first = every[0][0]
    for axes, (way, metrics) in zip(every.flat, panels.items(), strict=True):
        _lines(axes, group, metrics)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        unit = next(iter(metrics.values())).unit
        below = f"{way}\nbars: the 95 % interval of the ratio to {BASELINE}"
        label(
            axes,
            title if axes is first else "",
            below,
            f"{unit}\n{drawing.common_direction(metrics.values())}",
            normalised=False,
        )
    for axes in every[:, 1:].flat:  # they share the axis of the first
        axes.set_ylabel("")
    drawing.legend_below(chart, drawing.dot_entries(legend), len(legend))
    return chart


def _lines(axes: Axes, group: Group, metrics: Mapping[int, Metric]) -> None:
    percents = sorted(metrics)
    colours = palette([summary.target for summary in group.targets])
    look: dict[str, Any] = {"markersize": 5, "linewidth": 1.5}
    for summary in group.targets:
        measured = drawable(group.of_target(summary.target))
        points = {}
        for tick, percent in enumerate(percents):
            name = metrics[percent].name
            if name in measured:
                points[tick] = measured[name]
        colour = colours[summary.target]
        heights = [latency.value or float("nan") for latency in points.values()]
        marker = drawing.MARKERS.get(summary.target, "P")
        axes.plot(list(points), heights, color=colour, marker=marker, **look)
        for tick, latency in points.items():
            if latency.value and latency.ratio and latency.interval:
                base = latency.value / latency.ratio
                low, high = latency.interval
                axes.vlines(tick, base * low, base * high, color=colour, linewidth=1)
    axes.set_xticks(range(len(percents)), [f"p{percent}" for percent in percents])


def speed_up_lines(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield a drawing for each model and kind of scaling."""
    for kind in ("strong", "weak"):
        of_kind = comparison.of_kind(kind).items()
        for model, rows in groupby(of_kind, lambda row: row[0].model):
            title = f"{kind.capitalize()} scaling of {model}"
            arms = dict(rows)
            notes = {arm.target: _brief(notes_of(measured)) for arm, measured in arms.items()}
            smallest = Effect(ratio=1.0)
            points = {}
            for arm, measured in arms.items():
                speed_up = measured.get("speed-up", smallest)
                if arm.division and not hidden(speed_up):
                    points[arm] = speed_up
            if all(speed_up is smallest for speed_up in points.values()):
                continue
            with drawing.style():
                chart = _speed_ups(points, notes, title)
            text = "speed-up; the table holds the values"
            yield drawing.Drawing(
                f"{model}-{kind}-scaling",
                title,
                chart,
                description=text,
            )


def _brief(notes: Sequence[str]) -> tuple[str, ...]:
    """Return notes without the numbers in parentheses, which the table has."""
    return tuple(note.partition(" (")[0] for note in notes)


def _speed_ups(points: Mapping[Arm, Effect], notes: Mapping[str, tuple[str, ...]], title: str) -> Figure:
    chart = drawing.canvas(6.4, 4.2)
    axes = chart.subplots()
    numbers = sorted(set(map(_workers, points)))
    targets = list(dict.fromkeys(arm.target for arm in points))
    colours = palette(targets)
    for index, target in enumerate(targets):
        of_target = {arm: speed_up for arm, speed_up in points.items() if arm.target == target}
        workers = drawing.side_by_side(
            map(_workers, of_target),
            index,
            len(targets),
            numbers[-1] - numbers[0],
        )
        look = {
            "color": colours[target],
            "marker": drawing.MARKERS.get(target, "P"),
        }
        _speed_up_line(axes, workers, [*of_target.values()], look)
    ideal = [number / numbers[0] for number in numbers]
    axes.plot(numbers, ideal, linestyle=":", color="0.2")
    axes.set_xticks(numbers)
    below = f"over {count(numbers[0], 'worker')}, with 95 % intervals; dotted: the ideal"
    towards = drawing.common_direction(METRICS[:1])
    label(axes, title, below, f"speed-up\n{towards}", normalised=False)
    axes.set_xlabel("workers")
    entries = []
    for target in targets:
        text = drawing.entry(target, notes[target]).get_label()
        entries.append(drawing.dot_entry(target, str(text)))
    drawing.legend_below(chart, entries, len(targets))
    return chart


def _workers(arm: Arm) -> int:
    return arm.division.workers if arm.division else 0


def _speed_up_line(axes: Axes, workers: Sequence[float], points: Sequence[Effect], look: dict[str, Any]) -> None:
    heights = [speed_up.ratio or 1.0 for speed_up in points]
    axes.plot(workers, heights, markersize=5, linewidth=1.2, **look)
    for number, speed_up in zip(workers, points, strict=True):
        ratio = speed_up.ratio or 1.0
        low, high = speed_up.interval or (ratio, ratio)
        axes.vlines(number, low, high, color=look["color"])


def together_lines(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield a drawing for each job whose trials opened several instances: time beside memory."""
    for job, of_job in groupby(comparison.of_kind("together").items(), lambda item: item[0].job):
        lines: dict[str, dict[int, Measured]] = {}
        for arm, measured in of_job:
            drawn = drawable(measured)
            if drawn:
                lines.setdefault(named(arm), {})[instances_in(arm.model)] = drawn
        if not lines:
            continue
        title = "Opened together"
        numbers = sorted(set[int]().union(*lines.values()))
        with drawing.style():
            rows, columns = drawing.grid(2)
            chart = drawing.canvas(9.6, 4.2 * rows)
            left, right = chart.subplots(rows, columns)
            panels = (
                (left, TIMES[0], title, "s"),
                (right, EACH[0], "", "MB each"),
            )
            for axes, metric, heading, unit in panels:
                _together(axes, lines, metric)
                axes.set_ylim(bottom=0)
                below = f"{metric.name}; {job}\nmean over the blocks, with 95 % intervals"
                what = f"{unit}\n{drawing.common_direction([metric])}"
                label(axes, heading, below, what, normalised=False)
                axes.set_xlabel("instances")
                axes.set_xticks(numbers)
            handles, _ = right.get_legend_handles_labels()
            drawing.legend_below(chart, handles, len(handles))
        yield drawing.Drawing(
            "together",
            title,
            chart,
            description="in s and MB; the table holds the values",
        )


def _together(axes: Axes, lines: Mapping[str, Mapping[int, Measured]], metric: Metric) -> None:
    """Draw a line for each name, of one metric by the number of instances."""
    most = max(set[int]().union(*lines.values()))
    for index, (name, by_number) in enumerate(lines.items()):
        points = {}
        for number, measured in sorted(by_number.items()):
            if metric.name in measured:
                (place,) = drawing.side_by_side([number], index, len(lines), most)
                points[place] = measured[metric.name]
        colour: Any = f"C{index}"
        if name in TARGETS:
            colour = palette([name])[name]
        marker = drawing.MARKERS.get(name, _MARKERS[index % len(_MARKERS)])
        values = [point.value or 0.0 for point in points.values()]
        axes.plot(list(points), values, color=colour, marker=marker, label=name)
        for place, point in points.items():
            value = point.value or 0.0
            low, high = point.value_interval or (value, value)
            axes.vlines(place, low, high, color=colour, linewidth=1)


def time_money(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield one drawing for each kind of price."""
    every = {arm: drawable(measured) for arm, measured in arms(comparison).items()}
    for name in RATES:
        points = {arm: row for arm, row in every.items() if TIME.name in row and name in row}
        if not points:
            continue
        first, of_first = next(iter(points.items()))
        title = f"Time and {name.replace('-', ' on ')} of a job"
        currency = of_first[name].metric.unit
        longest_s = max(row[TIME.name].value or 0.0 for row in points.values())
        unit, unit_s = ("hours", 3600.0) if longest_s >= drawing.HOURS_FROM_S else ("seconds", 1.0)
        with drawing.style():
            chart = drawing.canvas(6.4, 4.6)
            axes = chart.subplots()
            names: dict[str, Place] = {}
            entries = []
            for arm, row in points.items():
                x, across = _point(row[TIME.name], unit_s)
                y, up = _point(row[name])
                axes.errorbar(
                    x,
                    y,
                    up,
                    across,
                    fmt=drawing.MARKERS.get(arm.target, "P"),
                    color=colour_of(arm.target),
                    capsize=3,
                )
                name_of_arm = name_of(arm, every)
                names[name_of_arm] = (x, y)
                numbered = filled(f"{len(names)}: {name_of_arm}", _KEY_LETTERS)
                entries.append(drawing.dot_entry(arm.target, numbered))
            label(axes, title, "with 95 % intervals; better is left and below", currency, normalised=False)
            axes.set_xlabel(unit)
            axes.margins(0.2)
            if not _have_room(axes, names):
                drawing.legend_below(chart, entries, len(entries))
                names = {str(number): point for number, point in enumerate(names.values(), start=1)}
            _name_points(chart, axes, names)
        drawing.stamp(chart, first.job.profile)
        yield drawing.Drawing(
            f"time-{name}",
            title,
            chart,
            description="the table holds the values",
        )


def _have_room(axes: Axes, names: Collection[str]) -> bool:
    """Return whether there is room for names at their points; else they are numbered, and the legend has the names."""
    longest = max(map(len, names))
    room = _NAME_SHARE * axes_inches(axes) * 72
    return len(names) <= _MOST_NAMES and drawing.points(_LETTER) * longest <= room


def _name_points(chart: Figure, axes: Axes, names: Mapping[str, Place]) -> None:
    """Write the name next to each point, or above what stands there, with a line to its point."""
    chart.draw_without_rendering()  # which lays out the axes
    in_points = {name: axes.transData.transform(place) * 72 / chart.dpi for name, place in names.items()}
    right_edge = axes.bbox.x1 * 72 / chart.dpi
    line_height = drawing.points(_LINE)
    boxes = [Bbox.from_bounds(x - _MARK, y - _MARK, 2 * _MARK, 2 * _MARK) for x, y in in_points.values()]
    upwards = sorted(names.items(), key=lambda item: item[1][1])
    for name, place in upwards:
        x, y = in_points[name]
        width = drawing.points(_LETTER) * len(name)
        look: dict[str, Any] = {
            "textcoords": "offset points",
            "fontsize": drawing.points(9),
            "in_layout": False,
        }
        aside = _BESIDE
        left = x + _BESIDE
        if left + width > right_edge:
            look["ha"] = "right"
            aside = -_BESIDE
            left = x - _BESIDE - width
        up = _BESIDE
        box = Bbox.from_bounds(left, y + up, width, line_height)
        while box.count_overlaps(boxes):
            up += line_height
            box = box.translated(0, line_height)
        boxes.append(box)
        if up > _BESIDE:
            look["arrowprops"] = {"arrowstyle": "-", "color": "0.5", "shrinkA": 0}
        axes.annotate(name, place, (aside, up), **look)


def _point(row: Contrast, unit: float = 1.0) -> tuple[float, list[list[float]]]:
    """Return the value in units of that size, and how far its interval reaches below and above."""
    value = row.value or 0.0
    low, high = row.value_interval or (value, value)
    below = (value - low) / unit
    above = (high - value) / unit
    return value / unit, [[below], [above]]
