"""Removes a control group, on this machine or as a program on another (its own Python, 3.9 or newer).

libcgroup's cgdelete moves the processes of a group elsewhere and, of several controllers, serves the first alone.
"""

import contextlib
import errno
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
GONE_WITHIN_S = 30.0


def remove(name: str) -> None:
    """Kill what is in the group, under every controller, and remove it with those below; harmless if it is not there.

    Raises OSError when the kernel does not let it go.
    """
    deadline = time.monotonic() + GONE_WITHIN_S
    for hierarchy in (ROOT, *ROOT.glob("*/")):
        for group, _, _ in os.walk(hierarchy / name, topdown=False):
            while _is_left(Path(group)):
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, "its processes do not end", group)
                time.sleep(0.01)


def _is_left(path: Path) -> bool:
    """Kill what is in the directory of a group and remove it, if the kernel lets it go now."""
    try:
        # A threaded group of version 2 lists no processes; a signal to a thread is one to its process.
        threads = path / "cgroup.threads"
        for pid in (threads if threads.exists() else path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        path.rmdir()
    except OSError as error:
        # It is gone, since controllers that are mounted together have one directory; or a process that was killed
        # leaves it a little later.
        if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EBUSY):
            raise
    return path.exists()


if __name__ == "__main__":
    remove(sys.argv[1])
