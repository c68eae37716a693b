"""The letters of a panel: its title and axes, the names of places, and the values of marks, each as there is room."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import seaborn as sns
from matplotlib.axes import Axes

from analysis.figures.drawing import WIDTH, in_column, letters, panel_inches, points

_LEFT_INCHES = 1.0
"""The width of what stands left of the axes, where the text below a title begins."""
_ABOVE_AND_BELOW_INCHES = 1.6
"""The height of the title and of what stands below the axes."""
_TITLE_LETTERS = 0.66
"""The letters of a line of a title, over the small ones that would fit."""
_AXIS_LETTERS = 0.7
"""The letters of a line at an axis, over the small ones that would fit."""
_NAME_POINTS = 11.0
_NARROW_NAME_POINTS = 8.0
_NAME_LETTER = 0.59
"""The size of a name below an axis, on a screen and in a column, and the width of a letter, as a share of it."""
_GAP_LETTERS = 0.7
"""The letters that stay free between two names."""
_SPARE_LETTERS = 4
"""The letters by which lines of a turned name are longer than if they were equal: words are not broken."""
_VALUE_INCHES = 0.08
"""The width of a letter of a value."""
LINE_INCHES = 0.15
"""The height of a line of small letters."""
_ROTATION = 30
VALUE_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
"""The ground of a value, which no line crosses."""


def filled(text: str, fitting: int) -> str:
    """Return a text whose lines have so many letters at most, unless a word is longer."""
    fitting = max(fitting, 1)
    wrapper = textwrap.TextWrapper(fitting, break_long_words=False, break_on_hyphens=False)
    lines = [wrapper.fill(line) for line in text.splitlines()]
    return "\n".join(lines)


def axes_inches(axes: Axes) -> float:
    """Return the width of the axes of a panel without the letters on their left."""
    width, _ = panel_inches(axes)
    left = points(_LEFT_INCHES)
    spec = axes.get_subplotspec()
    siblings = axes.get_shared_y_axes().get_siblings(axes)
    if spec and len(siblings) > 1:
        left /= spec.get_gridspec().ncols  # those at the left edge alone have letters there
    return width - left


def label(axes: Axes, title: str, below: str, what: str, *, normalised: bool) -> None:
    """Write the title, ``below`` in small letters under it, and ``what`` at the vertical axis.

    The title is that of the figure, whose first panel has it; the others have the width and height of their panel.
    """
    axes.set_xlabel("")
    if axes.get_yscale() == "log":
        first, *more = what.splitlines()
        what = "\n".join([f"{first}, log scale", *more])
    _, height = panel_inches(axes)
    height -= points(_ABOVE_AND_BELOW_INCHES)
    fitting = int(_AXIS_LETTERS * letters(height))
    lines = filled(what, fitting)
    if _longest_line(lines) > fitting:
        lines = _broken(what, fitting)
    axes.set_ylabel(lines)
    if normalised:
        axes.axhline(1, color="0.2", linewidth=1, linestyle=(0, (4, 3)), zorder=0.9)
    chart = axes.get_figure(root=True)
    if chart:
        width = chart.get_figwidth() - points(_LEFT_INCHES)
        title = filled(title, int(_TITLE_LETTERS * letters(width)))
    # A longer line would leave the axes no room.
    below = filled(below, letters(axes_inches(axes)))
    pad = 6 + 12 * len(below.splitlines())
    axes.set_title(
        title,
        loc="left",
        fontweight="bold",
        pad=points(max(30, pad)),
    )
    axes.annotate(
        below,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 5),
        textcoords="offset points",
        fontsize=points(9),
        color="0.3",
    )
    sns.despine(ax=axes, left=True)


def fit_names(axes: Axes, names: Sequence[str]) -> None:
    """Write the names of places, which are 1 apart, in lines that fit; turn those with a word that does not."""
    low, high = axes.get_xlim()
    room = axes_inches(axes) / (high - low)
    size = _NAME_POINTS
    if in_column():
        size = points(_NARROW_NAME_POINTS)
    letter = _NAME_LETTER * size / 72
    fitting = int(room / letter - _GAP_LETTERS)
    lines_of_names = [_broken(name, fitting) for name in names]
    if _longest_line("\n".join(lines_of_names)) <= fitting:
        axes.set_xticks(range(len(names)), lines_of_names, fontsize=size)
        return
    look: dict[str, Any] = {
        "rotation": _ROTATION,
        "ha": "right",
        "rotation_mode": "anchor",
        "fontsize": points(9),
    }
    turned = [name.replace("\n", ", ") for name in names]
    longest = max(map(len, turned))
    angle = math.radians(_ROTATION)
    line_height = points(LINE_INCHES)
    slanted_inches = letter * longest * math.cos(angle)
    room_on_the_left = points(_LEFT_INCHES) + room * -low
    room_between = room * math.sin(angle)
    if slanted_inches > room_on_the_left or room_between < line_height:
        look |= {"rotation": 90, "va": "center"}
        lines = max(int(room / line_height), 1)
        fitting = math.ceil(longest / lines) + _SPARE_LETTERS
        turned = [_broken(name, fitting) for name in turned]
    axes.set_xticks(range(len(names)), turned, **look)


def _broken(name: str, fitting: int) -> str:
    """Return a name in lines of so many letters, which may end after a hyphen."""
    lines = filled(name.replace("-", "- "), fitting)
    return lines.replace("- ", "-")


def _longest_line(text: str) -> int:
    return max(map(len, text.splitlines()), default=0)


def above(axes: Axes, text: str, x: float, top: float, **look: object) -> None:
    # Over the lines of a noise floor and of intervals, which would cross it out.
    offset: dict[str, Any] = {"xytext": (0, 4), "textcoords": "offset points", "zorder": 5}
    axes.annotate(
        text,
        (x, top),
        **(offset | look),
        ha="center",
        va="bottom",
        fontsize=points(9),
        bbox=VALUE_BOX,
    )


def rotation_of_values(axes: Axes, values: Sequence[str], targets: int) -> int | None:
    """Return by how many degrees the values of marks are turned, of which each place has one per target.

    None where not even turned ones fit.
    """
    low, high = axes.get_xlim()
    room = axes_inches(axes) / (high - low) * WIDTH / targets
    longest = _longest_line("\n".join(values))
    if points(_VALUE_INCHES) * longest <= room:
        return 0
    if points(LINE_INCHES) <= room:
        return 90
    return None


def places_of_panels(names: Sequence[str], targets: int, width: float) -> list[list[str]]:
    """Return the names of places by panel: all in one on a screen; in a column as many as have room for their values.

    ``width``: that of the figure, in inches.
    """
    if not in_column():
        return [list(names)]
    room = (width - points(_LEFT_INCHES)) * WIDTH
    most = max(int(room / (targets * points(LINE_INCHES))), 1)
    panels = math.ceil(len(names) / most)
    size = math.ceil(len(names) / panels)
    begins = range(0, len(names), size)
    return [list(names[begin : begin + size]) for begin in begins]
