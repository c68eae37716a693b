"""Targets next to each other: dots of ratios to bare metal, else bars, with the measured value above each.

They carry 95 % intervals, the noise floor as lines around 1, and published values as markers. Values of keys are bars
over the base; along the axis stands everything in which the bars of a place agree.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.compare.results import Comparison, Contrast, Group
from analysis.figures import drawing
from analysis.figures.lettering import above, fit_names, label, places_of_panels, rotation_of_values
from analysis.figures.reference import PAPER, SOURCE, Reference, figure_of, kind_of
from analysis.load.metrics import Metric
from analysis.report.formatting import floor as floor_words
from analysis.report.formatting import hidden, notes_by_target, readable, rows_by_key, shown, visible
from analysis.statistics.ratios import NoiseFloor
from suite.records.record import EPOCH, EPOCH_METRICS
from suite.targets import BASELINE
from suite.units import number

_NAN = float("nan")
_NUMBERS = ("value", "ratio", "low", "high", "published", "least", "most")
"""What a bar may have, and has as ``_NAN`` where it has not."""
_PUBLISHED: dict[str, Any] = {
    "marker": "D",
    "s": 42,
    "facecolor": "white",
    "edgecolor": "black",
    "linewidth": 1.3,
    "label": SOURCE,
    "zorder": 4,
}
_MARKS = ("interval", "floor", "published", "range")
"""What is drawn besides the targets, in the order of the legend."""
_PANEL_INCHES = 2.8
_AROUND_PANELS_INCHES = 2.0
"""The height of a panel, and of the letters around all of them."""
Cell = tuple[str, Group, Metric]
"""A place along the axis, and what its bars are of."""


@dataclass(frozen=True)
class Bars:
    chart: Figure
    foot: str
    """What the foot says of them; empty where there is room for everything."""


def training_bars(comparison: Comparison, reference: Reference) -> Iterator[drawing.Drawing]:
    """Yield one drawing per metric that a training measured: the models that have it along the axis."""
    job = comparison.jobs[0]
    if job.traits.probes or not job.traits.normalised:
        return
    cells_of: dict[Metric, list[Cell]] = {}
    for group in comparison.groups:
        for metric in shown(group.metrics):
            if visible(_of_targets(group, metric)) and metric.name not in EPOCH_METRICS:
                cells = cells_of.setdefault(metric, [])
                cells.append((group.model, group, metric))
    columns = Counter(metric.column for metric in cells_of)
    for metric, cells in cells_of.items():
        name = "-".join(filter(None, (metric.model, metric.name)))
        if columns[metric.column] > 1:
            unit = metric.unit.partition("/")[0]
            name = f"{name}-{unit}"
        figure = figure_of(comparison, name)
        subjects = (metric.name, f"{job.scenario} scenario", job.data_words)
        title = drawing.title_of(figure, ", ".join(filter(None, subjects)))
        bars = _chart(cells, title, metric.unit or metric.name, reference)
        yield drawing.Drawing(name, title, bars.chart, figure, foot=bars.foot)


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
        data = comparison.jobs[0].data_words
        title = ", ".join(filter(None, ("Time per epoch", data)))
        bars = _chart(cells, title, "s")
        yield drawing.Drawing("time-per-epoch", title, bars.chart, foot=bars.foot)


def probe_bars(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield one drawing per probe: its metrics along the axis."""
    for group in comparison.groups:
        if not group.job.traits.probes:
            continue
        if not any(visible(_of_targets(group, metric)) for metric in group.metrics):
            continue
        cells = []
        for metric in group.metrics:
            better = ", ".join(filter(None, (metric.unit, f"{metric.better} is better")))
            cells.append((f"{metric.name}\n{better}", group, metric))
        heading = f"{group.job.scenario.capitalize()}: {group.model}"
        bars = _chart(cells, heading, "the measured value")
        title = f"The probe {group.model}: every metric on every target"
        yield drawing.Drawing(group.model, title, bars.chart, foot=bars.foot)


def _of_targets(group: Group, metric: Metric) -> list[Contrast]:
    contrasts = []
    for summary in group.targets:
        contrast = group.of_target(summary.target).get(metric.name)
        if contrast:
            contrasts.append(contrast)
    return contrasts


def _chart(cells: Sequence[Cell], title: str, unit: str, reference: Reference | None = None) -> Bars:
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
    return draw_bars(
        pd.DataFrame(bars),
        drawing.legend(groups),
        floors,
        title,
        str(first.job),
        unit,
        first.base,
        towards,
    )


