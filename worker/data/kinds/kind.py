"""A kind of data set: its layout in a directory of the user's, and how its images are found there.

The same code counts and checks on the host, before anything is started, and opens the set inside a target. It has no
torch. A kind of another package is one module, of which the text is sent into the target, as for a workload.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from worker.data.sets import ImageSet


class DataSetError(Exception):
    """The directory does not hold a whole data set of the kind. ``remedy`` says what to do."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


MOST_BYTES = 1 << 30
"""The largest file that is read into memory, over twenty times the largest of MNIST and CIFAR-10."""
MOST_LIST_BYTES = 1 << 25
"""The largest list of names, ten times CelebA's."""
_LEAST_ALLOCATED = 0.01
"""The share of a file that is on a disk, at least: a compressing file system keeps several percent."""


def read_bounded(path: Path, remedy: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a file. Raises DataSetError for one that is too large, or almost all holes, and OSError."""
    # A pipe is not waited for.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise DataSetError(f"{path} is no file", remedy=remedy)
        if info.st_size > most_bytes:
            told = f"{path} has {info.st_size} bytes, and at most {most_bytes} are read"
            raise DataSetError(told, remedy=remedy)
        allocated = info.st_blocks * 512
        # Some file systems, of a network for instance, tell of no blocks at all.
        if 0 < allocated < info.st_size * _LEAST_ALLOCATED:
            told = f"{path} is sparse: of its {info.st_size} bytes {allocated} are on the disk"
            raise DataSetError(told, remedy=remedy)
        return file.read(most_bytes)


@dataclass(frozen=True, kw_only=True)
class DataKind:
    """The declaration of a kind. A subclass implements ``open``."""

    name: str
    channels: Literal[1, 3] = 3
    """The channels of its images. Files are decoded to three, whatever they hold."""
    image_px: int | None = None
    """The width and height of its images; None where they are not squares of one size."""
    has_videos: bool = False
    """Whether images are frames of videos, of which one in so many can be taken."""

    def root(self, directory: Path) -> Path:
        """Return the directory that is read, and that targets see, of the one that the user named."""
        return directory

    def open(self, root: Path, frame_stride: int) -> "ImageSet":
        """Return the images to train on. Of videos, take one frame in ``frame_stride``.

        Raises DataSetError, or OSError, unless all that the set must have is there.
        """
        raise NotImplementedError
