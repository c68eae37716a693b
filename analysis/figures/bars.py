"""Grouped bars: targets beside each other, normalised to bare metal, with the measured value above each.

They carry 95 % intervals, the noise floor as lines around 1, and published values as markers.
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

from analysis.compare.results import ComparedJob, Comparison, Contrast, Group
from analysis.figures.drawing import (
    WIDTH,
    Drawing,
    above,
    canvas,
    dots,
    grouped,
    intervals,
    label,
    legend,
    legend_below,
    middles,
    printed_range,
    ranges,
    scale,
    style,
    targets_of,
)
from analysis.figures.reference import PAPER, SOURCE, Key, Reference, figure_number, kind_of
from analysis.load.metrics import Metric
from analysis.report.formatting import shown
from analysis.statistics.ratios import NoiseFloor
from suite.records.record import EPOCH, EPOCH_METRICS
from suite.targets import BASELINE
from suite.units import number

_NAN = float("nan")


def training_bars(comparison: Comparison, reference: Reference) -> Iterator[Drawing]:
    """Yield one drawing per metric that a training measured: the models that have it along the axis."""
    job = comparison.jobs[0]
    if job.traits.probes or not job.traits.normalised:
        return
    groups_of: dict[Metric, list[Group]] = {}
    for group in comparison.groups:
        for metric in shown(group.metrics):
            if metric.name in group.measured and metric.name not in EPOCH_METRICS:
                groups_of.setdefault(metric, []).append(group)
    columns = Counter(metric.column for metric in groups_of)
    for metric, groups in groups_of.items():
        name = f"{metric.model}-{metric.name}" if metric.model else metric.name
        name += f"-{metric.unit.partition('/')[0]}" if columns[metric.column] > 1 else ""
        figure = figure_number(job, name)
        what = f"{metric.name}, {job.scenario} scenario, {job.data} data"
        title = f"Figure {figure}: {what}" if figure else f"{what[0].upper()}{what[1:]}"
        yield Drawing(name, title, metric_chart(groups, metric, title, reference), figure)


def time_per_epoch(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield one drawing: the time per epoch of every workload, as the paper on GANs in managed clusters draws it.

    Bars of whole epochs, of first ones and of scaled times can stand beside each other, and each says which it is.
    """
    timed = [(group, metric) for group in comparison.groups if (metric := group.epoch)]
    if not timed:
        return
    names = [f"{group.model}\n{'' if metric.name == EPOCH else metric.name}".strip() for group, metric in timed]
    bars = pd.DataFrame(
        bar for name, (group, metric) in zip(names, timed, strict=True) for bar in _bars(name, group, metric)
    ).assign(published=_NAN)
    floors = {name: floor for name, (group, metric) in zip(names, timed, strict=True) if (floor := group.noise(metric))}
    title = f"Time per epoch, {comparison.jobs[0].data} data"
    with style():
        yield Drawing("time-per-epoch", title, _chart(bars, [group for group, _ in timed], floors, title, "s"))


