"""Removes a control group, on this machine or as a program on another (its own Python, 3.9 or newer).

libcgroup's cgdelete moves the processes of a group elsewhere and, of several controllers, serves the first alone.
"""

import contextlib
import errno
import os
import sys
import time
from functools import partial
from pathlib import Path

from provisioning.held_process import kill_held

ROOT = Path("/sys/fs/cgroup")
PROCESSES = Path("/proc")
GONE_WITHIN_S = 30.0


def remove(name: str) -> None:
    """Kill what is in the group, under every controller, and remove it with those below; harmless if it is not there.

    Raises OSError when the kernel does not let it go.
    """
    deadline = time.monotonic() + GONE_WITHIN_S
    for hierarchy in (ROOT, *ROOT.glob("*/")):
        for group, _, _ in os.walk(hierarchy / name, topdown=False):
            while _is_left(Path(group), name):
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, "its processes do not end", group)
                time.sleep(0.01)


def _is_left(path: Path, name: str) -> bool:
    """Kill what is in the directory of a group and remove it, if the kernel lets it go now.

    ``name`` is that of the group to be removed, which may be above.
    """
    try:
        # A threaded group of version 2 lists no processes.
        threads = path / "cgroup.threads"
        members = (threads if threads.exists() else path / "cgroup.procs").read_text().split()
        for pid in {*map(_process_of, members)} - {0}:
            kill_held(pid, partial(_is_in, pid, name))
        path.rmdir()
    except OSError as error:
        # It is gone, since controllers that are mounted together have one directory; or a process that was killed
        # leaves it a little later.
        if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EBUSY):
            raise
    return path.exists()


def _process_of(thread: str) -> int:
    """Return the process of a thread; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in (PROCESSES / thread / "status").read_text(errors="replace").splitlines():
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    return 0


def _is_in(pid: int, name: str) -> bool:
    """Return whether a process is in the group, or in one below it, under some controller."""
    with contextlib.suppress(OSError):
        lines = (PROCESSES / str(pid) / "cgroup").read_text().splitlines()
        return any(f"/{name}/" in f"{line}/" for line in lines)
    return False


if __name__ == "__main__":
    remove(sys.argv[1])
