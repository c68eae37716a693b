"""Victims beside aggressors: the paper's figure 10, and the heat map of all of them."""

import math
import textwrap
from collections.abc import Iterator, Mapping
from itertools import starmap

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis.compare.contrast_kinds import SHARED_METRICS
from analysis.compare.results import Arm, Comparison, Contrast, Measured, known_first
from analysis.figures import drawing
from analysis.figures.reference import Reference, figure_of
from analysis.load.metrics import Metric
from analysis.report.formatting import drawable, notes_by_target, notes_of
from analysis.statistics.margins import slower_by
from suite.job.sharing import aggressor_names, victim_names


def loss_bars(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield what each victim loses beside AlexNet: the paper's figure 10, the time added, and the throughput lost."""
    rows = {arm: measured for arm, measured in _as_they_are(comparison).items() if arm.aggressor == "alexnet"}
    for metric in SHARED_METRICS[:2]:
        if any(metric.name in measured for measured in rows.values()):
            figure = figure_of(comparison, metric.name)
            title = drawing.title_of(figure, f"{metric.name} beside AlexNet, shared scenario")
            with drawing.style():
                chart = _losses(rows, metric, title)
            yield drawing.Drawing(metric.name, title, chart, figure)


def heat_map(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield the per cent of throughput lost: victims down, aggressors across, a panel for each target on one scale."""
    rows = _as_they_are(comparison)
    if any("throughput" in measured for measured in rows.values()):
        title = "Interference: throughput that victims lose beside aggressors"
        yield drawing.Drawing("interference", title, _map(rows, title))


Rows = Mapping[Arm, Measured]


def _as_they_are(comparison: Comparison) -> Rows:
    rows = {}
    for arm, of_arm in comparison.of_kind("aggressor").items():
        if not arm.ablation:
            rows[arm] = drawable(of_arm)
    return {arm: measured for arm, measured in rows.items() if measured}


def _losses(rows: Rows, metric: Metric, title: str) -> Figure:
    """Draw bars by target, and the ranges that the paper's text gives as outlines."""
    victims = _victims(rows)
    notes = _notes(rows)
    targets = list(notes)
    measured_rows = {arm: measured[metric.name] for arm, measured in rows.items() if metric.name in measured}
    bars = pd.DataFrame(
        {"place": arm.model, "target": arm.target, **_lost(contrast)} for arm, contrast in measured_rows.items()
    )
    chart = drawing.canvas(drawing.size(len(victims), len(targets)), 4.8)
    axes = chart.subplots()
    drawing.grouped(axes, bars, victims, targets)
    drawing.keep_widths(axes, len(victims), len(targets))
    _grey(axes, bars[bars["withheld"]])
    limit = _limit(axes, bars)
    entries: list[Artist | Container | None] = list(starmap(drawing.entry, notes.items()))
    entries.append(drawing.intervals(axes, bars))
    for bar in bars.to_dict("records"):
        top = np.nanmax([bar["height"], bar["high"], 0])
        text = f"{bar['height']:.0f} %{', no verdict' * bar['withheld']}".replace(", ", "\n")
        drawing.above(axes, text, bar["x"], min(top, limit))
    entries.append(drawing.ranges(axes, bars, len(targets)))
    change = "lost" if metric.more_is_faster else "added"
    job = next(iter(rows)).job
    below = f"{job}\ngrey: no verdict; higher is slower"
    drawing.label(axes, title, below, f"{metric.name} {change}, %", normalised=False)
    axes.axhline(0, color="0.2", linewidth=1)
    drawing.legend_below(chart, [entry for entry in entries if entry], len(targets))
    return chart


def _grey(axes: Axes, withheld: pd.DataFrame) -> None:
    """Take the colour from the bars whose numbers carry no verdict."""
    middles = list(withheld["x"])
    for patch in axes.patches:
        if isinstance(patch, Rectangle):
            middle = patch.get_x() + patch.get_width() / 2
            if any(math.isclose(middle, x, abs_tol=1e-6) for x in middles):
                patch.set_facecolor("0.8")


def _limit(axes: Axes, bars: pd.DataFrame) -> float:
    """Fit the axis to the numbers with a verdict, which others would dwarf; return the height that they reach."""
    decided = bars[~bars["withheld"]]
    ends = decided[["height", "low", "high"]] if len(decided) else bars[["height"]]
    high = max(float(np.nanmax(ends)), 1.0)
    low = min(float(np.nanmin(ends)), 0.0)
    span = high - low
    axes.set_ylim(low - 0.05 * span * (low < 0), high + 0.2 * span)  # above are the values
    return high


def _map(rows: Rows, title: str) -> Figure:
    victims = _victims(rows)
    notes = _notes(rows)
    aggressors = sorted({arm.aggressor for arm in rows}, key=lambda name: known_first(aggressor_names(), name))
    tables = {target: pd.DataFrame(math.nan, index=pd.Index(victims), columns=pd.Index(aggressors)) for target in notes}
    texts = {target: pd.DataFrame("", index=pd.Index(victims), columns=pd.Index(aggressors)) for target in notes}
    top = 10.0
    for arm, measured in rows.items():
        if "throughput" in measured:
            lost = _lost(measured["throughput"])
            tables[arm.target].loc[arm.model, arm.aggressor] = lost["height"]
            texts[arm.target].loc[arm.model, arm.aggressor] = _with_interval(lost)
            top = max(top, lost["height"])
    panel = 1.2 + 0.9 * len(aggressors)
    down, across = drawing.grid(len(notes))
    with drawing.style():
        chart = drawing.canvas(2.0 + panel * across, (2.4 + 0.6 * len(victims)) * down)
        for number, (target, table) in enumerate(tables.items()):
            axes = chart.add_subplot(down, across, number + 1)
            # From zero: who gains beside another has lost nothing, and the number says by how much.
            scale = {"vmin": 0.0, "vmax": top, "cmap": "rocket_r", "cbar_kws": {"label": "throughput lost, %"}}
            look = {"annot": texts[target], "fmt": "", "linewidths": 1, "yticklabels": number % across == 0}
            look["annot_kws"] = {"fontsize": drawing.points(9)}
            sns.heatmap(table, ax=axes, **scale, **look, cbar=number == len(notes) - 1)
            heading = "\n".join((target, *notes[target]))
            axes.set_title(heading, fontsize=drawing.points(10))
            axes.tick_params(axis="y", labelrotation=0)
        letters = int(0.9 * drawing.letters(chart.get_figwidth()))
        job = str(next(iter(rows)).job)
        wrapped_title = textwrap.fill(title, letters)
        wrapped_job = textwrap.fill(job, letters)
        chart.suptitle(
            f"{wrapped_title}\n{wrapped_job}",
            fontsize=drawing.points(10),
            x=0.01,
            ha="left",
        )
    return chart


def _with_interval(lost: Mapping[str, float]) -> str:
    """Return ``12`` above ``5 to 19``, the ends of its interval if it has one."""
    height = f"{lost['height']:.0f}"
    return height if math.isnan(lost["low"]) else f"{height}\n{lost['low']:.0f} to {lost['high']:.0f}"


def _victims(rows: Rows) -> list[str]:
    return sorted({arm.model for arm in rows}, key=lambda name: known_first(victim_names(), name))


def _notes(rows: Rows) -> dict[str, tuple[str, ...]]:
    return notes_by_target((arm.target, notes_of(measured)) for arm, measured in rows.items())


def _lost(contrast: Contrast) -> dict[str, float]:
    """Return the per cent that a rate loses, or that a time adds, as the paper counts it, and as its text prints it."""

    def lost(ratio: float) -> float:
        return 100 * slower_by(ratio, more_is_faster=contrast.metric.more_is_faster)

    arm = contrast.arm
    height = lost(contrast.ratio or math.nan)
    low, high = sorted(map(lost, contrast.interval or (math.nan, math.nan)))
    printed = drawing.printed_range(
        arm.job,
        arm.model,
        arm.target,
        contrast.metric.name,
        arm.aggressor,
    )
    least, most = sorted(map(lost, printed))
    withheld = bool(contrast.verdict and contrast.verdict.withheld)
    return {"height": height, "low": low, "high": high, "least": least, "most": most, "withheld": withheld}
