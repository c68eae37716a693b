"""Resolves ``--data`` to a data set, and reports everything wrong with it before anything is started."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from scenarios.datasets.found import finished, newest
from suite.errors import RequestError
from suite.job.datasets import GENERATED, KINDS, SYNTHETIC, Dataset, Kind, parse_data
from worker.data.listing import class_names, files, summary
from worker.workloads.workload import CLASSES

# The layouts that a user's own copy of a data set must have are those that torchvision reads.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The suffixes that torchvision.datasets.ImageFolder takes, in any case."""
_SYNSET = re.compile(r"n\d{8}")
_CIFAR10 = tuple(
    f"cifar-10-batches-py/{name}"
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
)
_MNIST = tuple(
    f"MNIST/raw/{part}-{content}-ubyte" for part in ("train", "t10k") for content in ("images-idx3", "labels-idx1")
)
FIXED: dict[str, tuple[int, tuple[str, ...], str]] = {
    "cifar10": (50_000, _CIFAR10, "unpack cifar-10-python.tar.gz in the directory that you name"),
    "mnist": (
        60_000,
        _MNIST,
        "put the four files, unpacked (gunzip), into MNIST/raw below the directory that you name",
    ),
}
"""Images to train on, files that have to be there, and what to do where they are not."""


def resolve(text: str, home: Path) -> tuple[str, Dataset]:
    """Return the name of the data in records, and the data set. ``home`` is the suite's folder, for ``generated``.

    Raises RequestError for what is not a data set, or not a whole one.
    """
    name, given = parse_data(text)
    if name == SYNTHETIC:
        raise RequestError("--data synthetic is drawn in memory: there are no files", remedy="use --scenario synthetic")
    directory = Path(given).expanduser() if given else newest(home)
    try:
        root = _directory(directory).resolve()
        if '"' in str(root) or not str(root).isprintable():
            raise RequestError(
                f"--data {name}: {str(root)!r} holds a quotation mark or a control character, and engines would read "
                "the name of another directory",
                remedy="rename it, or bind-mount it under another name",
            )
        if name == GENERATED:
            finished(root)
        return name, _dataset(next((kind for kind in KINDS if kind == name), "imagefolder"), root)
    except OSError as error:
        raise RequestError(
            f"--data {name}: cannot read {error.filename or directory}: {error.strerror}",
            remedy="see who may read it, and whether its links lead somewhere",
        ) from error


def _directory(path: Path) -> Path:
    if not path.exists():
        raise RequestError(f"there is no {path}", remedy="name a directory that exists")
    if not path.is_dir():
        raise RequestError(f"{path} is not a directory", remedy="name the directory that holds the data set")
    with os.scandir(path) as entries:
        if not any(entries):
            raise RequestError(f"{path} is empty", remedy="name the directory that holds the data set")
    return path


def _dataset(kind: Kind, root: Path) -> Dataset:
    if kind == "imagenet":
        root = imagenet_root(root)
    _refuse_links_that_leave(root)
    if kind in FIXED:
        images, found = check_fixed(kind, root), summary(files(root))
    else:
        count = ImageCount()
        found = summary(count.counting(files(root)))
        images = count.total(root)
    return Dataset(kind=kind, directory=str(root), sha256=found.sha256, images=images, size_bytes=found.size_bytes)


def _refuse_links_that_leave(root: Path) -> None:
    """Every target sees this directory alone, at another place: such a link would lead nowhere in all of them."""
    leaving = [
        path
        for path, to in _links(str(root))
        if to.startswith("/") or not Path(os.path.normpath(Path(path).parent / to)).is_relative_to(root)
    ]
    if leaving:
        raise RequestError(
            f"{root} holds {len(leaving)} links that lead nowhere in a container or a VM, such as {leaving[0]}",
            remedy=f"make a tree without links, of hard links if it is one disk: cp -rlL {root} NEW, or else cp -rL",
        )


def _links(directory: str) -> Iterator[tuple[str, str]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink():
                yield entry.path, str(Path(entry.path).readlink())
            elif entry.is_dir():
                yield from _links(entry.path)


def imagenet_root(directory: Path) -> Path:
    """Return the directory of the classes: ``train`` of ILSVRC2012, or what was named. Raises RequestError without any.

    Nothing else of a whole ILSVRC2012 is taken: validation images would only be copied and hashed.
    """
    train = directory / "train"
    root = train.resolve() if train.is_dir() else directory
    names = class_names(root)
    synsets = [name for name in names if _SYNSET.fullmatch(name)]
    if not synsets:
        raise RequestError(
            f"--data imagenet: neither {directory} nor {train} holds class folders such as n01440764",
            remedy="name the directory of train/; the archive of each class is unpacked into a folder of its name",
        )
    if others := sorted(set(names) - set(synsets)):
        raise RequestError(
            f"--data imagenet: {root} holds folders that are no classes: {', '.join(others[:3])}",
            remedy="move them away, or put the class folders into train/; for classes of your own use imagefolder:DIR",
        )
    return root


class ImageCount:
    """Counts the images of every class as the entries of a listing pass by."""

    def __init__(self) -> None:
        self.by_class: Counter[str] = Counter()

    def counting(self, entries: Iterable[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
        suffixes = tuple(map(str.encode, IMAGE_SUFFIXES))
        for path, size in entries:
            folder, slash, _ = path.partition(b"/")
            if slash and size and path.lower().endswith(suffixes):
                self.by_class[os.fsdecode(folder)] += 1
            yield path, size

    def total(self, root: Path) -> int:
        """Return how many there are. Raises RequestError unless every class has one: torchvision would refuse it."""
        names = class_names(root)
        if not names:
            raise RequestError(
                f"{root} holds no class folders",
                remedy="put the images into one folder for each class: DIR/CLASS/*.jpg",
            )
        if len(names) > CLASSES:
            raise RequestError(
                f"{root} holds {len(names)} class folders; the models tell {CLASSES} apart",
                remedy=f"name a directory of at most {CLASSES} of them",
            )
        if empty := [name for name in names if not self.by_class[name]]:
            what = f"{len(empty)} of {len(names)} class folders of {root} hold no images: {', '.join(empty[:3])}"
            raise RequestError(what, remedy=f"fill them or remove them; images end in {', '.join(IMAGE_SUFFIXES)}")
        return self.by_class.total()


def check_fixed(kind: str, root: Path) -> int:
    """Return how many images a set of fixed files has. Raises RequestError when a file is missing or empty."""
    images, names, remedy = FIXED[kind]
    missing = [name for name in names if not (root / name).is_file() or not (root / name).stat().st_size]
    if missing:
        raise RequestError(f"--data {kind}: {root} holds no {', '.join(missing[:3])}", remedy=remedy)
    return images
