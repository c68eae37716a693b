"""Fills places in shared memory with the images of a batch; the same images, whichever process does it."""

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from worker.data.decode import DecodeError, Decoder
from worker.data.sets import ImageSet
from worker.data.tally import Tally, shared
from worker.spec import Spec

_MOST_SUBSTITUTES = 100
_SEED_STRIDE = 1 << 40  # more images than a job can read


class SetDamagedError(Exception):
    """Too many files in a row could not be decoded; the rest is not tried."""


class Order:
    """The endless order in which images are read: each epoch has all of them, shuffled by the seed."""

    def __init__(self, images: int, seed: int) -> None:
        self._images, self._seed = images, seed
        self._epoch, self._shuffled = -1, np.empty(0, np.int64)

    def index(self, position: int) -> int:
        epoch, place = divmod(position, self._images)
        if epoch != self._epoch:
            self._epoch = epoch
            self._shuffled = np.random.default_rng((self._seed, epoch)).permutation(self._images)
        return int(self._shuffled[place])


def crop_seed(seed: int, position: int) -> int:
    """Return the seed of the crop of the image at a position of the endless order."""
    return seed * _SEED_STRIDE + position


class Filler(Dataset[int]):
    """Fills places with batches, in one of the loader's processes or in the training process itself.

    Batch ``number`` of device ``part`` is a fixed stretch of the order, and a crop depends on the seed and the place in
    the order alone: how many processes share the work changes nothing.
    """

    def __init__(self, spec: Spec, images: ImageSet, decoder: Decoder, part: int, tally: Tally, places: int) -> None:
        self.pixels = torch.from_numpy(
            shared((places, spec.batch, spec.image_px, spec.image_px, spec.shape.channels), np.uint8)
        )
        self.labels = torch.from_numpy(shared((places, spec.batch), np.int64))
        self._spec, self._images, self._decoder, self._part, self._tally = spec, images, decoder, part, tally
        self._order = Order(len(images), spec.seed)

    def __getitem__(self, number: int) -> int:
        """Fill the place of a batch, and return which it is."""
        info = get_worker_info()
        process = info.id if info else 0
        batch, place = self._spec.batch, number % len(self.pixels)
        first = (number * self._spec.devices + self._part) * batch
        for nth in range(batch):
            if self._tally.stopped(process):
                break
            self.labels[place, nth] = self._fill(process, first + nth, self.pixels[place, nth])
        return place

    def _fill(self, process: int, position: int, into: torch.Tensor) -> int:
        """Read an image, or the next of the set where that one is damaged. Returns its label.

        Raises SetDamagedError.
        """
        first, seed = self._order.index(position), crop_seed(self._spec.seed, position)
        for index in range(first, first + min(_MOST_SUBSTITUTES, len(self._images))):
            index %= len(self._images)
            try:
                data = self._images.read(index)
                self._tally.read(process, len(data) if isinstance(data, bytes) else 0)
                self._decoder.crop(data, seed, into)
            except (OSError, DecodeError):
                self._tally.damaged(process, index)
            else:
                return self._images.label(index)
        raise SetDamagedError
