"""Decodes an image into the pixels of a crop, and turns those into the floats that a network is trained on.

The crop is taken in the dimensions of the file's header and before anything is decoded, so that decoding can be scaled:
libjpeg-turbo leaves out what a smaller image does not need.
"""

import io
import math
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from worker.training.device import Numerics

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
"""Height by width by channel."""
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
"""The ranges of RandomResizedCrop: share of the area, and width over height."""
_SCALES = (8, 4, 2)
"""Divisors of an image's sides. The steps between have no vectorised code in libjpeg-turbo: 5/8 takes longer than 1."""
_MOST_PIXELS = 2 * 89_478_485
"""The number of pixels from which Pillow refuses an image: a header can claim what no memory holds."""
_KEPT_BYTES = 16 << 20
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
_PIXEL_SCALES = {
    "imagenet": (MEAN, DEVIATION),
    "signed": ((0.5,) * 3, (0.5,) * 3),
    "unit": ((0.0,) * 3, (1.0,) * 3),
}
"""The mean and the deviation of each channel, by the name that a workload gives its scale."""
Array = np.ndarray[Any, Any]
Scale = tuple[Array, Array]
"""What is subtracted from the bytes of each channel, and what they are then multiplied by."""


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
        return Crop(
            self.left * across,
            self.top * down,
            self.right * across,
            self.bottom * down,
            self.mirrored,
        )


def draw_crop(width: int, height: int, seed: int) -> Crop:
    """Draw a crop as torchvision's RandomResizedCrop and RandomHorizontalFlip do: whole if none of ten fits."""
    draw = random.Random(seed)  # noqa: S311 - crops, not secrets
    mirrored = draw.random() < 0.5
    for _ in range(10):
        share = draw.uniform(*AREA)
        area = width * height * share
        lower = math.log(RATIO[0])
        upper = math.log(RATIO[1])
        logarithm = draw.uniform(lower, upper)
        ratio = math.exp(logarithm)
        across = round(math.sqrt(area * ratio))
        down = round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left = draw.randint(0, width - across)
            top = draw.randint(0, height - down)
            right = left + across
            bottom = top + down
            return Crop(left, top, right, bottom, mirrored)
    across = min(width, round(height * RATIO[1]))
    down = min(height, round(width / RATIO[0]))
    left = (width - across) // 2
    top = (height - down) // 2
    right = left + across
    bottom = top + down
    return Crop(left, top, right, bottom, mirrored)


def centre_crop(width: int, height: int, _seed: int) -> Crop:
    """Return the largest square in the middle: PyTorch's example of DCGAN trains on that (Resize and CenterCrop).

    Of CelebA's aligned images of 178 x 218 pixels it is the part of 178 x 178 at (0, 20).
    """
    side = min(width, height)
    left = (width - side) // 2
    top = (height - side) // 2
    return Crop(left, top, left + side, top + side)


CROPS: Mapping[str, Callable[[int, int, int], Crop]] = {"random": draw_crop, "centre": centre_crop}
"""The crops that a workload can ask for, from an image's width and height and a seed."""


def divisor(crop: Crop, image_px: int) -> int:
    """Return how much smaller decoding can make the image while the crop keeps at least the size that is wanted."""
    width = crop.right - crop.left
    height = crop.bottom - crop.top
    least = min(width, height)
    fitting = (by for by in _SCALES if least >= by * image_px)
    return next(fitting, 1)


def resize(pixels: Pixels, crop: Crop, into: torch.Tensor) -> None:
    """Put the crop into a square, height by width by channel; one channel is repeated where the square has three.

    torch resizes as Pillow does, in vectorised code.
    """
    left = round(crop.left)
    top = round(crop.top)
    right = max(left + 1, round(crop.right))
    bottom = max(top + 1, round(crop.bottom))
    cropped = torch.from_numpy(pixels)[top:bottom, left:right]
    part = cropped.permute(2, 0, 1)[None]
    part = part.expand(-1, into.shape[2], -1, -1)
    # torch.nn.functional.interpolate takes no ``out``, and memory that is new for each image is faulted in each time.
    rows = into.permute(2, 0, 1)
    torch.ops.aten._upsample_bilinear2d_aa.out(
        part,
        into.shape[:2],
        False,
        None,
        None,
        out=rows[None],
    )
    if crop.mirrored:
        into.copy_(into.flip(1))


