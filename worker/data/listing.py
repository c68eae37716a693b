"""Identifies a directory of data: by its contents on a machine, and by names and sizes again inside every target.

A listing leaves contents out: it neither fills a page cache nor reads gigabytes in an emulated guest. Standard library
only: the text of this module is sent to the machines of an inventory.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple

NOT_DATA = frozenset((b"manifest.json", b"lost+found"))
"""What, at the top, is no part of the data: what describes the set, and what a file system brings of its own."""
OF_SYSTEMS = frozenset(
    (
        b"@eaDir",
        b"#recycle",
        b"#snapshot",
        b"__MACOSX",
        b"$RECYCLE.BIN",
        b"System Volume Information",
    ),
)
"""Folders that storage systems and archivers put anywhere, with thumbnails and deleted files: they are no data."""
HASHED_WHOLE_BELOW = 1 << 30
"""The size of the data from which samples are hashed in place of every byte."""
SAMPLES = 512
SAMPLE_BYTES = 16 << 10
_CHUNK_BYTES = 1 << 20
Inode = tuple[int, int]
Progress = Callable[[int, int], object]
"""Called with the bytes that are hashed, and those there are."""


class File(NamedTuple):
    """A regular file: path relative to the directory, size, and time of the last change to its content."""

    path: bytes
    size_bytes: int
    mtime_ns: int


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
    digest = hashlib.sha256()
    count = 0
    size_bytes = 0
    for path, size in entries:
        digest.update(b"%d %s\n" % (size, path))
        count += 1
        size_bytes += size
    return Listing(digest.hexdigest(), count, size_bytes)


def files(directory: str | os.PathLike[str]) -> Iterator[tuple[bytes, int]]:
    """Yield path and size of every regular file; see ``entries_of``."""
    return ((entry.path, entry.size_bytes) for entry in entries_of(directory))


def entries_of(directory: str | os.PathLike[str]) -> Iterator[File]:
    """Yield every regular file, sorted by path; hidden ones are left out.

    Links are followed, as the loaders of images follow them.
    """
    seen = frozenset((_inode(Path(directory).stat()),))
    return _below(os.fsencode(directory), b"", seen)


def identify(
    directory: str | os.PathLike[str], entries: Sequence[File], progress: Progress | None = None
) -> tuple[Literal["contents", "sampled"], str]:
    """Return how the entries of a directory are identified, and the digest.

    Raises OSError for what cannot be read, or changes meanwhile.
    """
    if sum(entry.size_bytes for entry in entries) < HASHED_WHOLE_BELOW:
        return "contents", digest_of(hashes(directory, entries, progress))
    return "sampled", sampled(directory, entries)


def digest_of(hashed: Iterable[tuple[bytes, str]]) -> str:
    """Return the digest of contents: SHA-256 over a line ``SHA256 PATH`` of every file, sorted by path."""
    digest = hashlib.sha256()
    for path, sha256 in hashed:
        digest.update(b"%s %s\n" % (sha256.encode(), path))
    return digest.hexdigest()


def hashes(
    directory: str | os.PathLike[str], entries: Sequence[File], progress: Progress | None = None
) -> Iterator[tuple[bytes, str]]:
    """Yield path and SHA-256 of each file. Raises OSError for one that is no longer regular or of its size."""
    done = 0
    size_bytes = sum(entry.size_bytes for entry in entries)
    for entry in entries:
        digest = hashlib.sha256()
        left = entry.size_bytes
        with _opened(directory, entry) as file:
            while chunk := file.read(min(_CHUNK_BYTES, left + 1)):
                digest.update(chunk)
                left = left - len(chunk)
                done = done + len(chunk)
                if left < 0:
                    break
                if progress:
                    progress(done, size_bytes)
        if left:
            raise OSError(errno.ESTALE, "it changes while it is read", os.fsdecode(entry.path))
        yield entry.path, digest.hexdigest()


def sampled(directory: str | os.PathLike[str], entries: Sequence[File]) -> str:
    """Return the digest of names, sizes, times in seconds, and of some KiB at places that the digest of these draws.

    Copies with ``rsync -a`` or ``cp -a`` have the same. Seconds, because not every file system and copy keeps more.
    """
    digest = hashlib.sha256()
    for entry in entries:
        mtime_s = entry.mtime_ns // 10**9
        digest.update(b"%d %d %s\n" % (entry.size_bytes, mtime_s, entry.path))
    for entry, draw in drawn(digest.digest(), entries, SAMPLES):
        with _opened(directory, entry) as file:
            last = max(1, entry.size_bytes - SAMPLE_BYTES + 1)
            file.seek(draw % last)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def drawn(seed: bytes, entries: Sequence[File], count: int) -> Iterator[tuple[File, int]]:
    """Yield files drawn by the seed, each with a further large number; the same on every version of Python."""
    for number in range(count if entries else 0):
        hashed = hashlib.sha256(b"%s %d" % (seed, number))
        draw = int.from_bytes(hashed.digest(), "big")
        yield entries[draw % len(entries)], draw // len(entries)


def _opened(directory: str | os.PathLike[str], entry: File) -> IO[bytes]:
    encoded = os.path.join(os.fsencode(directory), entry.path)  # noqa: PTH118 (bytes)
    path = os.fsdecode(encoded)
    # A pipe that has taken the file's place is not waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = open(descriptor, "rb", buffering=0)  # noqa: PTH123, SIM115
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return file


def class_names(root: str | os.PathLike[str]) -> list[str]:
    """Return the names of the class folders, sorted: an image's label is the place of its folder's name."""
    with os.scandir(os.fsencode(root)) as entries:
        folders = []
        for entry in entries:
            if entry.is_dir() and _is_data(b"", entry):
                folder = os.fsdecode(entry.name)
                folders.append(folder)
        return sorted(folders)


def _below(top: bytes, prefix: bytes, above: frozenset[Inode]) -> Iterator[File]:
    with os.scandir(top + b"/" + prefix) as scanned:
        # With its slash a directory stands where the paths below it do: "a.b" comes before "a/b". So the whole is
        # sorted by sorting one directory at a time, and never in memory at once.
        entries = sorted(
            (
                (entry.name + b"/" if entry.is_dir() else entry.name, entry)
                for entry in scanned
                if _is_data(prefix, entry)
            ),
            key=lambda pair: pair[0],
        )
    for name, entry in entries:
        info = entry.stat()
        if stat.S_ISDIR(info.st_mode):
            inode = _inode(info)
            if inode in above:
                message = os.strerror(errno.ELOOP)
                path = os.fsdecode(entry.path)
                raise OSError(errno.ELOOP, message, path)
            yield from _below(top, prefix + name, above | {inode})
        elif stat.S_ISREG(info.st_mode):
            yield File(prefix + name, info.st_size, info.st_mtime_ns)


def _is_data(prefix: bytes, entry: os.DirEntry[bytes]) -> bool:
    if entry.name.startswith(b".") or entry.name in OF_SYSTEMS:
        return False
    return prefix != b"" or entry.name not in NOT_DATA


def _inode(info: os.stat_result) -> Inode:
    return info.st_dev, info.st_ino
