"""The surroundings of a user's command, made equal in all targets: limits, and a directory that it may write to."""

import os
import resource
import shutil
import socket
import stat
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LIMITS = {
    "open-files": (resource.RLIMIT_NOFILE, 16384),
    "processes": (resource.RLIMIT_NPROC, 16384),
    "locked-memory": (resource.RLIMIT_MEMLOCK, 8 << 20),
    "core-files": (resource.RLIMIT_CORE, 0),
}
"""Soft and hard alike. Most machines grant them to everybody: since Linux 5.16 they may lock 8 MiB."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 (the target's)
LOST_AND_FOUND = "lost+found"  # of the disk that a guest has the files on
COPIED_BYTES, MOST_ENTRIES = 64 << 20, 10_000
"""The most that is copied into memory; larger data, and directories of many files, stay where they are."""


def level(shared_memory_bytes: int) -> Iterator[str]:
    """Set the limits. Yields a named substitute, such as ``open-files:4096``, for whatever this target lacks."""
    for name, (kind, limit) in LIMITS.items():
        try:
            resource.setrlimit(kind, (limit, limit))
        except (OSError, ValueError):  # more than the hard limit takes a privilege
            _, most = resource.getrlimit(kind)
            resource.setrlimit(kind, (most, most))
            yield f"{name}:{most}"
    size_bytes = shutil.disk_usage(SHARED_MEMORY).total if Path(SHARED_MEMORY).is_dir() else 0
    if size_bytes != shared_memory_bytes:
        yield f"shared-memory:{size_bytes >> 20}MiB"
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        yield "host-name:unresolved"


def search_path(path: str) -> str:
    """Return the PATH that finds this interpreter as ``python``, wherever it is installed."""
    programs = str(Path(sys.executable).parent)
    return path if programs in path.split(":") else f"{programs}:{path}"


@dataclass
class WritableCopy:
    """A copy of a directory that may be written to and goes with the trial. ``linked`` counts what is not copied."""

    directory: str
    copied_bytes: int = 0
    linked: int = 0

    def add(self, original: Path, target: Path) -> None:
        """Copy a file, or link to the read-only original. A link stays as it is."""
        size_bytes = original.lstat().st_size
        if original.is_symlink():
            target.symlink_to(original.readlink())
        elif self.copied_bytes + size_bytes > COPIED_BYTES:
            self.link(original, target)
        else:
            shutil.copy(original, target)
            target.chmod(target.stat().st_mode | stat.S_IWUSR)
            self.copied_bytes += size_bytes

    def link(self, original: Path, target: Path) -> None:
        target.symlink_to(original)
        self.linked += 1


@contextmanager
def writable_copy(source: str | None, parent: str) -> Iterator[WritableCopy]:
    """Make the copy below ``parent``; an empty directory without a source.

    It goes level by level and takes the smallest files of a directory first, so that programs come before data.
    """
    with tempfile.TemporaryDirectory(prefix="work-", dir=Path(parent).resolve(), ignore_cleanup_errors=True) as made:
        copy, entries = WritableCopy(made), 0
        pending = deque([(Path(source), Path(made))] if source else [])
        while pending:
            original, target = pending.popleft()
            names = sorted(set(os.listdir(original)) - {LOST_AND_FOUND})
            if target != Path(made) and entries + len(names) > MOST_ENTRIES:
                copy.link(original, target)
                continue
            entries += len(names)
            target.mkdir(exist_ok=True)
            for path in sorted(map(original.joinpath, names), key=_file_bytes):
                if path.is_dir() and not path.is_symlink():
                    pending.append((path, target / path.name))
                else:
                    copy.add(path, target / path.name)
        yield copy


def _file_bytes(path: Path) -> int:
    # The size of a directory depends on its file system, which differs between targets.
    return path.stat().st_size if path.is_file() else 0