class Decoder:
    """Decodes with simplejpeg (libjpeg-turbo) or Pillow; ``auto`` with the first, and the second where that refuses."""

    def __init__(self, name: str, image_px: int, crop: str) -> None:
        self._px = image_px
        self._crop_of = CROPS[crop]
        self._falls_back = name == "auto"
        self._buffer = np.empty(_KEPT_BYTES, np.uint8)  # a fresh one for each image would be faulted in each time
        self._turbo: Any = None
        if name != "pillow":
            import simplejpeg

            self._turbo = simplejpeg

    def crop(self, data: Pixels | bytes, seed: int, into: torch.Tensor) -> str:
        """Put a square of an image into a tensor. What is drawn depends on the seed and the image's size alone.

        Returns the name of the library that decoded it. Raises DecodeError.
        """
        name, pixels, crop = self._decoded(data, seed)
        resize(pixels, crop, into)
        return name

    def _decoded(self, data: Pixels | bytes, seed: int) -> tuple[str, Pixels, Crop]:
        if isinstance(data, np.ndarray):
            height, width = data.shape[:2]
            crop = self._crop_of(width, height, seed)
            return "none", data, crop
        if self._turbo:
            try:
                pixels, crop = self._by_turbo(data, seed)
                return "simplejpeg", pixels, crop
            except MemoryError:
                raise
            except Exception as error:  # no JPEG, of another colour space, or damaged
                if not self._falls_back:
                    raise DecodeError(str(error)) from error
        try:
            pixels, crop = self._by_pillow(data, seed)
            return "pillow", pixels, crop
        except MemoryError:
            raise
        except Exception as error:  # plugins raise whatever a damaged file leads them to
            raise DecodeError(str(error)) from error

    def _by_turbo(self, data: bytes, seed: int) -> tuple[Pixels, Crop]:
        height, width, *_ = self._turbo.decode_jpeg_header(data)
        _check_size(width, height)
        crop = self._crop_of(width, height, seed)
        by = divisor(crop, self._px)
        down = -(-height // by)
        across = -(-width // by)
        decoded_bytes = down * across * 3
        buffer = self._buffer if decoded_bytes <= _KEPT_BYTES else None
        pixels = self._turbo.decode_jpeg(
            data,
            "RGB",
            min_height=down,
            min_width=across,
            buffer=buffer,
        )
        across_scale = pixels.shape[1] / width
        down_scale = pixels.shape[0] / height
        return pixels, crop.scaled(across_scale, down_scale)

    def _by_pillow(self, data: bytes, seed: int) -> tuple[Pixels, Crop]:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            _check_size(width, height)
            crop = self._crop_of(width, height, seed)
            by = divisor(crop, self._px)
            image.draft("RGB", (width // by, height // by))
            colours = image.convert("RGB")
            pixels = np.array(colours)
        across_scale = pixels.shape[1] / width
        down_scale = pixels.shape[0] / height
        return pixels, crop.scaled(across_scale, down_scale)


def _check_size(width: int, height: int) -> None:
    if width * height > _MOST_PIXELS:
        raise ValueError(f"{width} x {height} pixels are claimed")


def scale_of(pixels: str, channels: int) -> Scale:
    means, deviations = _PIXEL_SCALES[pixels]
    mean = np.array(means[:channels], np.float32)
    deviation = np.array(deviations[:channels], np.float32)
    subtrahend = np.float32(255) * mean
    factor = np.float32(1 / 255) / deviation
    return subtrahend, factor


class CpuNormaliser:
    """Takes uint8 images as they are decoded, the channel last; gives floats in the layout of the numerics.

    Image by image, which stay in the cache between the three passes, and with numpy: torch would let its threads meet
    after every pass, and with loader processes on the same CPUs each meeting waits for one that is not running.
    """

    def __init__(
        self,
        batch: int,
        image_px: int,
        numerics: Numerics,
        threads: int,
        scale: Scale,
    ) -> None:
        layout = torch.channels_last if numerics.channels_last else torch.contiguous_format
        # One piece of memory for all steps: a step has ended before the next batch is taken.
        mean, factor = scale
        channels = len(mean)
        self._floats = torch.empty(batch, channels, image_px, image_px, memory_format=layout)
        self._rows = numerics.channels_last
        if self._rows:
            # Whole rows: over an innermost dimension of three nothing is vectorised.
            rows = self._floats.permute(0, 2, 3, 1)
            self._into = rows.numpy().reshape(batch, image_px, channels * image_px)
            self._mean = np.tile(mean, image_px)
            self._factor = np.tile(factor, image_px)
        else:
            self._into = self._floats.numpy()
            self._mean = mean[:, None, None]
            self._factor = factor[:, None, None]
        indices = np.arange(batch)
        self._parts = np.array_split(indices, min(threads, batch))
        self._pool: ThreadPoolExecutor | None = None
        if len(self._parts) > 1:
            self._pool = ThreadPoolExecutor(len(self._parts))

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.numpy()
        if self._rows:
            source = pixels.reshape(self._into.shape)
        else:
            source = pixels.transpose(0, 3, 1, 2)
        work = self._pool.map if self._pool else map
        for _ in work(lambda part: self._convert(part, source), self._parts):
            pass
        return self._floats

    def _convert(self, part: Array, source: Array) -> None:
        for number in part:
            image = self._into[number]
            np.copyto(image, source[number])
            np.subtract(image, self._mean, out=image)
            np.multiply(image, self._factor, out=image)

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown()


class CudaNormaliser:
    """The same on the device that the bytes were copied to."""

    def __init__(self, numerics: Numerics, device: str, scale: Scale) -> None:
        self._layout = torch.channels_last if numerics.channels_last else torch.contiguous_format
        mean, factor = scale
        self._mean = torch.from_numpy(mean).to(device).view(-1, 1, 1)
        self._factor = torch.from_numpy(factor).to(device).view(-1, 1, 1)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        planes = images.permute(0, 3, 1, 2)
        floats = planes.to(torch.float32, memory_format=self._layout)
        return floats.sub_(self._mean).mul_(self._factor)
