"""The images of a data set, as torchvision finds them: the label, the file's name and the content of each."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from worker.data.listing import class_names
from worker.errors import JobError
from worker.spec import Data
from worker.training.models import import_torchvision
from worker.workloads.workload import CLASSES


@dataclass(frozen=True)
class ImageSet:
    """The images that a loader reads. They are passed on to the loader's processes by forking."""

    labels: np.ndarray[Any, Any]
    encoded: ClassVar[bool]
    """Whether images are files to be decoded, or pixels that are in memory already."""

    @property
    def loaded_bytes(self) -> int:
        """Return how many bytes of the files were read beforehand."""
        return 0

    def __len__(self) -> int:
        return len(self.labels)

    def label(self, index: int) -> int:
        return int(self.labels[index])

    def name(self, index: int) -> str:
        """Return the name of an image's file, relative to the data set."""
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
    encoded: ClassVar[bool] = True

    def name(self, index: int) -> str:
        begin = int(self.ends[index - 1]) if index else 0
        return os.fsdecode(self.paths[begin : int(self.ends[index])])

    def read(self, index: int) -> bytes:
        return Path(self.root, self.name(index)).read_bytes()


@dataclass(frozen=True)
class PixelSet(ImageSet):
    """All images in memory: uint8, height by width, with one channel or three."""

    pixels: np.ndarray[Any, Any]
    encoded: ClassVar[bool] = False

    @property
    def loaded_bytes(self) -> int:
        return int(self.pixels.nbytes)

    def name(self, index: int) -> str:
        return f"image {index}"

    def read(self, index: int) -> np.ndarray[Any, Any]:
        image = self.pixels[index]
        return np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image


def open_images(data: Data) -> ImageSet:
    """Open the set. Raises JobError of kind ``data`` for a directory that does not hold it."""
    datasets: Any = import_torchvision().datasets
    images: ImageSet
    try:
        if data.kind in ("imagenet", "imagefolder"):
            images = _open_folder(datasets.folder, data)
        else:
            kind = datasets.CIFAR10 if data.kind == "cifar10" else datasets.MNIST
            made = kind(data.directory, train=True, download=False)
            images = PixelSet(np.asarray(made.targets, dtype=np.int64), np.ascontiguousarray(made.data))
    except (OSError, RuntimeError) as error:
        raise JobError(f"{data.directory} is no readable data set of kind {data.kind}: {error}", kind="data") from error
    if not len(images):
        raise JobError(f"the class folders of {data.directory} hold no images", kind="data")
    return images


def _open_folder(torchvision: Any, data: Data) -> FileSet:  # noqa: ANN401 - a module of torchvision, which has no types
    train = Path(data.directory, "train")
    root = str(train) if data.kind == "imagenet" and train.is_dir() else data.directory
    # What is hidden, or is of the file system, is no class folder: it is not on every target.
    classes = class_names(root)
    if not classes:
        raise JobError(f"{root} holds no class folders: images belong into DIR/CLASS/", kind="data")
    if len(classes) > CLASSES:
        raise JobError(f"{root} holds {len(classes)} class folders; the models tell {CLASSES} apart", kind="data")

    def is_image(path: str) -> bool:
        allowed: bool = torchvision.has_file_allowed_extension(path, torchvision.IMG_EXTENSIONS)
        return allowed and not Path(path).name.startswith(".")

    labels = {name: label for label, name in enumerate(classes)}
    found = torchvision.make_dataset(root, labels, is_valid_file=is_image, allow_empty=True)
    names = [os.fsencode(os.path.relpath(path, root)) for path, _ in found]
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    return FileSet(np.array([label for _, label in found], dtype=np.int64), root, b"".join(names), ends)
