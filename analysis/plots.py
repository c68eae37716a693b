"""The paper's figures: bars grouped by model, one per target, normalised to bare metal, the measured value above each.

Drawn on figures of their own with the Agg and SVG back ends, inside contexts: no state of matplotlib's is left changed,
and the same comparison gives the same bytes.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.results import METRICS, Comparison, Group, Job, Metric
from analysis.tables import number
from suite.errors import RequestError
from suite.plan import BASELINE, TARGETS

# Colours of seaborn's colour-blind palette, ordered so that they also differ in lightness; hatches for print in grey.
_COLOURS = {target: sns.color_palette("colorblind")[place] for target, place in zip(TARGETS, (7, 0, 1, 2), strict=True)}
_HATCHES = dict(zip(TARGETS, ("", "///", "\\\\\\", "xxx"), strict=True))
_TITLES = {"throughput": "Throughput", "elapsed": "Elapsed time", "opening": "Opening time of the target"}
_LINEAR_RANGE = 20.0
"""Ratios further apart than this are drawn on a logarithmic axis: on a linear one the small bars would vanish."""
_STYLE = {
    "svg.hashsalt": "virtbench",
    "hatch.linewidth": 0.6,
    "hatch.color": "white",
    "axes.edgecolor": "0.3",
    "grid.color": "0.9",
    "font.family": ["DejaVu Sans"],
}


def draw(comparison: Comparison, directory: Path) -> list[Path]:
    """One figure per job and metric as PNG and SVG in ``directory``; returns their paths.

    They are named scenario-metric.png, with what tells jobs apart between the two where a scenario has several. Raises
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
                    paths += _save(groups, metric, [directory / f"{stem}.png", directory / f"{stem}.svg"])
    except OSError as error:
        raise RequestError(f"cannot write {directory}: {error.strerror}", remedy="name another directory") from error
    return paths


def _name(job: Job, jobs: Sequence[Job]) -> str:
    """The scenario, and what differs among its jobs, fit for a file name."""
    others = [asdict(other) for other in jobs if other.scenario == job.scenario]
    parts = [value for key, value in asdict(job).items() if key != "scenario" and len({o[key] for o in others}) > 1]
    return "-".join([job.scenario, *(re.sub(r"[^A-Za-z0-9_.]+", "-", part).strip("-") for part in parts if part)])


def _save(groups: Sequence[Group], metric: Metric, paths: Sequence[Path]) -> Sequence[Path]:
    style = sns.axes_style("whitegrid") | sns.plotting_context("notebook") | _STYLE
    with mpl.rc_context(style):
        chart = figure(groups, metric)
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            chart.savefig(path, dpi=160, metadata=metadata)
    return paths


def figure(groups: Sequence[Group], metric: Metric) -> Figure:
    """Grouped bars of one metric: models along the axis, targets beside each other."""
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
        width=0.84,
        edgecolor="white",
        linewidth=0.8,
        ax=axes,
    )
    _scale(axes, bars["height"])
    _annotate(axes, bars, models, targets)
    _label(axes, groups, metric, normalised)
    entries = _legend(groups, targets)
    widest = max(len(line) for entry in entries for line in str(entry.get_label()).splitlines())
    fitting = int(chart.get_figwidth() / (0.8 + 0.08 * widest))  # inches of the patch and of a letter at this size
    columns = min(len(targets), max(fitting, 1))
    chart.legend(handles=entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    return chart


def _bars(groups: Sequence[Group], metric: Metric) -> Iterator[dict[str, object]]:
    for group in groups:
        for summary in group.targets:
            estimate = summary.estimates.get(metric.name)
            yield {
                "model": group.model,
                "target": summary.target,
                "value": estimate.value if estimate else float("nan"),
                "ratio": float("nan") if estimate is None or estimate.ratio is None else estimate.ratio,
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


def _annotate(axes: Axes, bars: pd.DataFrame, models: Sequence[str], targets: Sequence[str]) -> None:
    """Hatches, and above each bar the measured value; where there is no bar, why."""
    floor = axes.get_ylim()[0]
    width = 0.84 / len(targets)
    lookup = {(bar["model"], bar["target"]): (bar["value"], bar["height"]) for bar in bars.to_dict("records")}
    for place, target in enumerate(targets):
        for patch in axes.containers[place]:
            patch.set_hatch(_HATCHES.get(target, "..."))
        for number_of_model, model in enumerate(models):
            if (model, target) not in lookup:
                continue
            value, height = lookup[model, target]
            text = "failed" if value != value else number(value)
            axes.annotate(
                text if height == height or value != value else f"{text}\nnot normalised",
                (number_of_model - 0.42 + (place + 0.5) * width, height if height == height else floor),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
                rotation=0 if height == height else 90,
                fontsize=9,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
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
