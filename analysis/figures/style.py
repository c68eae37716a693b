"""The look of every figure: the colours, hatches and legends of targets, and what all axes share."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.compare.results import Group
from suite.targets import TARGETS

# Colours of seaborn's colour-blind palette, ordered so that they also differ in lightness; hatches for print in grey.
_COLOURS = {target: sns.color_palette("colorblind")[place] for target, place in zip(TARGETS, (7, 0, 1, 2), strict=True)}
_HATCHES = dict(zip(TARGETS, ("", "///", "\\\\\\", "xxx"), strict=True))
WIDTH = 0.84
"""The width of the bars of one place together, where places are 1 apart."""
_LINEAR_RANGE = 20.0
"""Ratios further apart than this are drawn on a logarithmic axis: on a linear one the small bars would vanish."""


def palette(targets: Sequence[str]) -> dict[str, object]:
    """Return the colour of each target; grey for one that the suite does not know."""
    return {target: _COLOURS.get(target, "0.5") for target in targets}


def targets_of(groups: Sequence[Group]) -> list[str]:
    """Return all targets, those of the paper first and in its order."""
    found = dict.fromkeys(summary.target for group in groups for summary in group.targets)
    return [target for target in TARGETS if target in found] + sorted(set(found) - set(TARGETS))


def legend(groups: Sequence[Group], targets: Sequence[str]) -> list[Patch]:
    """Return one entry per target, which names its substitutes and marks."""
    entries = []
    for target in targets:
        summaries = [summary for group in groups for summary in group.targets if summary.target == target]
        notes = dict.fromkeys(note for summary in summaries for note in summary.notes)
        entries.append(entry(target, notes))
    return entries


def entry(target: str, notes: Iterable[str]) -> Patch:
    """Return the entry of one target."""
    look = {"facecolor": _COLOURS.get(target, "0.5"), "hatch": _HATCHES.get(target, "..."), "edgecolor": "white"}
    return Patch(**look, label="\n".join((target, *(textwrap.fill(note, 40) for note in notes))))


def legend_below(chart: Figure, entries: Sequence[Artist | Container], columns: int) -> None:
    """Put the legend under the figure, in as many columns as its width has room for, and ``columns`` at most."""
    widest = max(len(line) for entry in entries for line in str(entry.get_label()).splitlines())
    fitting = int(chart.get_figwidth() / (0.8 + 0.08 * widest))  # inches of the patch and of a letter at this size
    columns = min(columns, max(fitting, 1))
    chart.legend(handles=entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def grouped(axes: Axes, bars: pd.DataFrame, x: str, y: str, places: Sequence[str], targets: Sequence[str]) -> None:
    """Draw a bar of height ``y`` for each row, by ``x`` and, inside that, by its column ``target``."""
    sns.barplot(
        bars,
        x=x,
        y=y,
        hue="target",
        order=places,
        hue_order=targets,
        palette=palette(targets),
        saturation=1,
        errorbar=None,
        legend=False,
        width=WIDTH,
        edgecolor="white",
        linewidth=0.8,
        ax=axes,
    )
    for place, target in enumerate(targets):
        for patch in axes.containers[place]:
            patch.set_hatch(_HATCHES.get(target, "..."))


def middles(bars: pd.DataFrame, x: str, places: Sequence[str], targets: Sequence[str]) -> list[float]:
    """Return where ``grouped`` draws each row's bar on the horizontal axis."""
    return [
        places.index(place) + (targets.index(target) + 0.5) * WIDTH / len(targets) - WIDTH / 2
        for place, target in zip(bars[x], bars["target"], strict=True)
    ]


def intervals(axes: Axes, bars: pd.DataFrame, height: str) -> Container | None:
    """Draw the intervals of the bars that have one, from ``low`` to ``high`` at ``x``; None where none has."""
    known = bars[bars["low"].notna() & bars[height].notna()]
    if known.empty:
        return None
    errors = [known[height] - known["low"], known["high"] - known[height]]
    return axes.errorbar(
        *(known["x"], known[height], errors), fmt="none", ecolor="0.1", elinewidth=1.2, capsize=3, label="95 % interval"
    )


def above(axes: Axes, text: str, x: float, top: float, **look: object) -> None:
    """Write the text above a bar."""
    offset: dict[str, Any] = {"xytext": (0, 4), "textcoords": "offset points", **look}
    axes.annotate(text, (x, top), **offset, ha="center", va="bottom", fontsize=9)


def scale(axes: Axes, heights: "pd.Series[float]") -> None:
    """Fit the vertical axis to the heights: from zero, or logarithmic where they are far apart."""
    low, high = heights.min(), heights.max()
    if low > 0 and high / low > _LINEAR_RANGE:
        axes.set_yscale("log")
        axes.set_ylim(min(low, 1) / 3, high * 3)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(0, high * 1.15)


def label(axes: Axes, title: str, below: str, what: str, *, normalised: bool) -> None:
    """Write the title, ``below`` in small letters under it, and ``what`` at the vertical axis."""
    axes.set_xlabel("")
    axes.set_ylabel(what + (", log scale" if axes.get_yscale() == "log" else ""))
    if normalised:
        axes.axhline(1, color="0.2", linewidth=1, linestyle=(0, (4, 3)), zorder=0.9)
    axes.set_title(title, loc="left", fontweight="bold", pad=30)
    place: dict[str, Any] = {"xycoords": "axes fraction", "xytext": (0, 5), "textcoords": "offset points"}
    axes.annotate(below, (0, 1), **place, fontsize=9, color="0.3")
    sns.despine(ax=axes, left=True)
