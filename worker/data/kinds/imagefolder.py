"""Images in one folder for each class, as torchvision.datasets.ImageFolder reads them, and ImageNet's own layout."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from worker.data.kinds.kind import DataKind, DataSetError, DrawnSet
from worker.data.kinds.pictures import MAKES, picture
from worker.data.listing import class_names, files
from worker.data.sets import IMAGE_SUFFIXES, FileSet
from worker.workloads.workload import CLASSES

_SYNSET = re.compile(r"n\d{8}")
TRAIN = "train"
PARTS = frozenset((TRAIN, "training", "val", "valid", "validation", "dev", "test", "testing"))
"""The names of the parts into which sets are split: folders of these names alone are parts, and no classes."""


@dataclass(frozen=True, kw_only=True)
class ImageFolder(DataKind):
    """A folder for each class, with the images in it or further below; the label is the place of the folder's name."""

    def root(self, directory: Path) -> Path:
        """Return the directory of the classes: ``train`` of a set that is split into parts, or the one that was named.

        Validation pictures are no part of an epoch. Raises DataSetError for parts of which none is called train.
        """
        names = set(class_names(directory))
        if len(names) < 2 or not names <= PARTS:
            return directory
        if TRAIN not in names:
            raise DataSetError(
                f"{directory} is split into {', '.join(sorted(names))}, and none is called {TRAIN}",
                remedy=f"name the part to train on, such as {self.name}:{directory / min(names)}",
            )
        return (directory / TRAIN).resolve()

    def open(self, root: Path, frame_stride: int) -> FileSet:  # noqa: ARG002 - no frames
        """Return the images of all classes. Raises DataSetError unless every class has one."""
        classes = _classes(root)
        places = {os.fsencode(name): number for number, name in enumerate(classes)}
        suffixes = tuple(map(str.encode, IMAGE_SUFFIXES))
        listed = [
            (path, size)
            for path, size in files(root)
            if path.partition(b"/")[0] in places and path.lower().endswith(suffixes)
        ]
        filled = set()
        for path, size in listed:
            if size:
                filled.add(path.partition(b"/")[0])
        empty = [name for name in classes if os.fsencode(name) not in filled]
        if empty:
            problem = f"{len(empty)} of {len(classes)} class folders of {root} hold no images: {', '.join(empty[:3])}"
            raise DataSetError(problem, remedy=f"fill them or remove them; images end in {', '.join(IMAGE_SUFFIXES)}")
        names = [path for path, _ in listed]
        return FileSet.of(root, names, (places[path.partition(b"/")[0]] for path in names))

    def paths(self, drawn: DrawnSet) -> list[str]:
        """Return a path for each image; it does not depend on how many there are."""
        return [f"class-{image % (drawn.classes or 1):04d}/{image:08d}.jpg" for image in range(drawn.images)]

    def content(self, drawn: DrawnSet, number: int) -> bytes:
        return picture(drawn.seed, number, drawn.size or "imagenet")

    def file_bytes(self, drawn: DrawnSet) -> int:
        return MAKES[drawn.size or "imagenet"].disk_bytes


def _classes(root: Path) -> list[str]:
    """Return the names of the class folders. Raises DataSetError for none, or more than the models tell apart."""
    # What is hidden, or is of the file system, is no class folder: it is not on every target.
    classes = class_names(root)
    if not classes:
        raise DataSetError(
            f"{root} holds no class folders", remedy="put the images into one folder for each class: DIR/CLASS/*.jpg"
        )
    if len(classes) > CLASSES:
        raise DataSetError(
            f"{root} holds {len(classes)} class folders; the models tell {CLASSES} apart",
            remedy=f"name a directory of at most {CLASSES} of them",
        )
    return classes


@dataclass(frozen=True, kw_only=True)
class ImageNet(ImageFolder):
    """ILSVRC2012, of which the training images are taken: validation images would only be copied and hashed."""

    def root(self, directory: Path) -> Path:
        """Return the directory of the classes: ``train`` of ILSVRC2012, or what was named."""
        train = directory / TRAIN
        root = train.resolve() if train.is_dir() else directory
        names = class_names(root)
        synsets = [name for name in names if _SYNSET.fullmatch(name)]
        if not synsets:
            raise DataSetError(
                f"neither {directory} nor {train} holds class folders such as n01440764",
                remedy="name the directory of train/; the archive of each class is unpacked into a folder of its name",
            )
        others = sorted(set(names) - set(synsets))
        if others:
            raise DataSetError(
                f"{root} holds folders that are no classes: {', '.join(others[:3])}",
                remedy="move them away, or put the class folders into train/; for your own classes use imagefolder:DIR",
            )
        return root


IMAGEFOLDER = ImageFolder(name="imagefolder", can_be_generated=True, sized=True)
IMAGENET = ImageNet(name="imagenet")
