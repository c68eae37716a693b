"""Resolves ``--data`` to a data set, identified by its contents, and reports what is wrong with it before any start."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from scenarios.datasets.generated import MANIFEST, SetManifest, changed, finished, newest
from scenarios.datasets.processes import limited
from scenarios.members import source_sha256
from suite.errors import RequestError, option
from suite.interfaces import Note
from suite.job.datasets import GENERATED, SYNTHETIC, Dataset, DigestKind, parse_data
from suite.registries import DATA_KINDS
from suite.untrusted.parse import has_control_characters
from worker.data.kinds.kind import DataKind, DataSetError
from worker.data.listing import (
    HASHED_WHOLE_BELOW,
    File,
    Progress,
    digest_of,
    drawn,
    entries_of,
    hashes,
    identify,
    summary,
)

HASHED_AGAIN = 100
"""The files of a large generated set that are hashed each time, drawn by its digest."""
_SILENT_S = 5.0
_known: dict[tuple[Path, str | None, int], tuple[DigestKind, str]] = {}
"""A process hashes a data set again only if a size or a time has changed."""


def resolve(
    text: str,
    home: Path,
    frame_stride: int | None = None,
    note: Note = lambda _: None,
    *,
    images: int = 0,
    listing_sha256: str | None = None,
) -> tuple[str, Dataset]:
    """Return the name of the data in records, and the data set.

    ``home`` is the suite's folder; ``images`` and ``listing_sha256`` choose the set of ``generated``; see ``newest``.
    ``note`` is called with the progress of hashing that takes more than a few seconds.
    Raises RequestError for what is not a data set, or not a whole one.
    """
    name, path = parse_data(text)
    if name == SYNTHETIC:
        raise RequestError(
            f"{option('data')} synthetic is drawn in memory: there are no files",
            remedy=f"use {option('scenario')} synthetic",
        )
    if path:
        directory = Path(path).expanduser()
    else:
        directory = newest(home, images, listing_sha256)
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
    """Raise RequestError, about what is ``called`` so, for a directory whose name engines would misread."""
    if '"' in str(root) or has_control_characters(str(root)):
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
    name: str,
    directory: Path,
    frame_stride: int | None,
    manifest: SetManifest | None,
    note: Note,
) -> Dataset:
    kind: DataKind = DATA_KINDS.get(name)
    if frame_stride and not kind.has_videos:
        raise RequestError(
            f"{option('frame_stride')} {frame_stride}: a data set of kind {name} has no videos", remedy="leave it out"
        )
    stride = frame_stride or 1
    root = kind.root(directory)
    if root != directory:
        note(f"{root} is read, the training part of {directory}")
    _refuse_links_that_leave(root)
    entries = tuple(entries_of(root))
    listed = summary((entry.path, entry.size_bytes) for entry in entries)
    images = limited(lambda: len(kind.open(root, stride)), listed.size_bytes)
    progress = progress_of(str(root), note)
    digest, sha256 = identity(root, entries, manifest, progress)
    return Dataset(
        kind=name,
        kind_sha256=source_sha256(DATA_KINDS, name),
        directory=str(root),
        sha256=sha256,
        digest=digest,
        listing_sha256=listed.sha256,
        images=images,
        frame_stride=stride if kind.has_videos else None,
        size_bytes=listed.size_bytes,
    )


def _refuse_links_that_leave(root: Path) -> None:
    """Every target sees this directory alone, at another place: such a link would lead nowhere in all of them."""
    links = _links(str(root))
    leaving = [path for path, to in links if leads_out(root, Path(path), to)]
    if leaving:
        raise RequestError(
            f"{root} holds {len(leaving)} links that lead nowhere in a container or a VM, such as {leaving[0]}",
            remedy=f"make a tree without links, of hard links if it is one disk: cp -rlL {root} NEW, or else cp -rL",
        )


def leads_out(root: Path, link: Path, to: str) -> bool:
    """Return whether a link below the root leads to another place than one below it, or depends on where it is."""
    return to.startswith("/") or not Path(os.path.normpath(link.parent / to)).is_relative_to(root)


def _links(directory: str) -> Iterator[tuple[str, str]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink():
                yield entry.path, str(Path(entry.path).readlink())
            elif entry.is_dir():
                yield from _links(entry.path)


def identity(
    root: Path, entries: Sequence[File], manifest: SetManifest | None, progress: Progress | None = None
) -> tuple[DigestKind, str]:
    """Return the kind of the digest, and the digest. Raises RequestError for a set that has changed, and OSError."""
    key = root, manifest.sha256 if manifest else None, hash(tuple(entries))
    if key not in _known:
        _known[key] = _generated(root, entries, manifest, progress) if manifest else identify(root, entries, progress)
    return _known[key]


def sha256_now(dataset: Dataset) -> str:
    """Return the digest of what the directory of the data set holds by now. Raises RequestError and OSError."""
    root = Path(dataset.directory)
    manifest = SetManifest.read(root) if dataset.digest == "manifest" else None
    _, sha256 = identity(root, tuple(entries_of(root)), manifest)
    return sha256


def progress_of(what: str, note: Note) -> Progress:
    """Return a callback that calls ``note`` every few seconds with how much has been hashed."""
    noted_s = time.monotonic()

    def tell(done: int, of: int) -> None:
        nonlocal noted_s
        if time.monotonic() - noted_s > _SILENT_S:
            noted_s = time.monotonic()
            note(f"hashing {what}: {done / 1e9:.1f} of {of / 1e9:.1f} GB")

    return tell


def _generated(
    root: Path, entries: Sequence[File], manifest: SetManifest, progress: Progress | None
) -> tuple[DigestKind, str]:
    """Return the digest of the contents as the manifest has them; all or some of the files are held against it."""
    whole = sum(entry.size_bytes for entry in entries) < HASHED_WHOLE_BELOW
    written_ns = (root / MANIFEST).stat().st_mtime_ns
    sample = dict(drawn(manifest.sha256.encode(), entries, HASHED_AGAIN))
    by_path = {os.fsencode(path): sha256 for path, sha256 in manifest.files.items()}
    later = [
        entry
        for entry in entries
        if whole or entry in sample or entry.mtime_ns > written_ns or entry.path not in by_path
    ]
    for path, sha256 in hashes(root, later, progress):
        if by_path.setdefault(path, sha256) != sha256:
            raise changed(root, manifest)
    pairs = ((entry.path, by_path[entry.path]) for entry in entries)
    return "contents" if whole else "manifest", digest_of(pairs)
