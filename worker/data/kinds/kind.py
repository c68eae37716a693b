"""A kind of data set: its layout in a directory of the user's, and how its images are found there.

The same code counts and checks on the host, before anything is started, and opens the set inside a target. It has no
torch. A kind of another package is one module, of which the text is sent into the target, as for a workload.
"""

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
