"""Ends the client that is still starting a container, on this machine or as a program on another (Python 3.9 or newer).

Of a container whose start is cut short its engine knows too little to remove it: the process that podman leaves behind
and the control groups that runc has just made would stay.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PROCESSES = Path("/proc")
STARTS = {"docker": "--name", "podman": "--name", "runc": "--bundle", "runsc": "--bundle"}
"""The option that marks a start among the commands of an engine."""
ENDED_WITHIN_S = 45.0


def end(name: str) -> None:
    """Wait until no client starts the container. Raises TimeoutError after ``ENDED_WITHIN_S``.

    Clients of podman and docker end when they have started it. Those of runc and runsc stay as long as the container
    runs, and are killed.
    """
    deadline = time.monotonic() + ENDED_WITHIN_S
    while clients := dict(_starting(name)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{', '.join(clients.values())} still starts {name}")
        for pid, engine in clients.items():
            if STARTS[engine] == "--bundle":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _starting(name: str) -> Iterator[tuple[int, str]]:
    """Yield the process and the engine of each client that starts the container. A zombie has no words."""
    for entry in PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            engine = Path(words[0]).name
            if name in words and STARTS.get(engine) in words:
                yield int(entry.name), engine


if __name__ == "__main__":
    end(sys.argv[1])
