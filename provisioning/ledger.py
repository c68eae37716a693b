"""The ledger: what the suite makes outside its own folders, written down before it is made.

Each entry is one file with its owner. Whoever holds an entry removes the thing, then the entry; what a killed suite
left is found by its entry, whose owner is gone, and removed in the same way. Removing is idempotent. An entry is not
believed: only what has a name of the suite's own form is ever removed.
"""

import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from provisioning import processes
from provisioning.cgroup import removal as group_removal
from provisioning.clouds import base as clouds
from provisioning.kubernetes import owned
from provisioning.lab import netns
from provisioning.paths import home, runtime, state
from suite.errors import BenchError, CommandError
from suite.interruption import uninterrupted
from suite.part import Part
from suite.process_identity import ProcessIdentity
from suite.registries import ENGINES, MACHINES
from suite.registry import Registry
from suite.results import files
from suite.results.layout import DOOMED
from suite.results.store import sweep_temporaries, write_atomic

UNMOUNTED_WITHIN_S = 60.0
MOUNTS = Path("/proc/self/mountinfo")
_HELD: dict[Path, tuple[str, Callable[[], object]]] = {}
"""What this process holds, by entry: what it is, and what removes it."""
_FRESH = r"\.?[a-z]+(-[a-z]+)*-[0-9a-f]{12}"
_FRESH_OR_DIGEST = rf"({_FRESH}|[0-9a-f]{{12}})"


class LedgerError(BenchError):
    kind = "ledger"


class LedgerEntry(Part):
    """One thing, and who answers for it: the process that made it, by number and start.

    ``owner_started`` is in the kernel's ticks since boot: a time of day would move when the clock is set.
    """

    kind: str
    what: str
    boot_id: str | None
    owner_pid: int
    owner_started: float
    host: str = ""
    """The name of the owner's machine, for people."""
    machine_id: str | None = None
    """The owner's machine: many may share the file system, and only this one can tell who lives on it."""
    owner_namespace: int | None = None
    """The process namespace in which its number means something."""
    kept: bool = False
    """Whether it outlives its owner, until a command of the user's removes it."""

    def is_left(self, *, kept: bool = False) -> bool:
        """Return whether its owner is dead and it is to be removed; ``kept``: what outlives its owner, too."""
        return self.owner.has_ended() and (kept or not self.kept)

    @property
    def owner(self) -> ProcessIdentity:
        return ProcessIdentity(
            host=self.host,
            machine_id=self.machine_id,
            boot_id=self.boot_id,
            pid=self.owner_pid,
            started_ticks=self.owner_started,
            pid_namespace=self.owner_namespace,
        )


def fresh(prefix: str) -> str:
    """Return a new name of the form that a directory in the ledger, or a mount, must have: ``node-0123456789ab``."""
    return f"{prefix}-{secrets.token_hex(6)}"


def _ours(name: str) -> Path:
    path = Path(os.path.normpath(name))
    path = path.parent.resolve() / path.name  # neither ".." nor a link leads out; a link itself is not followed
    roots = (runtime(), home())
    if not any(path.is_relative_to(ours.resolve()) and path != ours.resolve() for ours in roots):
        raise LedgerError(f"{path} is not in a folder of the suite's and is left alone")
    return path


def mount_points(mountinfo: str) -> list[str]:
    """Return the mount points of a proc_pid_mountinfo(5), which writes white space and backslashes in octal."""
    places = (line.split(" ")[4] for line in mountinfo.splitlines())
    return [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place) for place in places]


def mounts() -> list[Path]:
    """Return where something is mounted now."""
    return [Path(point) for point in mount_points(MOUNTS.read_text())]


def is_mounted(path: Path) -> bool:
    """Return whether something is mounted there; ``Path.is_mount`` misses a directory of the same file system."""
    return path in mounts()


def _remove_mount(name: str) -> None:
    path = _ours(name)
    if not is_mounted(path):
        return
    argv = ["umount", "--recursive", "--", str(path)]
    answer = processes.run_apart(argv, UNMOUNTED_WITHIN_S)
    if answer.returncode:
        raise CommandError(argv, answer.returncode, answer.stderr)


