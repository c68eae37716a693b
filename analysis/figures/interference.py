"""Victims beside aggressors: the paper's figure 10, and the heat map of all of them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.container import Container
from matplotlib.figure import Figure

from analysis.compare.contrast_kinds import SHARED_METRICS
from analysis.compare.results import Arm, Comparison, Contrast, Measured, known_first
from analysis.figures import drawing
from analysis.figures.colours import ink_on, shades
from analysis.figures.lettering import (
    LINE_INCHES,
    above,
    axes_inches,
    filled,
    fit_names,
    label,
    rotation_of_values,
)
from analysis.figures.reference import Reference, figure_of
from analysis.load.metrics import Metric
from analysis.report.formatting import drawable, notes_by_target, notes_of
from analysis.statistics.margins import slower_by
from suite.job.sharing import aggressor_names, victim_names


def loss_bars(comparison: Comparison, _: Reference) -> Iterator[drawing.Drawing]:
    """Yield what each victim loses beside AlexNet: the paper's figure 10, the time added, and the throughput lost."""
    every = _as_they_are(comparison)
    beside_alexnet = {arm: measured for arm, measured in every.items() if arm.aggressor == "alexnet"}
    for metric in SHARED_METRICS[:2]:
        rows = {}
        for arm, measured in beside_alexnet.items():
            contrast = measured.get(metric.name)
            if contrast and contrast.ratio is not None:
                rows[arm] = contrast
        if rows:
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
        chart, with_intervals = _map(rows, f"{title}; in parentheses: no verdict")
        foot = ""
        if not with_intervals:
            foot = "the table holds the intervals"
        yield drawing.Drawing("interference", title, chart, foot=foot)


_CELL_INCHES = 0.9
_ROW_INCHES = 0.6
_LEFT_INCHES = 2.0
_AROUND_INCHES = 2.0
_HEADING_INCHES = 0.4
"""The sizes of the heat map: of a cell, of what stands left and right, above and below all, and above each panel."""
_INTERVAL_LETTERS = 9
_INTERVAL_LINES = 2.4
"""The letters and lines that a cell must have room for to show its interval."""
Rows = Mapping[Arm, Measured]
Cells = dict[tuple[int, int], Mapping[str, float]]
"""What is lost, by victim and aggressor."""


def _as_they_are(comparison: Comparison) -> Rows:
    rows = {}
    for arm, of_arm in comparison.of_kind("aggressor").items():
        measured = drawable(of_arm)
        if measured and not arm.ablation:
            rows[arm] = measured
    return rows


def _losses(rows: Mapping[Arm, Contrast], metric: Metric, title: str) -> Figure:
    """Draw bars by target, and the ranges that the paper's text gives as outlines."""
    victims = _victims(rows)
    notes = notes_by_target((arm.target, contrast.notes) for arm, contrast in rows.items())
    targets = list(notes)
    bars_of_arms = []
    for arm, contrast in rows.items():
        bars_of_arms.append({"place": arm.model, "target": arm.target, **_lost(contrast)})
    bars = pd.DataFrame(bars_of_arms)
    chart = drawing.canvas(drawing.size(len(victims), len(targets)), 4.8)
    axes = chart.subplots()
    drawing.grouped(axes, bars, victims, targets)
    drawing.keep_widths(axes, len(victims), len(targets))
    fit_names(axes, victims)
    withheld = bars[bars["withheld"]]
    _hollow(axes, withheld, targets)
    limit = _limit(axes, bars)
    entries: list[Artist | Container | None] = list(starmap(drawing.entry, notes.items()))
    if len(withheld):
        entries.append(drawing.hollow_entry())
    entries.append(drawing.intervals(axes, bars))
    entries.append(drawing.ranges(axes, bars, len(targets)))
    texts = [f"{_per_cent(height)} %" for height in bars["height"]]
    rotation = rotation_of_values(axes, texts, len(targets))
    if rotation is not None:
        highest = bars[["height", "high"]].max(axis=1)
        tops = highest.clip(lower=0, upper=limit)
        for text, x, top in zip(texts, bars["x"], tops, strict=True):
            above(axes, text, x, top, rotation=rotation)
    change = "lost" if metric.more_is_faster else "added"
    job = next(iter(rows)).job
    remarks = ["higher is slower"]
    _, upper_edge = axes.get_ylim()
    ends = bars["high"].fillna(bars["height"])
    if (ends > upper_edge).any():
        remarks.append("what reaches the upper edge goes on beyond it")
    label(
        axes,
        title,
        f"{job}\n{'; '.join(remarks)}",
        f"{metric.name} {change}, %",
        normalised=False,
    )
    axes.axhline(0, color="0.2", linewidth=1)
    drawing.legend_below(chart, [entry for entry in entries if entry], len(targets))
    return chart


def _hollow(axes: Axes, withheld: pd.DataFrame, targets: Sequence[str]) -> None:
    """Make the bars hollow whose numbers carry no verdict."""
    for number, target in enumerate(targets):
        on_target = withheld["target"] == target
        middles = withheld.loc[on_target, "x"]
        for patch in axes.containers[number]:
            middle = patch.get_x() + patch.get_width() / 2
            if any(math.isclose(middle, x, abs_tol=1e-6) for x in middles):
                drawing.hollow(patch, target)


def _limit(axes: Axes, bars: pd.DataFrame) -> float:
    """Fit the axis to the numbers with a verdict, which others would dwarf; return the height that they reach."""
    decided = bars[~bars["withheld"]]
    ends = decided[["height", "low", "high"]] if len(decided) else bars[["height"]]
    high = max(float(np.nanmax(ends)), 1.0)
    low = min(float(np.nanmin(ends)), 0.0)
    span = high - low
    below = 0.05 * span if low < 0 else 0.0
    above_bars = 0.2 * span  # for the values
    axes.set_ylim(low - below, high + above_bars)
    return high