def _printed(group: Group, metric: Metric, target: str, reference: Reference) -> dict[str, float]:
    """Return the value that the paper's figures print of a bar, or the range that its text gives one of its sizes."""
    job = group.job
    bar_of_paper = (
        job.scenario,
        kind_of(job.data),
        group.model,
        target,
        metric.name,
    )
    value = reference.get(bar_of_paper)
    least = most = _NAN
    if value is None and reference and job.profile == PAPER:
        least, most = drawing.printed_range(job, group.model, target, metric.name)
    published = _NAN if value is None or target == BASELINE else value
    return {"published": published, "least": least, "most": most}


def bar(place: str, target: str, row: Contrast | None) -> dict[str, Any]:
    """Return what is drawn of a contrast, if there is one."""
    numbers = dict.fromkeys(_NUMBERS, _NAN)
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
) -> Bars:
    """Draw dots by ``place`` and ``target`` of the ``ratio`` to ``over``, or bars of the ``value`` if none has one.

    ``towards``: what the ends of the axis of ratios mean; empty where it differs from place to place. In a column,
    places that have no room side by side have panels below each other.
    """
    unit = _in_hours_if_long(bars, unit)
    normalised = bool(bars["ratio"].notna().any())
    bars["height"] = bars["ratio"] if normalised else bars["value"]
    bars["top"] = bars[["height", "high"]].max(axis=1)
    names = list(bars["place"].unique())
    targets = list(legend)
    width = drawing.size(len(names), len(targets))
    panels = places_of_panels(names, len(targets), drawing.fitted(width))
    drawn = drawing.of_a_page(panels)
    what = f"{unit}, not normalised"
    if normalised:
        what = f"relative to {over}\n{towards}".rstrip()
    marks: dict[str, Artist | Container] = {}
    outside: list[str] = []
    dotted = False
    with drawing.style():
        chart = drawing.canvas(width, _AROUND_PANELS_INCHES + _PANEL_INCHES * len(drawn))
        for row, places in enumerate(drawn):
            axes = chart.add_subplot(len(drawn), 1, row + 1)
            of_panel = bars[bars["place"].isin(places)].copy()
            of_places = {name: floor for name, floor in floors.items() if name in places}
            marks |= _panel(axes, of_panel, places, targets, of_places, normalised=normalised)
            outside += _floors_outside(axes, of_places)
            dotted = dotted or _is_dotted(axes, normalised=normalised)
            values = _write_values(axes, of_panel, len(targets), dotted=dotted)
            heading = ""
            below = ""
            if row == 0:
                heading = title
                below = f"{job}\n{values}{unit}"
            label(axes, heading, below, what, normalised=normalised)
        entries: list[Artist | Container] = [*legend.values()]
        if dotted:
            entries = drawing.dot_entries(legend)
        entries += [marks[name] for name in _MARKS if name in marks]
        drawing.legend_below(chart, entries, len(targets))
    facts = [drawing.left_out(sum(map(len, drawn)), len(names), "places along the axis")]
    if outside:
        facts.append(f"noise floor outside the axis: {', '.join(outside)}")
    return Bars(chart, "; ".join(filter(None, facts)))


def _in_hours_if_long(bars: pd.DataFrame, unit: str) -> str:
    """Turn long times into hours, and return the unit of the values."""
    if unit != "s" or bars["value"].max() < drawing.HOURS_FROM_S:
        return unit
    bars["value"] /= 3600
    return "hours"


def _is_dotted(axes: Axes, *, normalised: bool) -> bool:
    """Return whether values are dots: ratios are, and so is what stands on an axis without a zero."""
    return normalised or axes.get_yscale() == "log"


def _panel(
    axes: Axes,
    bars: pd.DataFrame,
    places: Sequence[str],
    targets: Sequence[str],
    floors: Mapping[str, NoiseFloor],
    *,
    normalised: bool,
) -> dict[str, Artist | Container]:
    """Draw the bars of some places, whose middles become ``x``; return the further entries of the legend by mark."""
    drawing.grouped(axes, bars, places, targets)
    published = bars[:0]
    if normalised:
        published = bars[bars["published"].notna()]
    heights = [bars["height"], bars["low"], bars["top"], published["published"]]
    drawing.scale(axes, pd.concat(heights), around_one=normalised)
    drawing.keep_widths(axes, len(places), len(targets))
    fit_names(axes, places)
    if _is_dotted(axes, normalised=normalised):
        drawing.dots(axes, bars)
    marks: dict[str, Artist | Container | None] = {}
    if normalised:
        marks["interval"] = drawing.intervals(axes, bars)
        marks["range"] = drawing.ranges(axes, bars, len(targets))
        marks["floor"] = _floors(axes, floors, places)
    if len(published):
        aside = published["x"] + 0.25 * drawing.WIDTH / len(targets)  # of the interval and the value
        marks["published"] = axes.scatter(aside, published["published"], **_PUBLISHED)
    return {name: mark for name, mark in marks.items() if mark is not None}


