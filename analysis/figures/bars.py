"""Targets next to each other: dots of ratios to bare metal, else bars, with the measured value above each.

They carry 95 % intervals, the noise floor as lines around 1, and published values as markers. Values of keys are bars
over the base; along the axis stands everything in which the bars of a place agree.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.compare.results import Comparison, Contrast, Group
from analysis.figures import drawing
from analysis.figures.reference import PAPER, SOURCE, Reference, figure_of, kind_of
from analysis.load.metrics import Metric
from analysis.report.formatting import hidden, notes_by_target, readable, rows_by_key, shown, visible
from analysis.statistics.ratios import NoiseFloor
from suite.records.record import EPOCH, EPOCH_METRICS
from suite.targets import BASELINE
from suite.units import number

_NAN = float("nan")
_PUBLISHED: dict[str, Any] = {
    "marker": "D",
    "s": 42,
    "facecolor": "white",
    "edgecolor": "black",
    "linewidth": 1.3,
    "label": SOURCE,
    "zorder": 4,
}
_VALUE_INCHES = 0.5
"""The width in a column of a value above a mark; of more marks it is turned."""
_VALUE_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
Cell = tuple[str, Group, Metric]
"""A place along the axis, and what its bars are of."""


def training_bars(comparison: Comparison, reference: Reference) -> Iterator[drawing.Drawing]:
    """Yield one drawing per metric that a training measured: the models that have it along the axis."""
    job = comparison.jobs[0]
    if job.traits.probes or not job.traits.normalised:
        return
    cells_of: dict[Metric, list[Cell]] = {}
    for group in comparison.groups:
        for metric in shown(group.metrics):
            if visible(_of_targets(group, metric)) and metric.name not in EPOCH_METRICS:
                cells_of.setdefault(metric, []).append((group.model, group, metric))
    columns = Counter(metric.column for metric in cells_of)
    for metric, cells in cells_of.items():
        name = "-".join(filter(None, (metric.model, metric.name)))
        if columns[metric.column] > 1:
            unit = metric.unit.partition("/")[0]
            name = f"{name}-{unit}"
        figure = figure_of(comparison, name)
        title = drawing.title_of(figure, f"{metric.name}, {job.scenario} scenario, {job.data} data")
        chart = _chart(cells, title, metric.unit or metric.name, reference)
        yield drawing.Drawing(name, title, chart, figure)


def time_per_epoch(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield one drawing: the time per epoch of every workload, as the paper on GANs in managed clusters draws it.

    Bars of whole epochs, of first ones and of scaled times can stand beside each other, and each says which it is.
    """
    cells: list[Cell] = []
    for group in comparison.groups:
        metric = group.epoch
        if metric and visible(_of_targets(group, metric)):
            name = "" if metric.name == EPOCH else metric.name
            cells.append((f"{group.model}\n{name}".strip(), group, metric))
    if cells:
        title = f"Time per epoch, {comparison.jobs[0].data} data"
        yield drawing.Drawing("time-per-epoch", title, _chart(cells, title, "s"))


