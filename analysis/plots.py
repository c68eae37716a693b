"""The paper's figures: bars grouped by model, one per target, normalised to bare metal, the measured value above each;
with 95 % intervals, the noise floor as a band around 1, and on request the paper's own values as markers.

Drawn on figures of their own with the Agg and SVG back ends, inside contexts: no state of matplotlib's is left changed,
and the same comparison gives the same bytes.
"""

import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.reference import SOURCE, Key
from analysis.results import METRICS, Comparison, Group, Job, Metric
from analysis.words import number
from suite.errors import RequestError
from suite.plan import BASELINE, TARGETS

# Colours of seaborn's colour-blind palette, ordered so that they also differ in lightness; hatches for print in grey.
_COLOURS = {target: sns.color_palette("colorblind")[place] for target, place in zip(TARGETS, (7, 0, 1, 2), strict=True)}
_HATCHES = dict(zip(TARGETS, ("", "///", "\\\\\\", "xxx"), strict=True))
_TITLES = {"throughput": "Throughput", "elapsed": "Elapsed time", "opening": "Opening time of the target"}
_LINEAR_RANGE = 20.0
"""Ratios further apart than this are drawn on a logarithmic axis: on a linear one the small bars would vanish."""
_WIDTH = 0.84
"""Of the bars of one model together, where models are 1 apart."""
_NO_REFERENCE: Mapping[Key, float] = {}
_STYLE = {
    "svg.hashsalt": "virtbench",
    "hatch.linewidth": 0.6,
    "hatch.color": "white",
    "axes.edgecolor": "0.3",
    "grid.color": "0.9",
    "font.family": ["DejaVu Sans"],
}


def draw(comparison: Comparison, directory: Path, reference: Mapping[Key, float] | None = None) -> list[Path]:
    """One figure per job and metric as PNG and SVG in ``directory``; returns their paths.

    ``reference``: published ratios to draw as markers, such as ``analysis.reference.normalised()``. The figures are
    named scenario-metric.png, with what tells jobs apart between the two where a scenario has several. Raises
    RequestError when the directory cannot be written.
    """
    jobs = list(dict.fromkeys(group.job for group in comparison.groups))
    paths: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            groups = [group for group in comparison.groups if group.job == job]
            for metric in METRICS:
                if any(metric.name in summary.estimates for group in groups for summary in group.targets):
                    stem = f"{_name(job, jobs)}-{metric.name}"
                    chart = figure(groups, metric, reference or {})
                    paths += _save(chart, [directory / f"{stem}.png", directory / f"{stem}.svg"])
    except OSError as error:
        raise RequestError(f"cannot write {directory}: {error.strerror}", remedy="name another directory") from error
    return paths


def _name(job: Job, jobs: Sequence[Job]) -> str:
    """The scenario, and what differs among its jobs, fit for a file name."""
    others = [asdict(other) for other in jobs if other.scenario == job.scenario]
    parts = [value for key, value in asdict(job).items() if key != "scenario" and len({o[key] for o in others}) > 1]
    return "-".join([job.scenario, *(re.sub(r"[^A-Za-z0-9_.]+", "-", part).strip("-") for part in parts if part)])


def _save(chart: Figure, paths: Sequence[Path]) -> Sequence[Path]:
    with style():
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            chart.savefig(path, dpi=160, metadata=metadata)
    return paths


def style() -> AbstractContextManager[None]:
    """The style in which figures are drawn and saved; matplotlib's own is back afterwards."""
    return mpl.rc_context(sns.axes_style("whitegrid") | sns.plotting_context("notebook") | _STYLE)


def svg(chart: Figure) -> bytes:
    """The figure as SVG, for a page that holds its pictures."""
    out = io.BytesIO()
    with style():
        chart.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def figure(groups: Sequence[Group], metric: Metric, reference: Mapping[Key, float] = _NO_REFERENCE) -> Figure:
    """Grouped bars of one metric: models along the axis, targets beside each other."""
    with style():
        return _figure(groups, metric, reference)


