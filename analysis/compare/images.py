"""The same image: how the images that an arm generated differ from those of bare metal in its blocks."""

import io
from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from analysis.compare.results import SameImage
from analysis.load.records import read_record

Pair = Mapping[Any, Any]
"""A trial beside bare metal's, whose columns end in ``_base``."""


def same_image(pairs: Iterable[Pair]) -> SameImage | None:
    """Return how the images of trials agree with bare metal's; None where there are none.

    Grids are read where pixels differ.
    """
    known = [pair for pair in pairs if all(isinstance(text, str) for text in _both(pair, "pixels"))]
    if not known:
        return None
    weights, pixels = (
        [pair for pair in known if len({*map(str, _both(pair, name))}) > 1] for name in ("weights", "pixels")
    )
    apart = [(*found, place) for place, pair in enumerate(pixels) if (found := _apart(pair))]
    most, mean, worst = max(apart, default=(None, None, 0))
    return SameImage(len(known), len(weights), len(pixels), most, mean, _paths((pixels or known)[worst]))


def grid_of(path: str) -> str | None:
    """Return the grid of a record's images as PNG in base64; None without one."""
    generated = getattr(read_record(path), "generated", None)
    return generated.png.root if generated and generated.png else None


def _both(pair: Pair, name: str) -> tuple[Any, Any]:
    return pair[f"generated_{name}_base"], pair[f"generated_{name}"]


def _paths(pair: Pair) -> tuple[str, str]:
    return pair["path_base"], pair["path"]


def _apart(pair: Pair) -> tuple[int, float] | None:
    """Return the greatest and the mean difference in what two grids have in common; None where one is missing."""
    from PIL import Image  # not at the top: few images differ, and the answer waits for every import

    base, own = (np.asarray(grid and Image.open(io.BytesIO(b64decode(grid)))) for grid in map(grid_of, _paths(pair)))
    if not base.ndim == own.ndim > 1:
        return None
    height, width = np.minimum(base.shape, own.shape)[:2]
    apart = np.abs(base[:height, :width].astype(int) - own[:height, :width])
    return int(apart.max()), float(apart.mean())
