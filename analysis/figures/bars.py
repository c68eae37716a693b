"""Grouped bars: targets beside each other, normalised to bare metal, with the measured value above each.

They carry 95 % intervals, the noise floor as lines around 1, and published values as markers. Values of keys are bars
over the base; along the axis stands everything in which the bars of a place agree.
"""

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
        name += f"-{metric.unit.partition('/')[0]}" if columns[metric.column] > 1 else ""
        figure = figure_of(comparison, name)
        what = f"{metric.name}, {job.scenario} scenario, {job.data} data"
        title = f"Figure {figure}: {what}" if figure else f"{what[0].upper()}{what[1:]}"
        yield drawing.Drawing(name, title, _chart(cells, title, metric.unit or metric.name, reference), figure)


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
        if group.job.traits.probes and any(visible(_of_targets(group, metric)) for metric in group.metrics):
            cells = []
            for metric in group.metrics:
                # Broken at its hyphens, so that neighbours do not run into each other.
                name = "\n".join(textwrap.wrap(metric.name.replace("-", "- "), 22)).replace("- ", "-")
                cells.append((f"{name}\n{metric.unit}, {metric.better} is better", group, metric))
            title = f"The probe {group.model}: every metric on every target"
            yield drawing.Drawing(group.model, title, _chart(cells, f"Probe: {group.model}", "the measured value"))


def _of_targets(group: Group, metric: Metric) -> list[Contrast]:
    every = (group.of_target(summary.target).get(metric.name) for summary in group.targets)
    return [contrast for contrast in every if contrast]


def _chart(cells: Sequence[Cell], title: str, unit: str, reference: Reference | None = None) -> Figure:
    """Draw the targets of every cell; with a reference, what the paper prints of those of its models."""
    bars = pd.DataFrame(
        bar(name, target, group.of_target(target).get(metric.name)) | _printed(group, metric, target, reference or {})
        for name, group, metric in cells
        for target in (summary.target for summary in group.targets)
    )
    floors = {name: floor for name, group, metric in cells if (floor := group.noise(metric))}
    groups = [group for _, group, _ in cells]
    return draw_bars(bars, drawing.legend(groups), floors, title, str(groups[0].job), unit)


def _printed(group: Group, metric: Metric, target: str, reference: Reference) -> dict[str, float]:
    """Return the value that the paper's figures print of a bar, or the range that its text gives one of its sizes."""
    job, arm = group.job, (group.model, target, metric.name)
    value = reference.get((job.scenario, kind_of(job.data), *arm))
    in_text = value is None and reference and job.profile == PAPER
    least, most = drawing.printed_range(job, *arm) if in_text else (_NAN, _NAN)
    return {"published": _NAN if value is None or target == BASELINE else value, "least": least, "most": most}


def bar(place: str, target: str, row: Contrast | None) -> dict[str, Any]:
    """Return what is drawn of a contrast, if there is one."""
    drawn = row and readable(row)
    low, high = drawn.interval if drawn and drawn.interval else (_NAN, _NAN)
    numbers = {"value": drawn and drawn.value, "ratio": drawn and drawn.ratio, "low": low, "high": high}
    numbers |= dict.fromkeys(("published", "least", "most"))
    known = {key: _NAN if one is None else one for key, one in numbers.items()}
    return {"place": place, "target": target, **known, "why_not": hidden(row) if row else ""}


