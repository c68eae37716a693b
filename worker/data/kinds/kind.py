"""A kind of data set: its layout in a user's directory, how its images are found there, and how such a set is drawn.

The same code counts and checks on the host, before anything is started, and opens the set inside a target. It has no
torch. A kind of another package is one module, of which the text is sent into the target, as for a workload.
"""

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from worker.data.sets import ImageSet

MOST_BYTES = 1 << 30
"""The largest file that is read into memory, over twenty times the largest of MNIST and CIFAR-10."""
MOST_LIST_BYTES = 1 << 25
"""The largest list of names, ten times CelebA's."""
_LEAST_ALLOCATED = 0.01
"""The share of a file that is on a disk, at least: a compressing file system keeps several percent."""
_Item = TypeVar("_Item")
PictureSize = Literal["imagenet", "small"]
PICTURE_SIZES: tuple[PictureSize, ...] = ("imagenet", "small")


class DataSetError(Exception):
    """The directory does not hold a whole data set of the kind. ``remedy`` says what to do."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def read_bounded(path: Path, remedy: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a file. Raises DataSetError for one that is too large, or almost all holes, and OSError."""
    # A pipe is not waited for.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise DataSetError(f"{path} is no file", remedy=remedy)
        if info.st_size > most_bytes:
            raise DataSetError(f"{path} has {info.st_size} bytes, and at most {most_bytes} are read", remedy=remedy)
        allocated = info.st_blocks * 512
        # Some file systems, network file systems for instance, report no blocks at all.
        if 0 < allocated < info.st_size * _LEAST_ALLOCATED:
            sparse = f"{path} is sparse: of its {info.st_size} bytes {allocated} are on the disk"
            raise DataSetError(sparse, remedy=remedy)
        return file.read(most_bytes)


def read_list(path: Path, parse: Callable[[str], _Item | None], form: str, remedy: str) -> list[_Item]:
    """Return what each line of a list holds, without the empty ones. Raises DataSetError for one of another form."""
    rows = []
    text = read_bounded(path, remedy, MOST_LIST_BYTES).decode(errors="replace")
    for number, line in enumerate(text.split("\n"), start=1):
        item = parse(line.strip())
        if item:
            rows.append(item)
        elif line.strip():
            raise DataSetError(f"{path}:{number}: {line[:60]!r} is not {form}", remedy=remedy)
    return rows


class DrawnSet(Protocol):
    """The parameters of a generated set. ``size`` and ``classes`` are None unless the kind is ``sized``."""

    @property
    def seed(self) -> int: ...
    @property
    def images(self) -> int:
        """The images to train on."""

    @property
    def size(self) -> PictureSize | None: ...
    @property
    def classes(self) -> int | None: ...


@dataclass(frozen=True, kw_only=True)
class DataKind:
    """The declaration of a kind. A subclass implements ``open``; one that can be generated, the three last methods."""

    name: str
    channels: Literal[1, 3] = 3
    """The channels of its images. Files are decoded to three, whatever they hold."""
    image_px: int | None = None
    """The width and height of its images; None if they are not squares of one size."""
    has_videos: bool = False
    """Whether images are frames of videos, of which one in so many can be taken."""
    can_be_generated: bool = False
    """Whether ``bench data make --format`` can draw a set of this kind."""
    sized: bool = False
    """Whether ``--size`` and ``--classes`` are for it to choose: other kinds fix their sizes and labels."""
    least_images: int = 1
    """The fewest images of a generated set."""

    def root(self, directory: Path) -> Path:
        """Return the directory that is read, and that targets see, of the one that the user named."""
        return directory

    def open(self, root: Path, frame_stride: int) -> "ImageSet":
        """Return the images to train on. Of videos, take one frame in ``frame_stride``.

        Raises DataSetError, or OSError, unless all that the set must have is there.
        """
        raise NotImplementedError

    def paths(self, drawn: DrawnSet) -> Sequence[str]:
        """Return the path of every file of a generated set; a file's place in it is its number."""
        raise NotImplementedError

    def content(self, drawn: DrawnSet, number: int) -> bytes:
        """Draw a file. Its bytes follow from the set's description and the file's number alone."""
        raise NotImplementedError

    def file_bytes(self, drawn: DrawnSet) -> int:
        """Return the mean disk space of a file, with what is lost in its last block."""
        raise NotImplementedError


def held_out(images: int) -> int:
    """Return how many images each part of a generated set has that is not trained on."""
    return max(1, images // 6)
