"""The images of a data set, and the order in which they are read."""

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The suffixes that torchvision.datasets.ImageFolder takes, in any case."""
_MOST_BYTES = 1 << 28
"""The largest file of one image; the largest of ImageNet has 15 MB."""
_SEED_STRIDE = 1 << 40  # more images than a job can read


@dataclass(frozen=True)
class ImageSet:
    """The images that a loader reads. They are passed on to the loader's processes by forking."""

    labels: np.ndarray[Any, Any]

    @property
    def loaded_bytes(self) -> int:
        """Return how many bytes of the files were read beforehand."""
        return 0

    def __len__(self) -> int:
        return len(self.labels)

    def label(self, index: int) -> int:
        return int(self.labels[index])

    def name(self, index: int) -> str:
        raise NotImplementedError

    def read(self, index: int) -> bytes | np.ndarray[Any, Any]:
        """Return the content of an image's file, or its pixels. Raises OSError."""
        raise NotImplementedError


@dataclass(frozen=True)
class FileSet(ImageSet):
    """One file for each image.

    A list of a million paths would be copied page by page in every loader process, because counting references
    writes to them: the paths are one piece of memory instead.
    """

    root: str
    paths: bytes
    ends: np.ndarray[Any, Any]

    @classmethod
    def of(cls, root: Path, names: Sequence[bytes], labels: Iterable[int]) -> "FileSet":
        lengths = [len(name) for name in names]
        ends = np.cumsum(lengths, dtype=np.int64)
        classes = np.fromiter(labels, np.int64, len(names))
        return cls(classes, str(root), b"".join(names), ends)

    def name(self, index: int) -> str:
        begin = int(self.ends[index - 1]) if index else 0
        path = self.paths[begin : int(self.ends[index])]
        return os.fsdecode(path)

    def read(self, index: int) -> bytes:
        with Path(self.root, self.name(index)).open("rb") as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), self.name(index))
            return file.read()


@dataclass(frozen=True)
class PixelSet(ImageSet):
    """All images in memory: uint8, height by width by channel."""

    pixels: np.ndarray[Any, Any]

    @property
    def loaded_bytes(self) -> int:
        return int(self.pixels.nbytes)

    def name(self, index: int) -> str:
        return f"image {index}"

    def read(self, index: int) -> np.ndarray[Any, Any]:
        image: np.ndarray[Any, Any] = self.pixels[index]
        return image


def steps_of_epoch(images: int, batch: int) -> int:
    """Return how many whole batches, of all devices together, a data set fills; the images left over are left out."""
    return images // batch


class Order:
    """The order of every epoch: each has all of the images, shuffled by the seed and the number of the epoch."""

    def __init__(self, images: int, seed: int) -> None:
        self._images = images
        self._seed = seed
        self._epoch = -1
        self._shuffled = np.empty(0, np.int64)

    def index(self, epoch: int, place: int) -> int:
        if epoch != self._epoch:
            self._epoch = epoch
            generator = np.random.default_rng((self._seed, epoch))
            self._shuffled = generator.permutation(self._images)
        return int(self._shuffled[place])

    def crop_seed(self, epoch: int, place: int) -> int:
        """Return the seed of the crop of the image at a place of an epoch."""
        return self._seed * _SEED_STRIDE + epoch * self._images + place
