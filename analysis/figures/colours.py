"""Colours of targets, and how well they can be seen: contrast as WCAG 2.2 counts it."""

from collections.abc import Sequence

import numpy as np
import seaborn as sns
from matplotlib import colormaps
from matplotlib.colors import Colormap, ListedColormap, to_rgb
from matplotlib.typing import ColorType

from suite.targets import TARGETS

LEAST_CONTRAST = 3.0
"""The least contrast of a shape on its ground (success criterion 1.4.11)."""
LEAST_CONTRAST_OF_TEXT = 4.5
"""The least contrast of letters on their ground (success criterion 1.4.3)."""
GROUND = "white"
# Colours of seaborn's colour-blind palette, ordered so that they also differ in lightness. Its orange has a contrast
# of 2.6 on white: this one is darker, and has 3.3.
_BLIND = sns.color_palette("colorblind")
_ORANGE = "#c87d00"
_COLOURS: dict[str, ColorType] = dict(zip(TARGETS, (_BLIND[7], _BLIND[0], _ORANGE, _BLIND[2]), strict=True))
_ANOTHER = "0.5"
"""The colour of a target of another package."""
_DARKEST_SHADE = 0.44
_SHADES = 256
"""The end of a scale of colours, as a share of matplotlib's, and how many colours it has."""


def colour_of(target: str) -> ColorType:
    return _COLOURS.get(target, _ANOTHER)


def palette(targets: Sequence[str]) -> dict[str, ColorType]:
    """Return the colour of each target; grey for a target of another package."""
    return {target: colour_of(target) for target in targets}


def luminance(colour: ColorType) -> float:
    """Return the relative luminance of a colour, from 0 to 1 (https://www.w3.org/TR/WCAG22/#dfn-relative-luminance)."""
    linear = []
    for channel in to_rgb(colour):
        if channel <= 0.04045:
            linear.append(channel / 12.92)
        else:
            linear.append(((channel + 0.055) / 1.055) ** 2.4)
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(colour: ColorType, ground: ColorType) -> float:
    """Return the contrast of two colours, from 1 to 21."""
    darker, lighter = sorted((luminance(colour), luminance(ground)))
    return (lighter + 0.05) / (darker + 0.05)


def shades() -> Colormap:
    """Return a scale of colours on which black stands out, in a dark page too, which inverts its figures."""
    return ListedColormap(colormaps["Oranges"](np.linspace(0.0, _DARKEST_SHADE, _SHADES)))


def ink_on(ground: ColorType) -> str:
    """Return the colour of letters on a ground: black or white, of which one has a contrast of 4.58 at least."""
    if contrast("black", ground) >= contrast("white", ground):
        return "black"
    return "white"
