"""Who is running what of a sweep, so that no two processes run the same.

OUT/.claims/NAME.json says who. It is made by linking, which succeeds once, on NFS too. What a dead process has left is
removed before; that no two processes of one machine do so at once, a name in their kernel decides (unix(7), abstract
sockets), which ends with its process. No file is locked: over NFS a lock may hang, or outlive the machine that held it.
"""

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from suite.errors import RequestError
from suite.process_identity import Owner
from suite.results.store import StoreError, write_atomic

WHOLE = "sweep"
FOLDER = ".claims"


class Holder(BaseModel):
    """Who holds a claim, and what it does now."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    owner: Owner
    cell: str | None = None
    trial: str | None = None
    target: str | None = None
    number: int | None = None
    of: int | None = None


class Claim:
    """A claim that this process holds."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._holder = Holder(name=name, owner=Owner.me())

    def tell(self, **what: str | int) -> None:
        """Say what is done now. Raises StoreError."""
        self._holder = self._holder.model_copy(update=what)
        write_atomic(self._path, self._holder.model_dump_json() + "\n")


def block_name(block: int) -> str:
    return f"block-{block:03d}"


@contextmanager
def claimed(directory: Path, name: str, *, take_over: bool = False) -> Iterator[Claim]:
    """Hold a name. Raises RequestError when another process has it.

    ``take_over``: the caller knows that a claim of another machine is of a process which has ended.
    """
    folder = directory / FOLDER
    path = folder / f"{name}.json"
    with _alone_here(folder, name, directory):
        _make(path, name, directory, take_over=take_over)
        try:
            yield Claim(path, name)
        finally:
            path.unlink(missing_ok=True)


def forget_dead(directory: Path, name: str) -> None:
    """Remove the claim that a process of this machine left which was killed, though nobody needs the name any more."""
    path = directory / FOLDER / f"{name}.json"
    if path.exists():
        with suppress(RequestError), _alone_here(path.parent, name, directory):
            holder = _read(path)
            if holder and holder.owner.here and not holder.owner.lives_here():
                path.unlink(missing_ok=True)


def holders(directory: Path) -> list[Holder]:
    """Who runs something of the sweep now. Of this machine only who lives; of others who has not said that it ended."""
    found = [_read(path) for path in sorted((directory / FOLDER).glob("*.json"))]
    return [holder for holder in found if holder and (holder.owner.lives_here() or not holder.owner.here)]


@contextmanager
def _alone_here(folder: Path, name: str, directory: Path) -> Iterator[None]:
    """Of the processes of this machine: until this one ends, however it does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = folder.stat()
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror}", remedy="give another place with --out") from error
    what = hashlib.sha256(f"{place.st_dev}:{place.st_ino}:{name}".encode()).hexdigest()
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0virtbench-claim-{what[:32]}")
        except OSError as error:
            raise _taken(directory, name, _read(folder / f"{name}.json")) from error
        yield


def _make(path: Path, name: str, directory: Path, *, take_over: bool) -> None:
    """Link the claim into place; what a process left that has ended is removed before."""
    mine = path.with_name(f".{name}.{os.uname().nodename}.{os.getpid()}.tmp")
    write_atomic(mine, Holder(name=name, owner=Owner.me()).model_dump_json() + "\n")
    try:
        for _ in range(2):
            with suppress(FileExistsError):
                os.link(mine, path)
                return
            holder = _read(path)
            if holder and (holder.owner.lives_here() or not (holder.owner.here or take_over)):
                break
            path.unlink(missing_ok=True)
        raise _taken(directory, name, _read(path))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", remedy="give another place with --out") from error
    finally:
        mine.unlink(missing_ok=True)


def _read(path: Path) -> Holder | None:
    try:
        return Holder.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _taken(directory: Path, name: str, holder: Holder | None) -> RequestError:
    what = "this sweep" if name == WHOLE else f"{name} of this sweep"
    who = str(holder.owner) if holder else "another process"
    remedy = f"see how far it is with: bench sweep status {directory}; end it with: bench sweep stop {directory}"
    if holder and not holder.owner.here:
        remedy += "; if it has ended without saying so, give --take-over"
    return RequestError(f"{who} runs {what} in {directory} already", remedy=remedy)
