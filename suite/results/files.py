"""Files in directories that others may write to: opened without following links, and written whole.

The suite runs as root in directories that users name. Whoever may write there could have put a link, a pipe or a
directory of his own in the place of a file of the suite's. So only regular files are opened, temporary names are
random, and below the directory that was named no link is followed and no directory of a third owner entered.
"""

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from suite.process_identity import ProcessIdentity

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# The writer is in the name: a file is locked nowhere, because over NFS such a lock may hang.
_TEMPORARY = re.compile(
    r"\.virtbench\.(?P<machine_id>[0-9a-f]{16}|unknown)\.(?P<boot_id>[0-9a-f-]{36}|unknown)"
    r"\.(?P<pid_namespace>\d+)-(?P<pid>\d+)-(?P<started_ticks>\d+)\.[0-9a-f]{16}\.tmp"
)
_UNKNOWN = "unknown"
FileIdentity = tuple[int, int]
"""Device and inode."""
MOST_BYTES = 32 << 20
"""The size of the largest record or plan. A record of the most steps, with ten columns, has 26 MB."""


_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class SpecialFileError(OSError):
    """A link, pipe, device or directory is where a regular file was expected."""


def is_shortage(error: Exception) -> bool:
    """Return whether this process lacks memory or descriptors now, which says nothing of the file that it read."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SHORTAGES)


def identity_of(status: os.stat_result) -> FileIdentity:
    return status.st_dev, status.st_ino


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, dir_fd: int | None = None) -> int:
    """Open a regular file, and never what a link leads to; return the descriptor. A pipe is not waited for.

    It can be the ``opener`` of ``open``. ``dir_fd``: a descriptor of the directory that ``path`` is relative to.
    Raises OSError; SpecialFileError unless it is a regular file.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SpecialFileError(errno.ELOOP, "it is a link, and links are not followed", str(path)) from error
        if error.errno == errno.ENXIO:  # a pipe that is opened for writing, a socket
            raise SpecialFileError(errno.ENXIO, "it is not a regular file", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SpecialFileError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def open_small(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file that is no larger than ``MOST_BYTES``. Raises OSError as ``open_regular`` does."""
    descriptor = open_regular(path, flags)
    if os.fstat(descriptor).st_size > MOST_BYTES:
        os.close(descriptor)
        raise SpecialFileError(errno.EFBIG, f"it is larger than {MOST_BYTES >> 20} MiB, as no record is", str(path))
    return descriptor


def read(path: Path) -> bytes:
    """Read a regular file. Raises OSError as ``open_regular`` does."""
    with open(path, "rb", opener=open_regular) as file:
        return file.read()


def read_small(path: Path) -> bytes:
    """Read a record or a plan. Raises OSError as ``open_small`` does."""
    with open(path, "rb", opener=open_small) as file:
        return file.read()


@contextmanager
def appending(path: Path, below: Path) -> Iterator[IO[bytes]]:
    """Yield a file to append to, made if it is missing; see ``directory``. Raises OSError."""
    with directory(path.parent, below) as parent:
        descriptor = open_regular(path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, dir_fd=parent)
    with os.fdopen(descriptor, "ab") as file:
        yield file


@contextmanager
def directory(path: Path, below: Path | None = None) -> Iterator[int]:
    """Open a directory, made if it is missing, for as long as the context lasts; yield its descriptor.

    ``below`` is the directory that the user named, which may be a link. Between it and ``path`` no link is followed,
    and every directory belongs to this user, to root, or to the owner of the one above. Raises OSError.
    """
    top = below or path
    top.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(top, _DIRECTORY)
    try:
        for part in path.relative_to(top).parts:
            outer = descriptor
            descriptor = _enter(descriptor, part, path)
            os.close(outer)
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(outer: int, name: str, path: Path) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=outer)
    try:
        inner = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=outer)
    except NotADirectoryError as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{name} is a link or a file, no directory", str(path)) from error
    if os.fstat(inner).st_uid not in (os.geteuid(), 0, os.fstat(outer).st_uid):
        os.close(inner)
        raise PermissionError(errno.EPERM, f"{name} belongs to another user", str(path))
    return inner


@contextmanager
def whole(path: Path, *, below: Path | None = None, new: bool = False, sync: bool = True) -> Iterator[IO[bytes]]:
    """Yield a file to write: a reader, or a crash, sees the old content of ``path`` or the new one, nothing between.

    ``below``: see ``directory``. ``new``: fail where the name is taken. Without ``sync`` the content may be lost when
    the machine stops. Raises OSError, with the old content in place; FileExistsError for a name that is taken.
    """
    name = temporary_name(ProcessIdentity.own())
    with directory(path.parent, below) as parent:
        try:
            descriptor = open_regular(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=parent)
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                if sync:
                    os.fsync(descriptor)
            if new:  # linking succeeds once, on NFS too
                os.link(name, path.name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
            else:
                os.replace(name, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
        if sync:
            os.fsync(parent)


@contextmanager
def output(
    path: Path, *, below: Path | None = None, sync: bool = True, one_of_many: bool = False
) -> Iterator[IO[bytes]]:
    """Yield a file to write at a path that a user named. All such paths come here. ``below``, ``sync``: see ``whole``.

    A regular file is replaced, and what killed processes have left of theirs beside it is removed; for ``one_of_many``
    files of a directory, the caller does that once. A pipe, a character device and an inherited descriptor
    (/dev/stdout) are written to. A link stands for its target. Raises OSError; SpecialFileError for all others, and for
    what another user owns, who may have put it there for root to write to or to wait for.
    """
    with ExitStack() as stack:
        if os.path.realpath(path.parent) == f"/proc/{os.getpid()}/fd" and path.name.isdecimal():
            # Opened by its name, a log that the shell appends to (>>) would lose what it holds.
            copied = os.fdopen(os.dup(int(path.name)), "wb")
            yield stack.enter_context(copied)
            return
        descriptor = -1
        status = None
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            status = os.fstat(descriptor)
        if status is None or stat.S_ISREG(status.st_mode):
            if not one_of_many:
                remove_temporaries(path.parent)
            yield stack.enter_context(whole(path, below=below, sync=sync))
        elif status.st_uid not in (os.geteuid(), 0):
            raise SpecialFileError(errno.EPERM, "it is not a regular file, and belongs to another user", str(path))
        elif stat.S_ISLNK(status.st_mode):
            with suppress(FileNotFoundError):
                path.stat()  # raises OSError for links in a circle
            target = path.parent / os.readlink("", dir_fd=descriptor)
            yield stack.enter_context(output(target, sync=sync))
        elif stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode):
            # By the descriptor: the name may stand for something else by now.
            yield stack.enter_context(Path(f"/proc/self/fd/{descriptor}").open("wb"))
        else:
            raise SpecialFileError(errno.EINVAL, "it is not a file, a pipe or a character device", str(path))


def temporary_name(writer: ProcessIdentity) -> str:
    """Return a name that nobody can guess, for a file that the process writes."""
    machine = f"{writer.machine_id or _UNKNOWN}.{writer.boot_id or _UNKNOWN}"
    who = f"{machine}.{writer.pid_namespace}-{writer.pid}-{writer.started_ticks:.0f}"
    return f".virtbench.{who}.{secrets.token_hex(8)}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether it is the name of a file that a process of the suite writes, or was killed while it wrote it."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_temporaries(path: Path) -> list[Path]:
    """Remove the temporary files of this machine's killed writers from a directory; return what was removed.

    Files that a living process, or one of another machine, is writing stay. A link to a directory is not followed.
    """
    try:
        descriptor = os.open(path, _DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        abandoned = [name for name in os.listdir(descriptor) if _is_abandoned(name)]
        for name in abandoned:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    return [path / name for name in abandoned]


def _is_abandoned(name: str) -> bool:
    match = _TEMPORARY.fullmatch(name)
    if not match:
        return False
    groups = match.groupdict()
    stamps = {name: text for name, text in groups.items() if text != _UNKNOWN}
    writer = ProcessIdentity.model_validate({"host": "", "boot_id": None, **stamps})
    return writer.has_ended()


@contextmanager
def locked(path: Path, waiting: Callable[[], object] | None = None) -> Iterator[None]:
    """Hold a lock file, which is made if it is missing and stays, against other processes of this machine.

    While another process holds it, call ``waiting`` once and wait; without, raise BlockingIOError. Raises OSError.
    """
    with directory(path.parent) as parent:
        descriptor = open_regular(path.name, os.O_RDWR | os.O_CREAT, dir_fd=parent)
    try:
        lock(descriptor, waiting)
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int, waiting: Callable[[], object] | None = None) -> None:
    """Lock an open file or directory until it is closed; see ``locked``."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if waiting is None:
            raise
        waiting()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
