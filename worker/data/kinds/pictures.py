"""Pictures that cost a reader and a decoder what photographs cost them. Each follows from its seed and number alone.

ImageNet's training set: 1,281,167 JPEG files of 108 kB in the mean, most of them 500 pixels on the long side with an
aspect of 4:3 or 3:2, a quarter of them upright, some far smaller and some far larger.
"""

import io
import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from worker.data.kinds.kind import PictureSize


@dataclass(frozen=True)
class Make:
    long_side_px: int
    disk_bytes: int
    """The mean disk space of one: its file, and what is lost in its last block."""


MAKES: dict[PictureSize, Make] = {
    "imagenet": Make(500, 115_000),
    "small": Make(64, 6_000),
}
_ASPECTS = ((4 / 3, 0.58), (3 / 2, 0.24), (1.0, 0.10))
_USUAL = 0.70
_UPRIGHT = 0.25
_QUALITIES = (85, 90, 93, 95)
_ROUGHNESS = 0.5
"""Median of the share of white noise where a picture is rough; with ``_QUALITIES`` it gives the size of the files."""


def picture(seed: int, index: int, size: PictureSize) -> bytes:
    rng = np.random.default_rng((seed, index))
    long_side_px = MAKES[size].long_side_px
    size_px = dimensions(rng, long_side_px)
    picture = _scene(rng, size_px)
    grade = rng.integers(len(_QUALITIES))
    return jpeg(picture, _QUALITIES[grade])


def scene(seed: int, number: int, size_px: tuple[int, int]) -> Image.Image:
    """Return a picture of a given width and height, in YCbCr."""
    generator = np.random.default_rng((seed, number))
    return _scene(generator, size_px)


def jpeg(image: Image.Image, quality: int = 90) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def dimensions(rng: np.random.Generator, long_side_px: int) -> tuple[int, int]:
    """Return width and height: mostly the usual long side, else between a quarter and three times of it."""
    if rng.random() < _USUAL:
        spread = 1.0
    else:
        drawn = rng.lognormal(-0.15, 0.45)
        spread = float(np.clip(drawn, 0.25, 3.2))
    draw = rng.random()
    aspect = rng.uniform(1.0, 1.9)
    for usual, share in _ASPECTS:
        if draw < share:
            aspect = usual
            break
        draw -= share
    long = round(long_side_px * spread)
    short = round(long_side_px * spread / aspect)
    if rng.random() < _UPRIGHT:
        return (short, long)
    return (long, short)


def _scene(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """Large soft shapes, some of them textured down to the pixel and some as smooth as a sky; colours change slowly."""
    drawn_roughness = rng.lognormal(math.log(_ROUGHNESS), 0.4)
    roughness = float(np.clip(drawn_roughness, 0.03, 0.85))
    # White noise alone would be five times the bytes of a photograph, soft shapes alone a tenth.
    large_shapes = _noise(rng, size, 64)
    small_shapes = _noise(rng, size, 8)
    shapes = Image.blend(large_shapes, small_shapes, 0.25)
    grain = _noise(rng, size, 1)
    rough = Image.blend(shapes, grain, roughness)
    mask = _noise(rng, size, 96)
    light = Image.composite(rough, shapes, mask)
    blue_difference = _noise(rng, size, 48, pale=True)
    red_difference = _noise(rng, size, 48, pale=True)
    return Image.merge("YCbCr", (light, blue_difference, red_difference))


def _noise(
    rng: np.random.Generator,
    size: tuple[int, int],
    cell_px: int,
    *,
    pale: bool = False,
) -> Image.Image:
    """One plane whose values change over about ``cell_px``; ``pale`` keeps them near the middle."""
    columns, rows = size
    if cell_px > 1:
        columns = max(2, -(-columns // cell_px))
        rows = max(2, -(-rows // cell_px))
    noise = rng.bytes(columns * rows)
    plane = Image.frombytes("L", (columns, rows), noise)
    if pale:
        curve = [64 + value // 2 for value in range(256)]
        plane = plane.point(curve)
    if cell_px == 1:
        return plane
    return plane.resize(size, Image.Resampling.BILINEAR)
