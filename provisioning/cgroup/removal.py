"""Removes a control group, on this machine or as a program on another (its own Python, 3.9 or newer).

libcgroup's cgdelete moves the processes of a group elsewhere and, of several controllers, serves the first alone.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
GONE_WITHIN_S = 30.0


def remove(name: str) -> None:
    """Kill what is in the group, under every controller, and remove it; harmless when it is not there.

    Raises OSError when the kernel does not let it go.
    """
    for path in [path for place in (ROOT, *ROOT.glob("*/")) if (path := place / name).is_dir()]:
        deadline = time.monotonic() + GONE_WITHIN_S
        while (members := (path / "cgroup.procs").read_text().split()) and time.monotonic() < deadline:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.01)
        with contextlib.suppress(FileNotFoundError):  # controllers that are mounted together have one directory
            path.rmdir()


if __name__ == "__main__":
    remove(sys.argv[1])
