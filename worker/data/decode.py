"""Decodes an image into the pixels that a network is given: a crop of it, resized, and perhaps mirrored.

The crop is taken in the dimensions that the file's header tells and before anything is decoded, so that decoding can be
scaled: libjpeg-turbo leaves out what a smaller image does not need.
"""

import io
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
"""Height by width by channel."""
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""The ranges of RandomResizedCrop: share of the area, and width over height."""
_TRIES = 10
_SCALES = (8, 4, 2)
"""Divisors of an image's sides. The steps between have no vectorised code in libjpeg-turbo: 5/8 takes longer than 1."""
_MOST_PIXELS = 2 * 89_478_485
"""The number of pixels from which Pillow refuses an image: a header can claim what no memory holds."""
_KEPT_BYTES = 16 << 20


class DecodeError(Exception):
    """The file is no image that can be decoded."""


@dataclass(frozen=True)
class Crop:
    """A crop in pixels of the original image, or in fractions of those of a scaled one."""

    left: float
    top: float
    right: float
    bottom: float
    mirrored: bool = False

    def scaled(self, across: float, down: float) -> "Crop":
        return Crop(self.left * across, self.top * down, self.right * across, self.bottom * down, self.mirrored)


def draw_crop(width: int, height: int, seed: int) -> Crop:
    """Draw a crop as torchvision's RandomResizedCrop and RandomHorizontalFlip do: whole if none of ten fits."""
    draw = random.Random(seed)  # noqa: S311 - crops, not secrets
    mirrored = draw.random() < 0.5
    for _ in range(_TRIES):
        area = width * height * draw.uniform(*AREA)
        ratio = math.exp(draw.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, top = draw.randint(0, width - across), draw.randint(0, height - down)
            return Crop(left, top, left + across, top + down, mirrored)
    across, down = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, top = (width - across) // 2, (height - down) // 2
    return Crop(left, top, left + across, top + down, mirrored)


def centre_crop(width: int, height: int, _seed: int) -> Crop:
    """Return the largest square in the middle: PyTorch's example of DCGAN trains on that (Resize and CenterCrop).

    Of CelebA's aligned images of 178 x 218 pixels it is the part of 178 x 178 at (0, 20).
    """
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return Crop(left, top, left + side, top + side)


CROPS: Mapping[str, Callable[[int, int, int], Crop]] = {"random": draw_crop, "centre": centre_crop}
"""The crops that a workload can ask for, from an image's width and height and a seed."""


def divisor(crop: Crop, image_px: int) -> int:
    """Return how much smaller decoding can make the image while the crop keeps at least the size that is wanted."""
    least = min(crop.right - crop.left, crop.bottom - crop.top)
    return next((by for by in _SCALES if least >= by * image_px), 1)


def resize(pixels: Pixels, crop: Crop, into: torch.Tensor) -> None:
    """Put the crop into a square, height by width by channel; one channel is repeated where the square has three.

    torch resizes as Pillow does, in vectorised code.
    """
    left, top = round(crop.left), round(crop.top)
    right, bottom = max(left + 1, round(crop.right)), max(top + 1, round(crop.bottom))
    part = torch.from_numpy(pixels)[top:bottom, left:right].permute(2, 0, 1)[None]
    part = part.expand(-1, into.shape[2], -1, -1)
    # torch.nn.functional.interpolate takes no ``out``, and memory that is new for each image is faulted in each time.
    torch.ops.aten._upsample_bilinear2d_aa.out(part, into.shape[:2], False, None, None, out=into.permute(2, 0, 1)[None])
    if crop.mirrored:
        into.copy_(into.flip(1))


class Decoder:
    """Decodes with simplejpeg (libjpeg-turbo) or Pillow; ``auto`` with the first, and the second where that refuses."""

    def __init__(self, name: str, image_px: int, crop: str) -> None:
        self._px, self._crop_of = image_px, CROPS[crop]
        self._falls_back = name == "auto"
        self._buffer = np.empty(_KEPT_BYTES, np.uint8)  # a fresh one for each image would be faulted in each time
        self._turbo: Any = None
        self.name = "pillow"
        if name != "pillow":
            import simplejpeg

            self._turbo, self.name = simplejpeg, "simplejpeg"

    def crop(self, data: Pixels | bytes, seed: int, into: torch.Tensor) -> None:
        """Put a square of an image into a tensor. What is drawn depends on the seed and the image's size alone.

        Raises DecodeError.
        """
        resize(*self._decoded(data, seed), into)

    def _decoded(self, data: Pixels | bytes, seed: int) -> tuple[Pixels, Crop]:
        if isinstance(data, np.ndarray):
            return data, self._crop_of(data.shape[1], data.shape[0], seed)
        if self._turbo:
            try:
                return self._by_turbo(data, seed)
            except ValueError as error:  # no JPEG, of another colour space, or damaged
                if not self._falls_back:
                    raise DecodeError(str(error)) from error
        try:
            return self._by_pillow(data, seed)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DecodeError(str(error)) from error

    def _by_turbo(self, data: bytes, seed: int) -> tuple[Pixels, Crop]:
        height, width, *_ = self._turbo.decode_jpeg_header(data)
        _check_size(width, height)
        crop = self._crop_of(width, height, seed)
        by = divisor(crop, self._px)
        down, across = -(-height // by), -(-width // by)
        buffer = self._buffer if down * across * 3 <= _KEPT_BYTES else None
        pixels = self._turbo.decode_jpeg(data, "RGB", min_height=down, min_width=across, buffer=buffer)
        return pixels, crop.scaled(pixels.shape[1] / width, pixels.shape[0] / height)

    def _by_pillow(self, data: bytes, seed: int) -> tuple[Pixels, Crop]:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            _check_size(width, height)
            crop = self._crop_of(width, height, seed)
            by = divisor(crop, self._px)
            image.draft("RGB", (width // by, height // by))
            pixels = np.array(image.convert("RGB"))
        return pixels, crop.scaled(pixels.shape[1] / width, pixels.shape[0] / height)


def _check_size(width: int, height: int) -> None:
    if width * height > _MOST_PIXELS:
        raise ValueError(f"{width} x {height} pixels are claimed")