def probe_bars(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield one drawing per probe: its metrics along the axis."""
    for group in comparison.groups:
        if not group.job.traits.probes:
            continue
        if not any(visible(_of_targets(group, metric)) for metric in group.metrics):
            continue
        cells = []
        # Neighbours must not run into each other.
        letters = int(drawing.BAR_INCHES * len(group.targets) / drawing.LETTER_INCHES)
        for metric in group.metrics:
            lines = textwrap.wrap(metric.name.replace("-", "- "), letters)
            name = "\n".join(lines).replace("- ", "-")
            better = textwrap.fill(", ".join(filter(None, (metric.unit, f"{metric.better} is better"))), letters)
            cells.append((f"{name}\n{better}", group, metric))
        chart = _chart(cells, f"{group.job.scenario.capitalize()}: {group.model}", "the measured value")
        title = f"The probe {group.model}: every metric on every target"
        yield drawing.Drawing(group.model, title, chart)


def _of_targets(group: Group, metric: Metric) -> list[Contrast]:
    every = (group.of_target(summary.target).get(metric.name) for summary in group.targets)
    return [contrast for contrast in every if contrast]


def _chart(cells: Sequence[Cell], title: str, unit: str, reference: Reference | None = None) -> Figure:
    """Draw the targets of every cell; with a reference, what the paper prints of those of its models."""
    bars = []
    floors: dict[str, NoiseFloor] = {}
    for name, group, metric in cells:
        for summary in group.targets:
            measured = group.of_target(summary.target)
            printed = _printed(group, metric, summary.target, reference or {})
            drawn = bar(name, summary.target, measured.get(metric.name)) | printed
            if measured and metric.name not in measured:
                drawn["why_not"] = "no value"
            bars.append(drawn)
        floor = group.noise(metric)
        if floor:
            floors[name] = floor
    groups = [group for _, group, _ in cells]
    first = groups[0]
    towards = drawing.common_direction(metric for _, _, metric in cells)
    legend = drawing.legend(groups)
    return draw_bars(pd.DataFrame(bars), legend, floors, title, str(first.job), unit, first.base, towards)


def _printed(group: Group, metric: Metric, target: str, reference: Reference) -> dict[str, float]:
    """Return the value that the paper's figures print of a bar, or the range that its text gives one of its sizes."""
    job = group.job
    value = reference.get((job.scenario, kind_of(job.data), group.model, target, metric.name))
    least = most = _NAN
    if value is None and reference and job.profile == PAPER:
        least, most = drawing.printed_range(job, group.model, target, metric.name)
    published = _NAN if value is None or target == BASELINE else value
    return {"published": published, "least": least, "most": most}


def bar(place: str, target: str, row: Contrast | None) -> dict[str, Any]:
    """Return what is drawn of a contrast, if there is one."""
    numbers = dict.fromkeys(("value", "ratio", "low", "high", "published", "least", "most"), _NAN)
    why_not = ""
    if row:
        why_not = hidden(row)
        drawn = readable(row)
        if drawn.value is not None:
            numbers["value"] = drawn.value
        if drawn.ratio is not None:
            numbers["ratio"] = drawn.ratio
        if drawn.interval:
            numbers["low"], numbers["high"] = drawn.interval
    return {"place": place, "target": target, **numbers, "why_not": why_not}


def draw_bars(
    bars: pd.DataFrame,
    legend: Mapping[str, Patch],
    floors: Mapping[str, NoiseFloor],
    title: str,
    job: str,
    unit: str,
    over: str,
    towards: str = "",
) -> Figure:
    """Draw dots by ``place`` and ``target`` of the ``ratio`` to ``over``, or bars of the ``value`` if none has one.

    ``towards``: what the ends of the axis of ratios mean; empty where it differs from place to place.
    """
    if unit == "s" and bars["value"].max() >= drawing.HOURS_FROM_S:
        bars["value"] /= 3600
        unit = "hours"
    normalised = bool(bars["ratio"].notna().any())
    bars["height"] = bars["ratio"] if normalised else bars["value"]
    places = list(bars["place"].unique())
    targets = list(legend)
    with drawing.style():
        chart = drawing.canvas(drawing.size(len(places), len(targets)), 4.8)
        axes = chart.subplots()
        drawing.grouped(axes, bars, places, targets)
        bars["top"] = bars[["height", "high"]].max(axis=1)
        if normalised:
            published = bars[bars["published"].notna()]
        else:
            published = bars[:0]
        heights = [bars["height"], bars["low"], bars["top"], published["published"]]
        drawing.scale(axes, pd.concat(heights), around_one=normalised)
        drawing.keep_widths(axes, len(places), len(targets))
        drawing.fit_names(axes, places, len(targets))
        dotted = normalised or axes.get_yscale() == "log"
        entries: list[Artist | Container | None] = [*legend.values()]
        if dotted:
            drawing.dots(axes, bars)
            entries = drawing.dot_entries(legend)
        _write_values(axes, bars, dotted=dotted)
        what = f"relative to {over}\n{towards}".rstrip() if normalised else f"{unit}, not normalised"
        drawing.label(axes, title, f"{job}\nabove the marks: {unit}", what, normalised=normalised)
        if normalised:
            entries.append(drawing.intervals(axes, bars))
            entries.append(_floors(axes, floors, places))
        if len(published):
            beside = published["x"] + 0.25 * drawing.WIDTH / len(targets)  # the interval and the value
            entries.append(axes.scatter(beside, published["published"], **_PUBLISHED))
        if normalised:
            entries.append(drawing.ranges(axes, bars, len(targets)))
        drawing.legend_below(chart, [entry for entry in entries if entry], len(targets))
    return chart


def _write_values(axes: Axes, bars: pd.DataFrame, *, dotted: bool) -> None:
    """Write the measured value above each mark; where there is none, why."""
    floor = axes.get_ylim()[0]
    crowded = drawing.in_column() and len(bars) * _VALUE_INCHES > drawing.fitted(0)
    gap = 8 if dotted else 4  # clear of a dot
    for bar in bars.to_dict("records"):
        drawn = not math.isnan(bar["height"])
        top = bar["top"] if drawn else floor
        rotation = 0 if drawn and not crowded else 90
        text = bar["why_not"] or "failed"
        if not math.isnan(bar["value"]):
            text = number(bar["value"])
            if not drawn:
                why_not = bar["why_not"] or "not normalised"
                text = f"{text}\n{why_not}"
        drawing.above(
            axes,
            text,
            bar["x"],
            top,
            rotation=rotation,
            xytext=(0, gap),
            bbox=_VALUE_BOX,
        )


def _floors(axes: Axes, floors: Mapping[str, NoiseFloor], places: Sequence[str]) -> Artist | None:
    """Draw the noise floor of each place as lines around 1, unless it is too noisy; return the entry of the legend."""
    lines = None
    for name, floor in floors.items():
        middle = places.index(name)
        top = 1 + floor.share
        if floor.share <= 1:
            look: dict[str, Any] = {"colors": "0.25", "linestyles": ":", "linewidth": 1.2, "zorder": 3}
            lines = axes.hlines(
                [1 / top, top],
                middle - 0.46,
                middle + 0.46,
                label="noise floor",
                **look,
            )
    return lines


def value_bars(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield one drawing for each metric of trainings, such as the time per epoch by model and data set."""
    by_metric: dict[str, list[Contrast]] = {}
    for row in rows_by_key(comparison):
        if not row.metric.of_probe:
            by_metric.setdefault(row.metric.name, []).append(row)
    for name, rows in by_metric.items():
        if not visible(rows):
            continue
        keys = [value.partition("=")[0] for value in rows[0].base]
        subject = "Time per epoch"
        if name not in EPOCH_METRICS:
            subject = name.capitalize()
        title = f"{subject} by {' and '.join(keys)}"
        chart = _chart_of_values(rows, title)
        drawing.stamp(chart, rows[0].job.profile)
        stem = "-".join(("by", *keys, name))
        yield drawing.Drawing(
            stem,
            title,
            chart,
            description="the table holds the values",
        )


def _chart_of_values(rows: Sequence[Contrast], title: str) -> Figure:
    models = {row.model for row in rows}
    jobs = {row.job for row in rows}
    bars = []
    for row in rows:
        # A place has the values, below the model and the settings if these differ from bar to bar.
        names = _values(row.arm.cell)
        if len(jobs) > 1 and row.job.variant:
            names.insert(0, row.job.variant)
        if len(models) > 1:
            names.insert(0, row.model)
        bars.append(bar("\n".join(filter(None, names)), row.target, row))
    bases = dict.fromkeys(", ".join(_values(row.base)) for row in rows)
    notes = notes_by_target((row.target, row.notes) for row in rows)
    legend = {target: drawing.entry(target, texts) for target, texts in notes.items()}
    job = str(rows[0].job)
    towards = drawing.common_direction(row.metric for row in rows)
    unit = rows[0].metric.unit
    return draw_bars(pd.DataFrame(bars), legend, {}, title, job, unit, " or ".join(bases), towards)


def _values(cell: Sequence[str]) -> list[str]:
    return [value.partition("=")[2] for value in cell]
