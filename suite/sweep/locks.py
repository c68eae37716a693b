"""Locks of a sweep and of its blocks, so that no two processes run the same.

OUT/.locks/NAME.json says who holds one. It is made by linking, which succeeds once, on NFS too. What a dead process
has left is removed before; an abstract socket (unix(7)), which ends with its process, keeps two processes of one
machine from doing so at once. No file is locked: over NFS such a lock may hang, or outlive the machine that held it.
"""

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from suite.errors import RequestError
from suite.part import Part
from suite.process_identity import ProcessIdentity
from suite.results import files
from suite.results.store import LOCKS, StoreError, write_atomic

WHOLE = "sweep"
SOCKETS = Path("/proc/net/unix")


class LockHolder(Part):
    """The process that holds a lock, and what it runs now."""

    name: str
    owner: ProcessIdentity
    cell: str | None = None
    trial: str | None = None
    target: str | None = None
    number: int | None = None
    of: int | None = None


class Lock:
    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._holder = LockHolder(name=name, owner=ProcessIdentity.own())

    def update(self, **what: str | int | None) -> None:
        """Write down what runs now, or that nothing does. Raises StoreError."""
        self._holder = self._holder.model_copy(update=what)
        path = _path(self._directory, self._holder.name)
        write_atomic(path, self._holder.model_dump_json() + "\n", below=self._directory)


def block_lock(block: int) -> str:
    return f"block-{block:03d}"


@contextmanager
def locked(directory: Path, name: str, *, take_over: bool = False) -> Iterator[Lock]:
    """Hold a lock. Raises RequestError when another process holds it.

    ``take_over``: the caller knows that a lock of another machine is that of a process which has ended.
    """
    with _alone_on_this_machine(directory, name):
        _link(directory, name, take_over=take_over)
        try:
            yield Lock(directory, name)
        finally:
            _path(directory, name).unlink(missing_ok=True)


def remove_stale(directory: Path, name: str) -> None:
    """Remove a lock that is not needed any more, if it was left by a process of this machine that was killed."""
    path = _path(directory, name)
    if path.exists():
        with suppress(RequestError), _alone_on_this_machine(directory, name):
            holder = _read(path)
            if holder and holder.owner.has_ended():
                path.unlink(missing_ok=True)


def lock_files(directory: Path) -> list[Path]:
    """Return the files of all locks of a sweep, stale ones too; each changes when what is run changes."""
    return sorted((directory / LOCKS).glob("*.json"))


def holders(directory: Path) -> list[LockHolder]:
    """Return the holders of locks: processes that are not known to have ended, here or elsewhere."""
    return [holder for holder in map(_read, lock_files(directory)) if holder and not holder.owner.has_ended()]


def is_held(directory: Path, holder: LockHolder) -> bool:
    """Return whether the process that a lock names does hold it: its file may have been written by anybody.

    A bench has the lock's socket open, and no other process has. It is seen in this network namespace alone.
    """
    try:
        name = _socket_name(directory, holder.name)
        lines = SOCKETS.read_text().splitlines()
        sockets = set()
        for line in lines:
            if line.endswith(f" @{name}"):
                sockets.add(Path(f"socket:[{line.split()[6]}]"))
        for link in Path(f"/proc/{holder.owner.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if link.readlink() in sockets:
                    return True
    except OSError:
        pass  # another user's process
    return False


def _path(directory: Path, name: str) -> Path:
    return directory / LOCKS / f"{name}.json"


def _socket_name(directory: Path, name: str) -> str:
    info = (directory / LOCKS).stat()
    return f"virtbench-lock-{hashlib.sha256(f'{info.st_dev}:{info.st_ino}:{name}'.encode()).hexdigest()[:32]}"


@contextmanager
def _alone_on_this_machine(directory: Path, name: str) -> Iterator[None]:
    """Keep other processes of this machine out until this one ends, however it does."""
    try:
        with files.directory(directory / LOCKS, directory):
            socket_name = _socket_name(directory, name)
    except OSError as error:
        raise _unwritable(directory / LOCKS, error) from error
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0{socket_name}")
        except OSError as error:
            raise _held(directory, name, _read(_path(directory, name))) from error
        yield


def _link(directory: Path, name: str, *, take_over: bool) -> None:
    """Link the lock's file into place; remove before what a process has left that has ended."""
    path = _path(directory, name)
    mine = LockHolder(name=name, owner=ProcessIdentity.own())
    try:
        for _ in range(2):
            with suppress(FileExistsError), files.whole(path, below=directory, new=True) as file:
                file.write(mine.model_dump_json().encode() + b"\n")
            holder = _read(path)
            if holder == mine:
                return
            if holder and not holder.owner.has_ended() and (holder.owner.lives_here() or not take_over):
                break
            path.unlink(missing_ok=True)
        raise _held(directory, name, _read(path))
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot write {path}: {error.strerror}", remedy="give another place with --out")


def _read(path: Path) -> LockHolder | None:
    try:
        return LockHolder.model_validate_json(files.read(path))
    except (OSError, ValidationError):
        return None


def _held(directory: Path, name: str, holder: LockHolder | None) -> RequestError:
    subject = "this sweep"
    if name != WHOLE:
        subject = f"{name} of this sweep"
    who = "another process"
    if holder:
        who = str(holder.owner)
    remedy = f"see how far it is with: bench sweep status {directory}; end it with: bench sweep stop {directory}"
    if holder and not holder.owner.here:
        remedy += "; if that process has ended, give --take-over"
    return RequestError(f"{who} runs {subject} in {directory} already", remedy=remedy)