def refuse_mounted(directory: Path) -> None:
    """Raise LedgerError if something is mounted on or below a directory: deleting that would empty the mount."""
    below = [point for point in mounts() if point.is_relative_to(directory)]
    if below:
        raise LedgerError(f"something is mounted on {below[0]}", remedy="unmount it first, or leave it there")


def _remove_directory(name: str) -> None:
    path = _ours(name)
    if path.exists():
        refuse_mounted(path)
        shutil.rmtree(path)


def _remove_private(name: str) -> None:
    path = Path(name)
    if not os.path.lexists(path):
        return
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise LedgerError(f"{path} is not the private directory that was made there, and is left alone")
    refuse_mounted(path)
    shutil.rmtree(path)


def _remove_of(registry: Registry, name: str) -> None:
    member, _, name = name.partition(":")
    registry.get(member).remove_local(name)


@dataclass(frozen=True)
class LedgerKind:
    """A kind of thing: the form of its names, whole, and what removes one."""

    form: str
    remove: Callable[[str], object]


KINDS: dict[str, LedgerKind] = {
    "processes": LedgerKind(r"[0-9a-f]{32}", processes.end_all),
    "directory": LedgerKind(rf"/.*/{_FRESH}", _remove_directory),
    "mount": LedgerKind(rf"/.*/({_FRESH}|images/{_FRESH_OR_DIGEST}/tree)", _remove_mount),
    "cgroup": LedgerKind(r"virtbench-[0-9a-f]{12}", group_removal.remove),
    "netns": LedgerKind(netns.FORM, netns.remove),
    "container": LedgerKind(r"[a-z][a-z0-9_-]*:virtbench-[0-9a-f]{12}", partial(_remove_of, ENGINES)),
    "machine": LedgerKind(r"[a-z][a-z0-9_-]*:virtbench-vm-[0-9a-f]{12}@\S+", partial(_remove_of, MACHINES)),
    "kubernetes": LedgerKind(owned.FORM, owned.remove),
    "hired-machine": LedgerKind(clouds.FORM, lambda what: clouds.hired(what).remove()),
    "removal": LedgerKind(rf"/.*/{re.escape(DOOMED)}-[0-9a-f]{{12}}", _remove_private),
    "temporary": LedgerKind(r"/.*/virtbench-[a-z]+-[0-9a-f]{12}", _remove_private),
    "run-directory": LedgerKind(r"/.*", lambda what: sweep_temporaries(Path(what))),
}


def _has_form(kind: str, name: str) -> bool:
    return kind in KINDS and bool(re.fullmatch(KINDS[kind].form, name, re.DOTALL))


def _removal(kind: str, name: str) -> Callable[[], object]:
    """Return what removes a thing. Raises LedgerError for one whose name is not of the suite's form."""
    if not _has_form(kind, name):
        raise LedgerError(f"no name that the suite gives to a {kind}; it is left alone")
    return partial(KINDS[kind].remove, name)


@contextmanager
def holding(kind: str, what: str, *, kept: bool = False) -> Iterator[str]:
    """Hold one thing: the entry is written now, the thing is removed at the end, however it comes.

    One to be ``kept`` is removed only if the end comes by an exception.
    """
    remove = _removal(kind, what)
    owner = ProcessIdentity.own()
    entry = LedgerEntry(
        kind=kind,
        what=what,
        boot_id=owner.boot_id,
        owner_pid=owner.pid,
        owner_started=owner.started_ticks,
        host=owner.host,
        machine_id=owner.machine_id,
        owner_namespace=owner.pid_namespace,
    )
    path = state("ledger") / f"{secrets.token_hex(8)}.json"
    _HELD[path] = f"{kind} {what}", remove
    ended = False
    try:
        write_atomic(path, entry.model_dump_json())
        yield what
        ended = True
    finally:
        with uninterrupted():
            if kept and ended:
                write_atomic(path, entry.model_copy(update={"kept": True}).model_dump_json())
                del _HELD[path]
            else:
                remove()
                _cross_out(path)


