"""The order in which the images of a data set are read: a function of the seed, the epoch and the place in it alone."""

import numpy as np

_SEED_STRIDE = 1 << 40  # more images than a job can read


def steps_of_epoch(images: int, batch: int) -> int:
    """Return how many whole batches, of all devices together, a data set fills; the images left over are left out."""
    return images // batch


class Order:
    """The order of every epoch: each has all of the images, shuffled by the seed and the number of the epoch."""

    def __init__(self, images: int, seed: int) -> None:
        self._images, self._seed = images, seed
        self._epoch, self._shuffled = -1, np.empty(0, np.int64)

    def index(self, epoch: int, place: int) -> int:
        if epoch != self._epoch:
            self._epoch = epoch
            self._shuffled = np.random.default_rng((self._seed, epoch)).permutation(self._images)
        return int(self._shuffled[place])

    def crop_seed(self, epoch: int, place: int) -> int:
        """Return the seed of the crop of the image at a place of an epoch."""
        return self._seed * _SEED_STRIDE + epoch * self._images + place
