"""Locks of a sweep and of its blocks, so that no two processes run the same.

OUT/.locks/NAME.json says who holds one. It is made by linking, which succeeds once, on NFS too. What a dead process
has left is removed before; an abstract socket (unix(7)), which ends with its process, keeps two processes of one
machine from doing so at once. No file is locked: over NFS such a lock may hang, or outlive the machine that held it.
"""

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from suite.errors import RequestError
from suite.part import Part
from suite.process_identity import ProcessIdentity
from suite.results.store import StoreError, write_atomic

WHOLE = "sweep"
"""The name of the lock on all of a sweep."""
FOLDER = ".locks"
"""The directory of the locks; older versions call it so, too, and must see the same locks."""


class LockHolder(Part):
    """The process that holds a lock, and what it runs now."""

    name: str
    """The name of the lock."""
    owner: ProcessIdentity
    cell: str | None = None
    trial: str | None = None
    target: str | None = None
    number: int | None = None
    of: int | None = None


class Lock:
    """A lock that this process holds."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._holder = LockHolder(name=name, owner=ProcessIdentity.own())

    def update(self, **what: str | int) -> None:
        """Say what is run now. Raises StoreError."""
        self._holder = self._holder.model_copy(update=what)
        write_atomic(self._path, self._holder.model_dump_json() + "\n")


def block_lock(block: int) -> str:
    """Return the name of the lock on a block."""
    return f"block-{block:03d}"


@contextmanager
def locked(directory: Path, name: str, *, take_over: bool = False) -> Iterator[Lock]:
    """Hold a lock. Raises RequestError when another process holds it.

    ``take_over``: the caller knows that a lock of another machine is that of a process which has ended.
    """
    folder = directory / FOLDER
    path = folder / f"{name}.json"
    with _alone_on_this_machine(folder, name, directory):
        _link(path, name, directory, take_over=take_over)
        try:
            yield Lock(path, name)
        finally:
            path.unlink(missing_ok=True)


def remove_stale(directory: Path, name: str) -> None:
    """Remove a lock that is not needed any more, if it was left by a process of this machine that was killed."""
    path = directory / FOLDER / f"{name}.json"
    if path.exists():
        with suppress(RequestError), _alone_on_this_machine(path.parent, name, directory):
            holder = _read(path)
            if holder and holder.owner.here and not holder.owner.lives_here():
                path.unlink(missing_ok=True)


def lock_files(directory: Path) -> list[Path]:
    """Return the files of all locks of a sweep, stale ones too; each changes when what is run changes."""
    return sorted((directory / FOLDER).glob("*.json"))


def holders(directory: Path) -> list[LockHolder]:
    """Return who runs something of the sweep now: living processes of this machine, and any of another machine."""
    found = map(_read, lock_files(directory))
    return [holder for holder in found if holder and (holder.owner.lives_here() or not holder.owner.here)]


@contextmanager
def _alone_on_this_machine(folder: Path, name: str, directory: Path) -> Iterator[None]:
    """Keep other processes of this machine out until this one ends, however it does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = folder.stat()
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror}", remedy="give another place with --out") from error
    what = hashlib.sha256(f"{place.st_dev}:{place.st_ino}:{name}".encode()).hexdigest()
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0virtbench-lock-{what[:32]}")
        except OSError as error:
            raise _held(directory, name, _read(folder / f"{name}.json")) from error
        yield


def _link(path: Path, name: str, directory: Path, *, take_over: bool) -> None:
    """Link the lock's file into place; remove before what a process has left that has ended."""
    own = path.with_name(f".{name}.{os.uname().nodename}.{os.getpid()}.tmp")
    write_atomic(own, LockHolder(name=name, owner=ProcessIdentity.own()).model_dump_json() + "\n")
    try:
        for _ in range(2):
            with suppress(FileExistsError):
                os.link(own, path)
                return
            holder = _read(path)
            if holder and (holder.owner.lives_here() or not (holder.owner.here or take_over)):
                break
            path.unlink(missing_ok=True)
        raise _held(directory, name, _read(path))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", remedy="give another place with --out") from error
    finally:
        own.unlink(missing_ok=True)


def _read(path: Path) -> LockHolder | None:
    try:
        return LockHolder.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _held(directory: Path, name: str, holder: LockHolder | None) -> RequestError:
    what = "this sweep" if name == WHOLE else f"{name} of this sweep"
    who = str(holder.owner) if holder else "another process"
    remedy = f"see how far it is with: bench sweep status {directory}; end it with: bench sweep stop {directory}"
    if holder and not holder.owner.here:
        remedy += "; if it has ended without saying so, give --take-over"
    return RequestError(f"{who} runs {what} in {directory} already", remedy=remedy)
