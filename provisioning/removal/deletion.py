"""Deletes files of the suite: those that were judged, by descriptors, through one doomed directory."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby
from pathlib import Path

from provisioning import ledger
from provisioning.paths import MARK
from suite.errors import RequestError
from suite.results import files
from suite.results.files import FileIdentity, identity_of
from suite.results.layout import DOOMED
from suite.results.store import StoreError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def delete(
    directory: Path,
    judged: FileIdentity,
    own: Mapping[Path, FileIdentity],
    folders: Iterable[Path] = (),
) -> None:
    """Move files of a directory into a doomed one beside it and delete that, then the ``folders`` that are empty.

    ``judged`` and ``own`` identify the directory and its files as they were judged. After a kill in between,
    ``bench clean`` deletes what was moved. Raises OSError, and RequestError if a name means another file now.
    """
    doomed = directory.parent / ledger.fresh(DOOMED)
    with ExitStack() as stack:
        parent = os.open(directory.parent, _DIRECTORY)
        stack.callback(os.close, parent)
        top = stack.enter_context(_entered(parent, Path(directory.name)))
        if identity_of(os.fstat(top)) != judged:
            raise _changed(directory)
        try:
            stack.enter_context(ledger.holding("removal", str(doomed)))
        except StoreError:  # the disk of the ledger is full, and removing may be what frees it
            stack.callback(shutil.rmtree, doomed, ignore_errors=True)
        os.mkdir(doomed.name, 0o700, dir_fd=parent)
        grave = stack.enter_context(_entered(parent, Path(doomed.name)))
        by_folder = groupby(own, key=lambda path: path.parent.relative_to(directory))
        for folder, paths in by_folder:
            with _entered(top, folder) as source, _entered(grave, folder, make=True) as target:
                for path in paths:
                    _move(path, own[path], source, target)
        for folder in sorted(folders, reverse=True):  # those inside another come before it
            parent_folder = folder.relative_to(directory).parent
            with suppress(OSError), _entered(top, parent_folder) as above:
                os.rmdir(folder.name, dir_fd=above)  # fails if it holds a foreign file
        with suppress(OSError):
            os.rmdir(directory.name, dir_fd=parent)


@contextmanager
def _entered(top: int, folder: Path, *, make: bool = False) -> Iterator[int]:
    """Open a directory below another without following links; yield its descriptor. Raises OSError."""
    descriptor = os.dup(top)
    try:
        for part in folder.parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=descriptor)
            inner = os.open(part, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _move(path: Path, judged: FileIdentity, source: int, target: int) -> None:
    os.rename(path.name, path.name, src_dir_fd=source, dst_dir_fd=target)
    status = os.stat(path.name, dir_fd=target, follow_symlinks=False)
    if identity_of(status) != judged:
        os.rename(path.name, path.name, src_dir_fd=target, dst_dir_fd=source)
        raise _changed(path)


def _changed(path: Path) -> RequestError:
    return RequestError(f"{path} has changed since it was examined", remedy="repeat the command")


def remove_named(directory: Path, form: str) -> list[Path]:
    """Remove what has names of a form from a directory of the suite's, and the directory if nothing else is in it.

    Return what stays: other names, and links. Raises RequestError if something is mounted below. Raises OSError.
    """
    ledger.refuse_mounted(directory.resolve())
    foreign = []
    for path in sorted(directory.iterdir()):
        is_own = re.fullmatch(form, path.name) or files.is_temporary(path.name)
        if path.name == MARK:
            continue
        if path.is_symlink() or not is_own:
            foreign.append(path)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    if not foreign:
        (directory / MARK).unlink(missing_ok=True)
        directory.resolve().rmdir()
        if directory.is_symlink():  # it was kept on another disk
            directory.unlink()
    return foreign