def probe_bars(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield one drawing per probe: its metrics along the axis."""
    for group in comparison.groups:
        if group.job.traits.probes and group.measured:
            title = f"The probe {group.model}: every metric on every target"
            yield Drawing(group.model, title, probe_chart(group))


def metric_chart(groups: Sequence[Group], metric: Metric, title: str, reference: Reference) -> Figure:
    """Draw one metric of a job."""
    bars = pd.DataFrame(bar for group in groups for bar in _bars(group.model, group, metric))
    job = groups[0].job
    keys = [
        (job.scenario, kind_of(job.data), str(model), str(target), metric.name)
        for model, target in zip(bars["place"], bars["target"], strict=True)
    ]
    bars["published"] = [reference.get(key, _NAN) if key[3] != BASELINE else _NAN for key in keys]
    bars[["least", "most"]] = [_range(job, key, reference) for key in keys]
    floors = {group.model: floor for group in groups if (floor := group.noise(metric))}
    with style():
        return _chart(bars, groups, floors, title, metric.unit or metric.name)


def _range(job: ComparedJob, key: Key, reference: Reference) -> tuple[float, float]:
    """Return the range that the paper's text gives a bar of its sizes, if its figures print no value of it."""
    said = reference and job.profile == PAPER and key not in reference
    return printed_range(job, *key[2:]) if said else (_NAN, _NAN)


def probe_chart(group: Group) -> Figure:
    """Draw all metrics of a probe."""
    names = {}
    for metric in group.metrics:
        # Broken at its hyphens, so that neighbours do not run into each other.
        name = "\n".join(textwrap.wrap(metric.name.replace("-", "- "), 22)).replace("- ", "-")
        names[metric.name] = f"{name}\n{metric.unit}, {metric.better} is better"
    bars = pd.DataFrame(bar for metric in group.metrics for bar in _bars(names[metric.name], group, metric)).assign(
        published=_NAN
    )
    floors = {names[metric.name]: floor for metric in group.metrics if (floor := group.noise(metric))}
    with style():
        return _chart(bars, [group], floors, f"Probe: {group.model}", "the measured value")


def _bars(place: str, group: Group, metric: Metric) -> Iterator[dict[str, object]]:
    for summary in group.targets:
        yield bar(place, summary.target, group.of_target(summary.target).get(metric.name))


def bar(place: str, target: str, row: Contrast | None) -> dict[str, object]:
    """Return what is drawn of a contrast, if there is one."""
    low, high = row.interval if row and row.interval else (_NAN, _NAN)
    numbers = {"value": row and row.value, "ratio": row and row.ratio, "low": low, "high": high}
    return {"place": place, "target": target, **{key: _NAN if one is None else one for key, one in numbers.items()}}


def _chart(
    bars: pd.DataFrame, groups: Sequence[Group], floors: Mapping[str, NoiseFloor], title: str, unit: str
) -> Figure:
    targets = [name for name in targets_of(groups) if name in set(bars["target"])]
    return draw_bars(
        bars, dict(zip(targets, legend(groups, targets), strict=True)), floors, title, str(groups[0].job), unit
    )


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
    chart = canvas(max(6.4, 2.0 + 0.75 * len(places) * len(targets)), 4.8)
    axes = chart.subplots()
    grouped(axes, bars, "place", "height", places, targets)
    bars["x"] = middles(bars, "place", places, targets)
    published = bars[bars["published"].notna()] if normalised else bars.iloc[:0]
    bars["top"] = bars[["height", "high"]].max(axis=1)
    scale(axes, pd.concat([bars["height"], bars["low"], bars["top"], published["published"]]))
    if axes.get_yscale() == "log":
        dots(axes, bars)
    _write_values(axes, bars)
    what = f"relative to {over}" if normalised else f"{unit}, not normalised"
    label(axes, title, f"{job}\nabove the marks: {unit}", what, normalised=normalised)
    entries: list[Artist | Container | None] = [*legend.values(), intervals(axes, bars, "ratio")]
    if normalised:
        entries.append(_floors(axes, floors, places))
    if len(published):
        entries.append(_markers(axes, published, len(targets)))
    if normalised and "least" in bars:
        entries.append(ranges(axes, bars, len(targets)))
    legend_below(chart, [entry for entry in entries if entry], len(targets))
    return chart


def _write_values(axes: Axes, bars: pd.DataFrame) -> None:
    """Write the measured value above each bar; where there is no bar, why."""
    floor = axes.get_ylim()[0]
    for bar in bars.to_dict("records"):
        # A value that is not its own equal is NaN.
        measured, drawn = bar["value"] == bar["value"], bar["height"] == bar["height"]
        text = number(bar["value"]) if measured else "failed"
        above(
            axes,
            text if drawn or not measured else f"{text}\nnot normalised",
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


def _markers(axes: Axes, published: pd.DataFrame, targets: int) -> Artist:
    beside = published["x"] + 0.25 * WIDTH / targets  # the interval and the value
    look: dict[str, Any] = {"marker": "D", "s": 42, "facecolor": "white", "edgecolor": "black", "linewidth": 1.3}
    return axes.scatter(beside, published["published"], label=SOURCE, zorder=4, **look)