@contextmanager
def directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a private directory of a new name; at the end nothing of it is left."""
    path = parent / fresh(prefix)
    with holding("directory", str(path)):
        path.mkdir(mode=0o700)
        yield path


@contextmanager
def temporary(prefix: str) -> Iterator[Path]:
    """Make a private directory in TMPDIR; at the end, or by ``bench clean`` after a kill, nothing of it is left.

    Where the ledger cannot be written, it goes at the end alone: who reads results needs no home.
    """
    path = Path(tempfile.gettempdir(), fresh(prefix)).absolute()
    with ExitStack() as stack:
        try:
            stack.enter_context(holding("temporary", str(path)))
        except (BenchError, OSError):
            stack.callback(shutil.rmtree, path, ignore_errors=True)
        path.mkdir(mode=0o700)
        yield path


def holds(kind: str, what: str) -> bool:
    return any(name == f"{kind} {what}" for name, _ in _HELD.values())


def _cross_out(path: Path) -> None:
    path.unlink(missing_ok=True)
    _HELD.pop(path, None)


def end_held() -> list[str]:
    """Remove what this process still holds, newest first; return what could not be removed, and why.

    A signal that comes between two lines of a closing can end it there.
    """
    failures = []
    for path, (name, remove) in reversed(list(_HELD.items())):
        try:
            remove()
            _cross_out(path)
        except (BenchError, OSError) as error:
            failures.append(f"{name} ({error})")
    return failures


def clean(note: Callable[[str], object] = lambda _: None, *, kept: bool = False) -> list[str]:
    """Remove what dead owners left, newest first; returns one line per thing. While another process cleans, wait.

    Things that outlive their owners are removed only if ``kept`` is set. Raises LedgerError at the end when something
    could not be removed; all else is removed by then.
    """
    removed = []
    stuck = []
    waiting = "another bench clean is at work: waiting until it has ended"
    with files.locked(state("ledger") / ".lock", lambda: note(waiting)):
        subdirectories = home().glob("*/")
        images = home().glob("images/*/")
        for directory in (home(), *subdirectories, *images):
            removed += [f"file {path}" for path in files.remove_temporaries(directory)]
        for path in _entries():
            try:
                entry = LedgerEntry.model_validate_json(files.read(path))
            except FileNotFoundError:
                continue  # its owner has crossed it out
            except (ValidationError, files.SpecialFileError):
                stuck.append(f"{path}: not an entry of this suite's ledger")
                continue
            if not entry.is_left(kept=kept):
                continue
            try:
                _remove(path, entry)
            except (BenchError, OSError) as error:
                stuck.append(f"{entry.kind} {entry.what}: {error}")
                continue
            removed.append(f"{entry.kind} {entry.what}")
    if stuck:
        raise LedgerError(
            "could not remove " + "; ".join(stuck),
            remedy=f"see why, then run bench clean again; entries are files in {state('ledger')}",
        )
    return removed


def _entries() -> list[Path]:
    """Return the files of the entries, newest first; one that its owner removes meanwhile may be missing."""
    dated = []
    for path in state("ledger").glob("*.json"):
        with suppress(FileNotFoundError):
            dated.append((path.lstat().st_mtime_ns, path))
    return [path for _, path in sorted(dated, reverse=True)]


def _readable() -> Iterator[tuple[Path, LedgerEntry]]:
    for path in _entries():
        with suppress(ValidationError, OSError):
            yield path, LedgerEntry.model_validate_json(files.read(path))


def _remove(path: Path, entry: LedgerEntry) -> None:
    _removal(entry.kind, entry.what)()
    path.unlink(missing_ok=True)


def listed() -> list[LedgerEntry]:
    """Return every entry, whether its owner lives or not."""
    return [entry for _, entry in _readable()]


def kept() -> dict[str, Callable[[], None]]:
    """Return what outlives its owner, as it was written down, each with the function that removes it."""
    return {
        entry.what: partial(_remove, path, entry)
        for path, entry in _readable()
        if entry.kept and _has_form(entry.kind, entry.what)
    }


def left() -> list[LedgerEntry]:
    """Return what ``clean`` would remove, the newest first."""
    return [entry for _, entry in _readable() if entry.is_left()]


def living() -> list[LedgerEntry]:
    """Return the entries whose owners are not known to have ended: what another ``bench`` is using now."""
    me = ProcessIdentity.own()
    return [entry for _, entry in _readable() if entry.owner.here and entry.owner != me and not entry.owner.has_ended()]
