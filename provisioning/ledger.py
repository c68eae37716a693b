"""The ledger: what the suite makes outside its own folders, written down before it is made.

Each entry is one file with its owner. Whoever holds an entry removes the thing, then the entry; what a killed suite
left is found by its entry, whose owner is gone, and removed in the same way. Removing is idempotent.
"""

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from provisioning import processes
from provisioning.cgroup import limits as cgroups
from provisioning.lab import netns
from provisioning.paths import home, runtime, state
from suite.errors import BenchError, CommandError
from suite.process_identity import boot_id, started_ticks
from suite.registries import ENGINES
from suite.results.store import sweep_temporaries, write_atomic


class LedgerError(BenchError):
    """Something of the suite's could not be removed."""

    kind = "ledger"


class Entry(BaseModel):
    """One thing, and who answers for it: the process that made it, by number and start.

    ``owner_started`` is in the kernel's ticks since boot: a time of day would move when the clock is set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    what: str
    boot_id: str
    owner_pid: int
    owner_started: float
    host: str | None = None
    """The owner's host: many machines may share the file system, and only this one can tell who lives on it."""

    @property
    def here(self) -> bool:
        return self.host in (None, socket.gethostname())

    def owned_by_the_living(self) -> bool:
        """Return whether the owner still runs (on this boot, and as the same process: numbers are used again)."""
        if self.boot_id != boot_id():
            return False
        return started_ticks(self.owner_pid) == self.owner_started


def _ours(what: str) -> Path:
    path = Path(os.path.normpath(what))
    path = path.parent.resolve() / path.name  # neither ".." nor a link leads out; a link itself is not followed
    if not any(path.is_relative_to(ours.resolve()) and path != ours.resolve() for ours in (runtime(), home())):
        raise LedgerError(f"{path} is not in a folder of the suite's and is left alone")
    return path


def _remove_mount(what: str) -> None:
    path = _ours(what)
    if not path.is_mount():
        return
    answer = subprocess.run(["umount", "--", path], check=False, capture_output=True, text=True, timeout=60)
    if answer.returncode:
        raise CommandError(["umount", str(path)], answer.returncode, answer.stderr)


def _remove_directory(what: str) -> None:
    if (path := _ours(what)).exists():
        shutil.rmtree(path)


def _remove_container(what: str) -> None:
    engine, _, name = what.partition(":")
    ENGINES.get(engine).remove_local(name)


REMOVERS: dict[str, Callable[[str], object]] = {
    "processes": processes.end_all,
    "directory": _remove_directory,
    "mount": _remove_mount,
    "cgroup": cgroups.remove,
    "netns": netns.remove,
    "container": _remove_container,
    "run-directory": lambda what: sweep_temporaries(Path(what)),
}


@contextmanager
def holding(kind: str, what: str) -> Iterator[str]:
    """Hold one thing: the entry is written now, the thing is removed at the end, however it comes."""
    me = os.getpid()
    owner = {"owner_pid": me, "owner_started": started_ticks(me) or 0.0, "host": socket.gethostname()}
    entry = Entry.model_validate({"kind": kind, "what": what, "boot_id": boot_id(), **owner})
    path = state("ledger") / f"{secrets.token_hex(8)}.json"
    write_atomic(path, entry.model_dump_json())
    try:
        yield what
    finally:
        REMOVERS[kind](what)
        path.unlink(missing_ok=True)


def clean() -> list[str]:
    """Remove what dead owners left, newest first; returns one line per thing.

    Raises LedgerError at the end when something could not be removed; all else is removed by then.
    """
    removed, stuck = [], []
    entries = sorted(state("ledger").glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in entries:
        try:
            entry = Entry.model_validate_json(path.read_bytes())
        except ValidationError:
            stuck.append(f"{path}: not an entry of this suite's ledger")
            continue
        if not entry.here or entry.owned_by_the_living():
            continue
        try:
            REMOVERS[entry.kind](entry.what)
        except (BenchError, OSError, KeyError) as error:
            stuck.append(f"{entry.kind} {entry.what}: {error}")
            continue
        path.unlink(missing_ok=True)
        removed.append(f"{entry.kind} {entry.what}")
    if stuck:
        raise LedgerError("could not remove " + "; ".join(stuck), remedy="see why, then run bench clean again")
    return removed


def living() -> list[Entry]:
    """Return the entries whose owners still run: what another ``bench`` is using now."""
    entries = []
    for path in state("ledger").glob("*.json"):
        try:
            entry = Entry.model_validate_json(path.read_bytes())
        except (ValidationError, OSError):
            continue
        if entry.here and entry.owned_by_the_living() and entry.owner_pid != os.getpid():
            entries.append(entry)
    return entries
