"""Hashes the names and sizes of a directory of data: on the host, and again inside every target.

Standard library only. Contents are left out: a million files are listed in seconds, and hashed in an hour.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

NOT_DATA = frozenset((b"manifest.json", b"lost+found"))
"""What, at the top, is no part of the data: what describes the set, and what a file system brings of its own."""
Identity = tuple[int, int]


@dataclass(frozen=True)
class Listing:
    """``sha256`` is taken over a line ``SIZE PATH`` of every file, sorted by the bytes of the path."""

    sha256: str
    files: int
    size_bytes: int


def listing(directory: str | os.PathLike[str]) -> Listing:
    """Return the listing. Raises OSError for what cannot be read, and for links that lead nowhere or in a circle."""
    return summary(files(directory))


def summary(entries: Iterable[tuple[bytes, int]]) -> Listing:
    """Return the listing of entries as ``files`` yields them."""
    digest, count, size_bytes = hashlib.sha256(), 0, 0
    for path, size in entries:
        digest.update(b"%d %s\n" % (size, path))
        count += 1
        size_bytes += size
    return Listing(digest.hexdigest(), count, size_bytes)


def files(directory: str | os.PathLike[str]) -> Iterator[tuple[bytes, int]]:
    """Path, relative to the directory, and size of every regular file, sorted; hidden ones are left out.

    Links are followed, as the loaders of images follow them.
    """
    return _below(os.fsencode(directory), b"", frozenset((_identity(Path(directory).stat()),)))


def class_names(root: str | os.PathLike[str]) -> list[str]:
    """Return the names of the class folders, sorted: an image's label is the place of its folder's name."""
    with os.scandir(os.fsencode(root)) as entries:
        return sorted(os.fsdecode(each.name) for each in entries if each.is_dir() and _is_data(b"", each))


def _below(top: bytes, prefix: bytes, above: frozenset[Identity]) -> Iterator[tuple[bytes, int]]:
    with os.scandir(top + b"/" + prefix) as found:
        # With its slash a directory stands where the paths below it do: "a.b" comes before "a/b". So the whole is
        # sorted by sorting one directory at a time, and never in memory at once.
        entries = sorted(
            (
                (entry.name + b"/" if entry.is_dir() else entry.name, entry)
                for entry in found
                if _is_data(prefix, entry)
            ),
            key=lambda pair: pair[0],
        )
    for name, entry in entries:
        info = entry.stat()
        if stat.S_ISDIR(info.st_mode):
            if (identity := _identity(info)) in above:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fsdecode(entry.path))
            yield from _below(top, prefix + name, above | {identity})
        elif stat.S_ISREG(info.st_mode):
            yield prefix + name, info.st_size


def _is_data(prefix: bytes, entry: os.DirEntry[bytes]) -> bool:
    return not entry.name.startswith(b".") and (prefix != b"" or entry.name not in NOT_DATA)


def _identity(info: os.stat_result) -> Identity:
    return info.st_dev, info.st_ino