def draw_bars(
    bars: pd.DataFrame,
    legend: Mapping[str, Patch],
    floors: Mapping[str, NoiseFloor],
    title: str,
    job: str,
    unit: str,
    over: str = BASELINE,
) -> Figure:
    """Draw bars by ``place`` and ``target``: of the ``ratio`` to ``over``, or of the ``value`` if none has one."""
    normalised = bool(bars["ratio"].notna().any())
    bars["height"] = bars["ratio"] if normalised else bars["value"]
    places, targets = list(bars["place"].unique()), list(legend)
    with drawing.style():
        chart = drawing.canvas(max(6.4, 2.0 + 0.75 * len(places) * len(targets)), 4.8)
        axes = chart.subplots()
        drawing.grouped(axes, bars, places, targets)
        bars["top"] = bars[["height", "high"]].max(axis=1)
        published = bars[bars["published"].notna()] if normalised else bars[:0]
        drawing.scale(axes, pd.concat([bars["height"], bars["low"], bars["top"], published["published"]]))
        if axes.get_yscale() == "log":
            drawing.dots(axes, bars)
        _write_values(axes, bars)
        what = f"relative to {over}" if normalised else f"{unit}, not normalised"
        drawing.label(axes, title, f"{job}\nabove the marks: {unit}", what, normalised=normalised)
        entries: list[Artist | Container | None] = [*legend.values()]
        if normalised:
            entries += [drawing.intervals(axes, bars), _floors(axes, floors, places)]
        if len(published):
            beside = published["x"] + 0.25 * drawing.WIDTH / len(targets)  # the interval and the value
            look: dict[str, Any] = {"marker": "D", "s": 42, "facecolor": "white", "edgecolor": "black"}
            look |= {"linewidth": 1.3, "label": SOURCE, "zorder": 4}
            entries.append(axes.scatter(beside, published["published"], **look))
        if normalised:
            entries.append(drawing.ranges(axes, bars, len(targets)))
        drawing.legend_below(chart, [entry for entry in entries if entry], len(targets))
    return chart


def _write_values(axes: Axes, bars: pd.DataFrame) -> None:
    """Write the measured value above each bar; where there is no bar, why."""
    floor = axes.get_ylim()[0]
    for bar in bars.to_dict("records"):
        # A value that is not its own equal is NaN.
        measured, drawn = bar["value"] == bar["value"], bar["height"] == bar["height"]
        text = number(bar["value"]) if measured else "failed"
        if measured and not drawn:
            text = f"{text}\n{bar['why_not'] or 'not normalised'}"
        drawing.above(
            axes,
            text,
            *(bar["x"], bar["top"] if drawn else floor),
            rotation=0 if drawn else 90,
            xytext=(0, 8 if axes.get_yscale() == "log" else 4),  # clear of a dot
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )


def _floors(axes: Axes, floors: Mapping[str, NoiseFloor], places: Sequence[str]) -> Artist | None:
    """Draw the noise floor of each place as lines around 1, unless it is too noisy; return the entry of the legend."""
    lines = None
    for name, floor in floors.items():
        middle, top = places.index(name), 1 + floor.share
        if floor.share <= 1:
            look: dict[str, Any] = {"colors": "0.25", "linestyles": ":", "linewidth": 1.2, "zorder": 3}
            lines = axes.hlines([1 / top, top], middle - 0.46, middle + 0.46, label="noise floor", **look)
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
        title = f"{'Time per epoch' if name in EPOCH_METRICS else name.capitalize()} by {' and '.join(keys)}"
        chart = _chart_of_values(rows, title)
        drawing.stamp(chart, rows[0].job.profile)
        yield drawing.Drawing("-".join(("by", *keys, name)), title, chart, description="the table holds the values")


def _chart_of_values(rows: Sequence[Contrast], title: str) -> Figure:
    # A place has the values, below the model and the settings if these differ from bar to bar.
    models, jobs = len({row.model for row in rows}) > 1, len({row.job for row in rows}) > 1
    names = ((row.model * models, row.job.variant * jobs, *_values(row.arm.cell)) for row in rows)
    bars = pd.DataFrame(
        bar("\n".join(filter(None, parts)), row.target, row) for parts, row in zip(names, rows, strict=True)
    )
    over = " or ".join(dict.fromkeys(", ".join(_values(row.base)) for row in rows))
    notes = notes_by_target((row.target, row.notes) for row in rows)
    legend = {target: drawing.entry(target, texts) for target, texts in notes.items()}
    return draw_bars(bars, legend, {}, title, str(rows[0].job), rows[0].metric.unit, over)


def _values(cell: Sequence[str]) -> list[str]:
    return [value.partition("=")[2] for value in cell]
