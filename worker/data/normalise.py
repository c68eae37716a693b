"""Turns bytes into the floats that a network is trained on, in the scale that its workload asks for."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from worker.training.numerics import Numerics

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_SCALES = {"imagenet": (MEAN, DEVIATION), "signed": ((0.5,) * 3, (0.5,) * 3), "unit": ((0.0,) * 3, (1.0,) * 3)}
"""The mean and the deviation of each channel, by the name that a workload gives its scale."""
Array = np.ndarray[Any, Any]
Scale = tuple[Array, Array]
"""What is subtracted from the bytes of each channel, and what they are then multiplied by."""


def scale_of(pixels: str, channels: int) -> Scale:
    """Return the scale of a workload's images."""
    mean, deviation = (np.array(each[:channels], np.float32) for each in _SCALES[pixels])
    return np.float32(255) * mean, np.float32(1 / 255) / deviation


class CpuNormaliser:
    """Takes uint8 images as they are decoded, the channel last; gives floats in the layout of the numerics.

    Image by image, which stay in the cache between the three passes, and with numpy: torch would let its threads meet
    after every pass, and with loader processes on the same CPUs each meeting waits for one that is not running.
    """

    def __init__(self, batch: int, image_px: int, numerics: Numerics, threads: int, scale: Scale) -> None:
        layout = torch.channels_last if numerics.channels_last else torch.contiguous_format
        # One piece of memory for all steps: a step has ended before the next batch is taken.
        mean, factor = scale
        channels = len(mean)
        self._floats = torch.empty(batch, channels, image_px, image_px, memory_format=layout)
        self._rows = numerics.channels_last
        if self._rows:
            # Whole rows: over an innermost dimension of three nothing is vectorised.
            self._into = self._floats.permute(0, 2, 3, 1).numpy().reshape(batch, image_px, channels * image_px)
            self._mean, self._factor = np.tile(mean, image_px), np.tile(factor, image_px)
        else:
            self._into = self._floats.numpy()
            self._mean, self._factor = mean[:, None, None], factor[:, None, None]
        self._parts = np.array_split(np.arange(batch), min(threads, batch))
        self._pool = ThreadPoolExecutor(len(self._parts)) if len(self._parts) > 1 else None

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.numpy()
        source = pixels.reshape(self._into.shape) if self._rows else pixels.transpose(0, 3, 1, 2)
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
        self._mean, self._factor = (torch.from_numpy(each).to(device).view(-1, 1, 1) for each in scale)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        floats = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=self._layout)
        return floats.sub_(self._mean).mul_(self._factor)
