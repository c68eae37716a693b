"""The directory that a command of the user's own is given in every target, as a data set of the kind ``files``."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from scenarios.datasets.resolve import check_name
from suite.errors import RequestError, option
from suite.job.datasets import Dataset

NOT_HASHED = ("__pycache__", ".git")
"""Directories that change by themselves, and that no result should depend on."""


def files_of(directory: Path) -> Dataset:
    """Return the directory with the digest of what it holds. Raises RequestError where a target could not use it."""
    try:
        root = directory.expanduser().resolve(strict=True)
        check_name(root, option("command_files"))
        digest, count, size_bytes = hashlib.sha256(), 0, 0
        for path in _below(root):
            info = path.lstat()
            _check(path, info.st_mode)
            if not stat.S_ISREG(info.st_mode):
                continue
            count, size_bytes = count + 1, size_bytes + info.st_size
            if not set(path.relative_to(root).parts).intersection(NOT_HASHED):
                digest.update(os.fsencode(path.relative_to(root)) + b"\0" + _sha256(path))
    except OSError as error:
        raise RequestError(
            f"cannot read {error.filename or directory}: {error.strerror}", remedy="name a directory that you can read"
        ) from error
    if not size_bytes:
        raise RequestError(f"{root} holds no file", remedy="name the directory that holds your program")
    return Dataset(kind="files", directory=str(root), sha256=digest.hexdigest(), images=count, size_bytes=size_bytes)


def _below(root: Path) -> Iterator[Path]:
    """Yield the directory and all below it in a fixed order; links are not followed."""
    yield root
    for place, directories, files in os.walk(root, onerror=_raise):
        directories.sort()
        yield from (Path(place, name) for name in sorted([*directories, *files]))


def _raise(error: OSError) -> None:
    raise error


def _check(path: Path, mode: int) -> None:
    """Refuse what the targets would see differently: there is no other directory, and the user is another."""
    if stat.S_ISLNK(mode):
        raise RequestError(f"{path} is a link, and may lead nowhere in a target", remedy="copy what is meant: cp -rL")
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    if mode & wanted != wanted:
        raise RequestError(
            f"{path} cannot be read by everybody, and in the targets the command is a user of its own",
            remedy="let all users read the directory: chmod -R a+rX DIRECTORY",
        )


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
