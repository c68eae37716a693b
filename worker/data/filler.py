"""Fills places in shared memory with the images of a batch; the same images, whichever process does it."""

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from worker.data.decode import DecodeError, Decoder
from worker.data.order import Order, steps_of_epoch
from worker.data.sets import ImageSet
from worker.data.tally import Tally, shared
from worker.spec import Spec

_MOST_SUBSTITUTES = 100


class SetDamagedError(Exception):
    """Too many files in a row could not be decoded; the rest is not tried."""


class Filler(Dataset[int]):
    """Fills places with batches, in one of the loader's processes or in the training process itself.

    Batch ``number`` of device ``part`` is a fixed stretch of an epoch, and a crop depends on the seed, the epoch and
    the place in it alone: how many processes share the work changes nothing.
    """

    def __init__(self, spec: Spec, images: ImageSet, decoder: Decoder, part: int, tally: Tally, places: int) -> None:
        self.pixels = torch.from_numpy(
            shared((places, spec.batch, spec.image_px, spec.image_px, spec.shape.channels), np.uint8)
        )
        self.labels = torch.from_numpy(shared((places, spec.batch), np.int64))
        self._spec, self._images, self._decoder, self._part, self._tally = spec, images, decoder, part, tally
        self._order = Order(len(images), spec.seed)
        self.epoch_steps = steps_of_epoch(len(images), spec.batch * spec.devices)

    def __getitem__(self, number: int) -> int:
        """Fill the place of a batch, and return which it is."""
        info = get_worker_info()
        process = info.id if info else 0
        batch, place = self._spec.batch, number % len(self.pixels)
        epoch, step = divmod(number, self.epoch_steps)
        first = (step * self._spec.devices + self._part) * batch
        for nth in range(batch):
            if self._tally.stopped(process):
                break
            self.labels[place, nth] = self._fill(process, epoch, first + nth, self.pixels[place, nth])
        return place

    def _fill(self, process: int, epoch: int, place: int, into: torch.Tensor) -> int:
        """Read an image, or the next of the set where that one is damaged. Returns its label.

        Raises SetDamagedError.
        """
        first, seed = self._order.index(epoch, place), self._order.crop_seed(epoch, place)
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
