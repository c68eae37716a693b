"""What all axes share: grouped bars, their scale, titles and labels."""

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from analysis.figures.style import palette

WIDTH = 0.84
"""The width of the bars of one place together, where places are 1 apart."""
_LINEAR_RANGE = 20.0
"""Ratios further apart than this are drawn on a logarithmic axis: on a linear one the small bars would vanish."""


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


def middles(bars: pd.DataFrame, x: str, places: Sequence[str], targets: Sequence[str]) -> list[float]:
    """Return where ``grouped`` draws each row's bar on the horizontal axis."""
    return [
        places.index(place) + (targets.index(target) + 0.5) * WIDTH / len(targets) - WIDTH / 2
        for place, target in zip(bars[x], bars["target"], strict=True)
    ]


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
    axes.annotate(
        below,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 5),
        textcoords="offset points",
        fontsize=9,
        color="0.3",
    )
    sns.despine(ax=axes, left=True)
