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
    (b"@eaDir", b"#recycle", b"#snapshot", b"__MACOSX", b"$RECYCLE.BIN", b"System Volume Information"),
)
"""Folders that storage systems and archivers put anywhere, with thumbnails and deleted files: they are no data."""
HASHED_WHOLE_BELOW = 1 << 30
"""The size of the data from which samples are hashed in place of every byte."""
SAMPLES, SAMPLE_BYTES = 512, 16 << 10
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
    digest, count, size_bytes = hashlib.sha256(), 0, 0
    for path, size in entries:
        digest.update(b"%d %s\n" % (size, path))
        count += 1
        size_bytes += size
    return Listing(digest.hexdigest(), count, size_bytes)


def files(directory: str | os.PathLike[str]) -> Iterator[tuple[bytes, int]]:
    """Yield path and size of every regular file; see ``entries_of``."""
    return ((each.path, each.size_bytes) for each in entries_of(directory))


def entries_of(directory: str | os.PathLike[str]) -> Iterator[File]:
    """Yield every regular file, sorted by path; hidden ones are left out.

    Links are followed, as the loaders of images follow them.
    """
    return _below(os.fsencode(directory), b"", frozenset((_inode(Path(directory).stat()),)))


def identify(
    directory: str | os.PathLike[str], entries: Sequence[File], progress: Progress | None = None
) -> tuple[Literal["contents", "sampled"], str]:
    """Return how the entries of a directory are identified, and the digest.

    Raises OSError for what cannot be read, or changes meanwhile.
    """
    if sum(each.size_bytes for each in entries) < HASHED_WHOLE_BELOW:
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
    done, size_bytes = 0, sum(each.size_bytes for each in entries)
    for each in entries:
        digest, left = hashlib.sha256(), each.size_bytes
        with _opened(directory, each) as file:
            while chunk := file.read(min(_CHUNK_BYTES, left + 1)):
                digest.update(chunk)
                left, done = left - len(chunk), done + len(chunk)
                if left < 0:
                    break
                if progress:
                    progress(done, size_bytes)
        if left:
            raise OSError(errno.ESTALE, "it changes while it is read", os.fsdecode(each.path))
        yield each.path, digest.hexdigest()


def sampled(directory: str | os.PathLike[str], entries: Sequence[File]) -> str:
    """Return the digest of names, sizes, times in seconds, and of some KiB at places that the digest of these draws.

    Copies with ``rsync -a`` or ``cp -a`` have the same. Seconds, because not every file system and copy keeps more.
    """
    digest = hashlib.sha256()
    for each in entries:
        digest.update(b"%d %d %s\n" % (each.size_bytes, each.mtime_ns // 10**9, each.path))
    for each, draw in drawn(digest.digest(), entries, SAMPLES):
        with _opened(directory, each) as file:
            file.seek(draw % max(1, each.size_bytes - SAMPLE_BYTES + 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def drawn(seed: bytes, entries: Sequence[File], count: int) -> Iterator[tuple[File, int]]:
    """Yield files drawn by the seed, each with a further large number; the same on every version of Python."""
    for number in range(count if entries else 0):
        draw = int.from_bytes(hashlib.sha256(b"%s %d" % (seed, number)).digest(), "big")
        yield entries[draw % len(entries)], draw // len(entries)


def _opened(directory: str | os.PathLike[str], entry: File) -> IO[bytes]:
    path = os.fsdecode(os.path.join(os.fsencode(directory), entry.path))  # noqa: PTH118 (bytes)
    # A pipe that has taken the file's place is not waited for.
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)  # noqa: PTH123, SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return file


def class_names(root: str | os.PathLike[str]) -> list[str]:
    """Return the names of the class folders, sorted: an image's label is the place of its folder's name."""
    with os.scandir(os.fsencode(root)) as entries:
        return sorted(os.fsdecode(each.name) for each in entries if each.is_dir() and _is_data(b"", each))


def _below(top: bytes, prefix: bytes, above: frozenset[Inode]) -> Iterator[File]:
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
            if (inode := _inode(info)) in above:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fsdecode(entry.path))
            yield from _below(top, prefix + name, above | {inode})
        elif stat.S_ISREG(info.st_mode):
            yield File(prefix + name, info.st_size, info.st_mtime_ns)


def _is_data(prefix: bytes, entry: os.DirEntry[bytes]) -> bool:
    if entry.name.startswith(b".") or entry.name in OF_SYSTEMS:
        return False
    return prefix != b"" or entry.name not in NOT_DATA


def _inode(info: os.stat_result) -> Inode:
    return info.st_dev, info.st_ino
