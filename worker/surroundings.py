"""The surroundings of a user's command, made equal in all targets: limits, and a directory that it may write to."""

import os
import resource
import shutil
import socket
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
    "stack": (resource.RLIMIT_STACK, 8 << 20),
}
"""Soft and hard alike. Most machines grant them to everybody: since Linux 5.16 they may lock 8 MiB."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 (the target's)
COPIED_BYTES = 64 << 20
MOST_ENTRIES = 10_000
"""The most that is copied into memory; larger data, and directories of many files, stay where they are."""


def level(shared_memory_bytes: int) -> Iterator[tuple[str, str]]:
    """Set limits and file mode mask. Yields what this target lacks with its substitute: ``open-files``, ``4096``."""
    os.umask(0o022)  # bare metal has that of the user's session
    for name, (kind, limit) in LIMITS.items():
        try:
            resource.setrlimit(kind, (limit, limit))
        except (OSError, ValueError):  # more than the hard limit takes a privilege
            _, most = resource.getrlimit(kind)
            resource.setrlimit(kind, (most, most))
            yield name, str(most)
    size_bytes = 0
    if Path(SHARED_MEMORY).is_dir():
        size_bytes = shutil.disk_usage(SHARED_MEMORY).total
    if size_bytes != shared_memory_bytes:
        yield "shared-memory", f"{size_bytes >> 20}MiB"
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        yield "host-name", "unresolved"
    counted = os.cpu_count()
    if sys.version_info < (3, 13) and counted != usable_cpus():  # newer ones go by PYTHON_CPU_COUNT
        yield "cpu-count", str(counted)


def usable_cpus() -> int:
    """Return how many CPUs this process may use, where ``os.cpu_count`` has all that the kernel runs."""
    return len(os.sched_getaffinity(0))


@dataclass
class WritableCopy:
    """A copy that may be written to and goes with the trial. ``linked`` counts what is still the read-only original."""

    directory: str
    copied_bytes: int = 0
    linked: int = 0

    def link(self, original: Path, target: Path) -> None:
        target.symlink_to(original)
        self.linked += 1


@contextmanager
def writable_copy(source: str | None, parent: str) -> Iterator[WritableCopy]:
    """Copy a directory to one below ``parent``, which stays empty without a source. Links stay links.

    It goes level by level and takes the smallest files of a directory first, so that programs come before data. Times
    and modes stay.
    """
    with tempfile.TemporaryDirectory(prefix="work-", dir=Path(parent).resolve(), ignore_cleanup_errors=True) as work:
        copy = WritableCopy(work)
        entries = 0
        folders = list[tuple[Path, Path]]()
        pending = deque([(Path(source), Path(work))] if source else [])
        while pending:
            original, target = pending.popleft()
            if original.is_symlink():
                target.symlink_to(original.readlink())
            elif original.is_dir():
                names = {*os.listdir(original)} - {"lost+found"}  # of the disk of a guest
                if entries and entries + len(names) > MOST_ENTRIES:
                    copy.link(original, target)
                    continue
                entries += len(names)
                target.mkdir(exist_ok=True)
                folders.append((original, target))
                paths = map(original.joinpath, names)
                # The size of a directory depends on its file system, which differs between targets.
                sized = ((0 if path.is_dir() else path.lstat().st_size, path.name) for path in paths)
                sizes = sorted(sized)
                pending.extend((original / name, target / name) for _, name in sizes)
            elif copy.copied_bytes + original.stat().st_size > COPIED_BYTES:
                copy.link(original, target)
            else:
                shutil.copy2(original, target)  # with its times: many scripts resume from the newest file
                target.chmod(target.stat().st_mode | 0o200)
                copy.copied_bytes += target.stat().st_size
        for original, target in reversed(folders):
            shutil.copystat(original, target)
            target.chmod(target.stat().st_mode | 0o700)
        yield copy