def _map(rows: Rows, title: str) -> tuple[Figure, bool]:
    """Return a panel of cells for each target, and whether their intervals have room."""
    victims = _victims(rows)
    notes = _notes(rows)
    aggressors = _in_order({arm.aggressor for arm in rows}, aggressor_names())
    cells: dict[str, Cells] = {target: {} for target in notes}
    top = 10.0
    for arm, measured in rows.items():
        if "throughput" in measured:
            lost = _lost(measured["throughput"])
            row = victims.index(arm.model)
            column = aggressors.index(arm.aggressor)
            cells[arm.target][row, column] = lost
            top = max(top, lost["height"])
    # From zero: who gains beside another has lost nothing, and the number says by how much.
    norm = Normalize(0.0, top)
    colours = ScalarMappable(norm, shades())
    down, across = drawing.grid(len(notes))
    width = _LEFT_INCHES + _CELL_INCHES * len(aggressors) * across
    panel_height = _HEADING_INCHES + _ROW_INCHES * len(victims)
    with drawing.style():
        chart = drawing.canvas(width, _AROUND_INCHES + panel_height * down)
        every = chart.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        with_intervals = _have_room(chart, (down * len(victims), across * len(aggressors)), down)
        for axes, (target, of_target) in zip(every.flat, cells.items(), strict=True):
            grid = np.full((len(victims), len(aggressors)), math.nan)
            for (row, column), of_cell in of_target.items():
                grid[row, column] = of_cell["height"]
            _colour_cells(axes, grid, norm, colours.cmap)
            _write_cells(axes, grid, of_target, colours, with_intervals=with_intervals)
            axes.grid(visible=False)
            axes.set_ylim(len(victims) - 0.5, -0.5)
            axes.set_yticks(range(len(victims)), victims, fontsize=drawing.points(10))
            fit_names(axes, aggressors)
            heading = filled("\n".join((target, *notes[target])), drawing.letters(axes_inches(axes)))
            axes.set_title(heading, fontsize=drawing.points(10))
        location = "right"
        if drawing.in_column():
            location = "bottom"
        chart.colorbar(colours, ax=every, location=location, label="throughput lost, %", fraction=0.05)
        fitting = int(0.9 * drawing.letters(chart.get_figwidth()))
        job = str(next(iter(rows)).job)
        chart.suptitle(
            f"{filled(title, fitting)}\n{filled(job, fitting)}",
            fontsize=drawing.points(10),
            x=0.01,
            ha="left",
        )
    return chart, with_intervals


def _colour_cells(axes: Axes, grid: "np.ndarray[Any, Any]", norm: Normalize, cmap: Colormap) -> None:
    down, across = grid.shape
    axes.pcolormesh(
        np.arange(across + 1) - 0.5,
        np.arange(down + 1) - 0.5,
        grid,
        norm=norm,
        cmap=cmap,
        edgecolors="white",
        linewidth=1,
    )


def _have_room(chart: Figure, cells: tuple[int, int], panels_down: int) -> bool:
    """Return whether a cell has room for the ends of an interval, in a line below its number.

    ``cells``: how many the figure has below each other, and side by side.
    """
    width, height = chart.get_size_inches()
    down, across = cells
    letters = drawing.letters((width - drawing.points(_LEFT_INCHES)) / across)
    height -= drawing.points(_AROUND_INCHES + _HEADING_INCHES * panels_down)
    lines = height / down / drawing.points(LINE_INCHES)
    return letters >= _INTERVAL_LETTERS and lines >= _INTERVAL_LINES


def _write_cells(
    axes: Axes,
    grid: "np.ndarray[Any, Any]",
    cells: Cells,
    colours: ScalarMappable,
    *,
    with_intervals: bool,
) -> None:
    """Write the number of each cell, with its interval and whether it has no verdict; why others are empty."""
    for row, column in np.ndindex(grid.shape):
        lost = cells.get((row, column))
        text = "no value"
        ink = "0.3"
        if lost and not math.isnan(lost["height"]):
            text = _cell_text(lost, with_interval=with_intervals)
            ground: Any = colours.to_rgba(np.asarray(lost["height"]))
            ink = ink_on(ground)
        axes.text(
            column,
            row,
            text,
            color=ink,
            ha="center",
            va="center",
            fontsize=drawing.points(9),
        )


def _cell_text(lost: Mapping[str, float], *, with_interval: bool) -> str:
    """Return ``12`` above ``5 to 19``, the ends of its interval if it has one; in parentheses without a verdict."""
    text = _per_cent(lost["height"])
    if lost["withheld"]:
        text = f"({text})"
    if with_interval and not math.isnan(lost["low"]):
        low = _per_cent(lost["low"])
        high = _per_cent(lost["high"])
        text = f"{text}\n{low} to {high}"
    return text


def _per_cent(value: float) -> str:
    """Return a whole number; zero has no sign."""
    return f"{round(value, 0) + 0.0:.0f}"


def _victims(rows: Iterable[Arm]) -> list[str]:
    return _in_order({arm.model for arm in rows}, victim_names())


def _in_order(names: Iterable[str], known: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: known_first(known, name))


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
    return {
        "height": height,
        "low": low,
        "high": high,
        "least": least,
        "most": most,
        "withheld": bool(contrast.verdict and contrast.verdict.withheld),
    }