def _write_values(axes: Axes, bars: pd.DataFrame, targets: int, *, dotted: bool) -> str:
    """Write the measured value above each mark if there is room, and why there is no mark; return where values are."""
    floor = axes.get_ylim()[0]
    gap = 8 if dotted else 4  # clear of a dot
    has_height = bars["height"].notna()
    drawn = bars[has_height & bars["value"].notna()]
    texts = list(map(number, drawn["value"]))
    rotation = rotation_of_values(axes, texts, targets)
    if rotation is not None:
        for bar, text in zip(drawn.to_dict("records"), texts, strict=True):
            above(
                axes,
                text,
                bar["x"],
                bar["top"],
                rotation=rotation,
                xytext=(0, gap),
            )
    for bar in bars[~has_height].to_dict("records"):
        above(
            axes,
            _why_not(bar),
            bar["x"],
            floor,
            rotation=90,
            xytext=(0, gap),
        )
    if rotation is None:
        return "values are in the table, in "
    return "above the marks: "


def _why_not(bar: Mapping[Any, Any]) -> str:
    """Return why a bar has no height, after its value if it has one."""
    if math.isnan(bar["value"]):
        return bar["why_not"] or "failed"
    why_not = bar["why_not"] or "not normalised"
    between = ", " if drawing.in_column() else "\n"  # a second line has no room there
    return f"{number(bar['value'])}{between}{why_not}"


def _is_visible(axes: Axes, floor: NoiseFloor) -> bool:
    """Return whether a line of a noise floor lies on the axis."""
    low, high = axes.get_ylim()
    top = 1 + floor.share
    return floor.share <= 1 and (low <= 1 / top or top <= high)


def _floors(axes: Axes, floors: Mapping[str, NoiseFloor], places: Sequence[str]) -> Artist | None:
    """Draw the noise floor of each place as lines around 1, if the axis holds one; return the entry of the legend."""
    lines = None
    for name, floor in floors.items():
        if not _is_visible(axes, floor):
            continue
        middle = places.index(name)
        top = 1 + floor.share
        lines = axes.hlines(
            [1 / top, top],
            middle - 0.46,
            middle + 0.46,
            colors="0.25",
            linestyles=":",
            label="noise floor",
            linewidth=1.2,
            zorder=3,
        )
    return lines


def _floors_outside(axes: Axes, floors: Mapping[str, NoiseFloor]) -> Iterator[str]:
    """Yield ``resnet50 45 %`` for each noise floor that the axis does not hold."""
    for name, floor in floors.items():
        if not _is_visible(axes, floor):
            subject = name.partition("\n")[0]
            yield f"{subject} {floor_words(floor.share)}"


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
        bars = _chart_of_values(rows, title)
        drawing.stamp(bars.chart, rows[0].job.profile)
        stem = "-".join(("by", *keys, name))
        yield drawing.Drawing(
            stem,
            title,
            bars.chart,
            description="the table holds the values",
            foot=bars.foot,
        )


def _chart_of_values(rows: Sequence[Contrast], title: str) -> Bars:
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
        place = "\n".join(filter(None, names))
        bars.append(bar(place, row.target, row))
    # With their keys: relative to rate=1, and not to 1.
    bases = dict.fromkeys(", ".join(row.base) for row in rows)
    notes = notes_by_target((row.target, row.notes) for row in rows)
    legend = {target: drawing.entry(target, texts) for target, texts in notes.items()}
    first = rows[0]
    towards = drawing.common_direction(row.metric for row in rows)
    return draw_bars(
        pd.DataFrame(bars),
        legend,
        {},
        title,
        str(first.job),
        first.metric.unit,
        " or ".join(bases),
        towards,
    )


def _values(cell: Sequence[str]) -> list[str]:
    return [value.partition("=")[2] for value in cell]