def _figure(groups: Sequence[Group], metric: Metric, reference: Mapping[Key, float]) -> Figure:
    bars = pd.DataFrame(_bars(groups, metric))
    normalised = bool(bars["ratio"].notna().any())
    bars["height"] = bars["ratio"] if normalised else bars["value"]
    models, targets = list(bars["model"].unique()), [name for name in _targets(groups) if name in set(bars["target"])]
    chart = Figure(figsize=(max(6.4, 2.0 + 0.75 * len(models) * len(targets)), 4.8), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.subplots()
    palette = {target: _COLOURS.get(target, "0.5") for target in targets}
    sns.barplot(
        bars,
        x="model",
        y="height",
        hue="target",
        order=models,
        hue_order=targets,
        palette=palette,
        saturation=1,
        errorbar=None,
        legend=False,
        width=_WIDTH,
        edgecolor="white",
        linewidth=0.8,
        ax=axes,
    )
    bars["x"] = [
        models.index(model) - _WIDTH / 2 + (targets.index(target) + 0.5) * _WIDTH / len(targets)
        for model, target in zip(bars["model"], bars["target"], strict=True)
    ]
    published = _published(groups, metric, reference, bars) if normalised else bars.iloc[:0].assign(published=[])
    tops = bars[["height", "high"]].max(axis=1)
    _scale(axes, pd.concat([bars["height"], bars["low"], tops, published["published"]]))
    _annotate(axes, bars.assign(top=tops), targets)
    _label(axes, groups, metric, normalised)
    entries: list[Artist | Container] = [*_legend(groups, targets), *_uncertainty(axes, bars, groups, metric, models)]
    if len(published):
        entries.append(_markers(axes, published, len(targets)))
    widest = max(len(line) for entry in entries for line in str(entry.get_label()).splitlines())
    fitting = int(chart.get_figwidth() / (0.8 + 0.08 * widest))  # inches of the patch and of a letter at this size
    columns = min(len(targets), max(fitting, 1))
    chart.legend(handles=entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    return chart


def spread(groups: Sequence[Group], trials: pd.DataFrame) -> Figure | None:
    """The throughput of every finished trial over bare metal's geometric mean: one dot each, so that outliers show.

    ``trials`` as in ``load.Records``. None where no model has bare metal.
    """
    metric = METRICS[0]
    base = {
        group.model: summary.estimates[metric.name].value
        for group in groups
        for summary in group.targets
        if summary.target == BASELINE and metric.name in summary.estimates
    }
    job = groups[0].job
    mine = trials[trials["ok"] & trials["model"].isin(list(base))]
    for key in ("scenario", "data", "profile", "recipe"):
        mine = mine[mine[key] == getattr(job, key)]
    if mine.empty:
        return None
    dots = pd.DataFrame({"model": mine["model"].astype(str), "target": mine["target"].astype(str)})
    dots["ratio"] = mine[metric.column] / dots["model"].map(base)
    with style():
        return _spread(dots, groups, [group.model for group in groups if group.model in base])


def _spread(dots: pd.DataFrame, groups: Sequence[Group], models: Sequence[str]) -> Figure:
    targets = [target for target in _targets(groups) if target in set(dots["target"])]
    chart = Figure(figsize=(max(6.4, 2.0 + 0.75 * len(models) * len(targets)), 4.2), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.subplots()
    order = {"x": "model", "y": "ratio", "hue": "target", "order": models, "hue_order": targets}
    palette = {target: _COLOURS.get(target, "0.5") for target in targets}
    # Not jittered: the same records give the same picture, and equal values are to lie on each other.
    sns.stripplot(dots, **order, palette=palette, dodge=True, jitter=False, alpha=0.6, size=6, legend=False, ax=axes)
    _scale(axes, dots["ratio"])
    if axes.get_yscale() == "linear":
        margin = 0.1 * (dots["ratio"].max() - dots["ratio"].min()) or 0.1
        axes.set_ylim(dots["ratio"].min() - margin, dots["ratio"].max() + margin)
    _label(axes, groups, METRICS[0], normalised=True)
    axes.set_title("Every trial: throughput", loc="left", fontweight="bold", pad=30)
    axes.texts[-1].set_text(f"{groups[0].job}\none dot per trial, over the geometric mean of {BASELINE}")
    entries = _legend(groups, targets)
    for entry in entries:
        entry.set_hatch("")
    chart.legend(handles=entries, loc="outside lower center", ncols=len(targets), frameon=False, fontsize=9)
    return chart


def _bars(groups: Sequence[Group], metric: Metric) -> Iterator[dict[str, object]]:
    for group in groups:
        for summary in group.targets:
            estimate = summary.estimates.get(metric.name)
            low, high = estimate.interval if estimate and estimate.interval else (float("nan"), float("nan"))
            yield {
                "model": group.model,
                "target": summary.target,
                "value": estimate.value if estimate else float("nan"),
                "ratio": float("nan") if estimate is None or estimate.ratio is None else estimate.ratio,
                "low": low,
                "high": high,
            }


def _targets(groups: Sequence[Group]) -> list[str]:
    """All targets, those of the paper first and in its order."""
    found = dict.fromkeys(summary.target for group in groups for summary in group.targets)
    return [target for target in TARGETS if target in found] + sorted(set(found) - set(TARGETS))


def _scale(axes: Axes, heights: "pd.Series[float]") -> None:
    low, high = heights.min(), heights.max()
    if low > 0 and high / low > _LINEAR_RANGE:
        axes.set_yscale("log")
        axes.set_ylim(min(low, 1) / 3, high * 3)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(0, high * 1.15)


def _annotate(axes: Axes, bars: pd.DataFrame, targets: Sequence[str]) -> None:
    """Hatches, and above each bar the measured value; where there is no bar, why."""
    floor = axes.get_ylim()[0]
    for place, target in enumerate(targets):
        for patch in axes.containers[place]:
            patch.set_hatch(_HATCHES.get(target, "..."))
    for bar in bars.to_dict("records"):
        measured, drawn = bar["value"] == bar["value"], bar["height"] == bar["height"]  # not NaN
        text = number(bar["value"]) if measured else "failed"
        axes.annotate(
            text if drawn or not measured else f"{text}\nnot normalised",
            (bar["x"], bar["top"] if drawn else floor),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            rotation=0 if drawn else 90,
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )


def _uncertainty(
    axes: Axes, bars: pd.DataFrame, groups: Sequence[Group], metric: Metric, models: Sequence[str]
) -> Iterator[Artist | Container]:
    """Draws the intervals and the noise floors; yields the entries of the legend."""
    known = bars[bars["low"].notna() & bars["ratio"].notna()]
    if len(known):
        errors = [known["height"] - known["low"], known["high"] - known["height"]]
        line = axes.errorbar(known["x"], known["height"], errors, fmt="none", ecolor="0.1", elinewidth=1.2, capsize=3)
        line.set_label("95 % interval")
        yield line
    floors = {group.model: floor for group in groups if (floor := group.noise_floors.get(metric.name))}
    if bars["ratio"].isna().all():
        return
    band = None
    for model, floor in floors.items():
        place, top = models.index(model), 1 + floor.share
        ends = [place - 0.46, place + 0.46]
        band = axes.fill_between(
            ends, 1 / top, top, label="noise floor", color="0.45", alpha=0.35, linewidth=0, zorder=3
        )
    if band:
        yield band


def _published(
    groups: Sequence[Group], metric: Metric, reference: Mapping[Key, float], bars: pd.DataFrame
) -> pd.DataFrame:
    """The bars that the reference has a value for, with it as ``published``."""
    job = groups[0].job
    keys = [
        (job.scenario, job.data, str(model), str(target), metric.name)
        for model, target in zip(bars["model"], bars["target"], strict=True)
    ]
    found = bars.assign(published=[reference.get(key, float("nan")) for key in keys])
    return found[found["published"].notna() & (found["target"] != BASELINE)]


def _markers(axes: Axes, published: pd.DataFrame, targets: int) -> Artist:
    return axes.scatter(
        published["x"] + 0.25 * _WIDTH / targets,  # beside the interval and the value
        published["published"],
        label=SOURCE,
        marker="D",
        s=42,
        facecolor="white",
        edgecolor="black",
        linewidth=1.3,
        zorder=4,
    )


def _label(axes: Axes, groups: Sequence[Group], metric: Metric, normalised: bool) -> None:
    axes.set_xlabel("")
    scale = ", log scale" if axes.get_yscale() == "log" else ""
    axes.set_ylabel((f"relative to {BASELINE}" if normalised else f"{metric.unit}, not normalised") + scale)
    if normalised:
        axes.axhline(1, color="0.2", linewidth=1, linestyle=(0, (4, 3)), zorder=0.9)
    axes.set_title(_TITLES.get(metric.name, metric.name), loc="left", fontweight="bold", pad=30)
    axes.annotate(
        f"{groups[0].job}\nabove the bars: {metric.unit}",
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 5),
        textcoords="offset points",
        fontsize=9,
        color="0.3",
    )
    sns.despine(ax=axes, left=True)


def _legend(groups: Sequence[Group], targets: Sequence[str]) -> list[Patch]:
    """One entry per target that names its substitutes and marks."""
    entries = []
    for target in targets:
        summaries = [summary for group in groups for summary in group.targets if summary.target == target]
        notes = dict.fromkeys(note for summary in summaries for note in summary.notes)
        style = {"facecolor": _COLOURS.get(target, "0.5"), "hatch": _HATCHES.get(target, "..."), "edgecolor": "white"}
        entries.append(Patch(**style, label="\n".join((target, *(textwrap.fill(note, 40) for note in notes)))))
    return entries
