"""Identifies a data set by what it holds. A process hashes one again only if a size or a time has changed."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scenarios.datasets.found import changed
from scenarios.datasets.manifest import MANIFEST, SetManifest, read_manifest
from suite.job.datasets import Dataset, DigestKind
from worker.data.listing import HASHED_WHOLE_BELOW, File, Progress, digest_of, drawn, entries_of, hashes, identify

HASHED_AGAIN = 100
"""The files of a large generated set that are hashed each time, drawn by its digest."""
_SILENT_S = 5.0
_known: dict[tuple[Path, str | None, int], tuple[DigestKind, str]] = {}


def identity(
    root: Path, entries: Sequence[File], manifest: SetManifest | None, progress: Progress | None = None
) -> tuple[DigestKind, str]:
    """Return the kind of the digest, and the digest. ``manifest`` is that of a generated set.

    Raises RequestError for a generated set that has changed, and OSError for what cannot be read.
    """
    key = root, manifest.sha256 if manifest else None, hash(tuple(entries))
    if key not in _known:
        found = _generated(root, entries, manifest, progress) if manifest else identify(root, entries, progress)
        _known[key] = found
    return _known[key]


def sha256_now(dataset: Dataset) -> str:
    """Return the digest of what the directory of the data set holds by now. Raises RequestError and OSError."""
    root = Path(dataset.directory)
    manifest = read_manifest(root) if dataset.digest == "manifest" else None
    _, sha256 = identity(root, tuple(entries_of(root)), manifest)
    return sha256


def progress_of(what: str, note: Callable[[str], object]) -> Progress:
    """Return what tells ``note`` every few seconds how much has been hashed."""
    told_s = time.monotonic()

    def tell(done: int, of: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > _SILENT_S:
            told_s = time.monotonic()
            note(f"hashing {what}: {done / 1e9:.1f} of {of / 1e9:.1f} GB")

    return tell


def _generated(
    root: Path, entries: Sequence[File], manifest: SetManifest, progress: Progress | None
) -> tuple[DigestKind, str]:
    """Return the digest of the contents as the manifest has them; all or some of the files are held against it."""
    whole = sum(each.size_bytes for each in entries) < HASHED_WHOLE_BELOW
    written_ns = (root / MANIFEST).stat().st_mtime_ns
    some = {each for each, _ in drawn(manifest.sha256.encode(), entries, HASHED_AGAIN)}
    by_path = {os.fsencode(path): sha256 for path, sha256 in manifest.files.items()}
    again = [
        each for each in entries if whole or each in some or each.mtime_ns > written_ns or each.path not in by_path
    ]
    for path, sha256 in hashes(root, again, progress):
        if by_path.setdefault(path, sha256) != sha256:
            raise changed(root, manifest)
    return "contents" if whole else "manifest", digest_of((each.path, by_path[each.path]) for each in entries)
