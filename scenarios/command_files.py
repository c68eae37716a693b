"""The directory that a command of the user's own is given in every target, as a data set of the kind ``files``."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from scenarios.datasets.resolve import check_name, leads_out, progress_of
from suite.errors import RequestError, option
from suite.job.datasets import Dataset
from worker.data.listing import File, hashes

NOT_HASHED = ("__pycache__", ".git")
"""Directories that change by themselves, and that no result should depend on."""


def files_of(directory: Path, note: Callable[[str], object] = lambda _: None) -> Dataset:
    """Return the directory with the digest of what it holds; ``note`` is told how far long hashing is.

    Raises RequestError where a target could not use it.
    """
    try:
        root = directory.expanduser().resolve(strict=True)
        check_name(root, option("command_files"))
        found, links = [], list[tuple[bytes, bytes]]()
        for path in _below(root):
            info, name = path.lstat(), os.fsencode(path.relative_to(root))
            if stat.S_ISLNK(info.st_mode):
                links.append((name, os.fsencode(_inner(root, path))))
                continue
            _check(path, info.st_mode)
            if stat.S_ISREG(info.st_mode):
                found.append(File(name, info.st_size, info.st_mtime_ns))
        digest = hashlib.sha256()
        kept = [file for file in found if _is_hashed(file.path)]
        for name, sha256 in hashes(root, kept, progress_of(str(root), note)):
            digest.update(name + b"\0" + bytes.fromhex(sha256))
        for name, to in links:
            digest.update(name + b"\0\0" + to if _is_hashed(name) else b"")
    except OSError as error:
        raise RequestError(
            f"cannot read {error.filename or directory}: {error.strerror}", remedy="name a directory that you can read"
        ) from error
    if not (size_bytes := sum(each.size_bytes for each in found)):
        raise RequestError(f"{root} holds no file", remedy="name the directory that holds your program")
    return Dataset(
        kind="files",
        directory=str(root),
        sha256=digest.hexdigest(),
        digest="contents",
        images=len(found) + len(links),
        size_bytes=size_bytes,
    )


def _below(root: Path) -> Iterator[Path]:
    """Yield the directory and all below it in a fixed order; links are not followed."""
    yield root
    for place, directories, files in os.walk(root, onerror=_raise):
        directories.sort()
        yield from (Path(place, name) for name in sorted([*directories, *files]))


def _raise(error: OSError) -> None:
    raise error


def _is_hashed(name: bytes) -> bool:
    return not set(os.fsdecode(name).split("/")).intersection(NOT_HASHED)


def _inner(root: Path, link: Path) -> str:
    """Return the target of a link, which must be below the root: targets see nothing else, and at another path."""
    if leads_out(root, link, to := str(link.readlink())):
        raise RequestError(
            f"{link} is a link that leads out of {root}, and so nowhere in a target",
            remedy="copy what is meant: cp -rL",
        )
    return to


def _check(path: Path, mode: int) -> None:
    """Refuse what the targets would see differently: there is no other directory, and the user is another."""
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise RequestError(
            f"{path} is no file: reading a pipe, socket or device ends perhaps never",
            remedy="move it out of the directory",
        )
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    if mode & wanted != wanted:
        raise RequestError(
            f"{path} cannot be read by everybody, and in the targets the command is a user of its own",
            remedy="let all users read the directory: chmod -R a+rX DIRECTORY",
        )
