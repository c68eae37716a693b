"""Resolves ``--data`` to a data set, and reports everything wrong with it before anything is started."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from scenarios.datasets.found import finished, newest
from scenarios.datasets.identity import identity, progress_of
from scenarios.datasets.limited import limited
from scenarios.datasets.manifest import SetManifest
from scenarios.members import source_sha256
from suite.errors import RequestError, option
from suite.job.datasets import GENERATED, SYNTHETIC, Dataset, parse_data
from suite.registries import DATA_KINDS
from worker.data.kinds.kind import DataKind, DataSetError
from worker.data.listing import entries_of, summary


def resolve(
    text: str, home: Path, frame_stride: int | None = None, note: Callable[[str], object] = lambda _: None
) -> tuple[str, Dataset]:
    """Return the name of the data in records, and the data set. ``home`` is the suite's folder, for ``generated``.

    ``note`` is told how far hashing is, where that takes more than a few seconds.
    Raises RequestError for what is not a data set, or not a whole one.
    """
    name, given = parse_data(text)
    if name == SYNTHETIC:
        raise RequestError(
            f"{option('data')} synthetic is drawn in memory: there are no files",
            remedy=f"use {option('scenario')} synthetic",
        )
    directory = Path(given).expanduser() if given else newest(home)
    try:
        root = _directory(directory).resolve()
        check_name(root, f"{option('data')} {name}")
        manifest = finished(root) if name == GENERATED else None
        return name, _dataset(manifest.format if manifest else name, root, frame_stride, manifest, note)
    except DataSetError as error:
        raise RequestError(f"{option('data')} {name}: {error}", remedy=error.remedy) from error
    except OSError as error:
        raise RequestError(
            f"{option('data')} {name}: cannot read {error.filename or directory}: {error.strerror}",
            remedy="see who may read it, and whether its links lead somewhere",
        ) from error


def check_name(root: Path, called: str) -> None:
    """Raise RequestError, about what is ``called`` so, for a directory that engines cannot be told by its name."""
    if '"' in str(root) or not str(root).isprintable():
        raise RequestError(
            f"{called}: {str(root)!r} holds a quotation mark or a control character, and engines would read the name "
            "of another directory",
            remedy="rename it, or bind-mount it under another name",
        )


def _directory(path: Path) -> Path:
    if not path.exists():
        raise RequestError(f"there is no {path}", remedy="name a directory that exists")
    if not path.is_dir():
        raise RequestError(f"{path} is not a directory", remedy="name the directory that holds the data set")
    with os.scandir(path) as entries:
        if not any(entries):
            raise RequestError(f"{path} is empty", remedy="name the directory that holds the data set")
    return path


def _dataset(
    name: str, directory: Path, frame_stride: int | None, manifest: SetManifest | None, note: Callable[[str], object]
) -> Dataset:
    kind: DataKind = DATA_KINDS.get(name)
    if frame_stride and not kind.has_videos:
        raise RequestError(
            f"{option('frame_stride')} {frame_stride}: a data set of kind {name} has no videos", remedy="leave it out"
        )
    root, stride = kind.root(directory), frame_stride or 1
    _refuse_links_that_leave(root)
    entries = tuple(entries_of(root))
    found = summary((each.path, each.size_bytes) for each in entries)
    images = limited(lambda: len(kind.open(root, stride)), found.size_bytes)
    digest, sha256 = identity(root, entries, manifest, progress_of(str(root), note))
    return Dataset(
        kind=name,
        kind_sha256=source_sha256(DATA_KINDS, name),
        directory=str(root),
        sha256=sha256,
        digest=digest,
        listing_sha256=found.sha256,
        images=images,
        frame_stride=stride if kind.has_videos else None,
        size_bytes=found.size_bytes,
    )


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
