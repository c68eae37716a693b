"""Ends the client that is still starting a container, on this machine or as a program on another (Python 3.9 or newer).

Of a container whose start is cut short its engine knows too little to remove it: the process that podman leaves behind
and the control groups that runc has just made would stay.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from provisioning.held_process import kill_held

PROCESSES = Path("/proc")
ENDED_WITHIN_S = 45.0


def end(name: str, program: str, mark: str, stays: str = "") -> None:
    """Wait until no client starts the container. Raises TimeoutError after ``ENDED_WITHIN_S``.

    ``mark`` is the option that marks a start among the commands of the ``program``. Most clients end when they have
    started it; one that ``stays`` as long as the container runs is killed.
    """
    deadline = time.monotonic() + ENDED_WITHIN_S
    unseen = 0
    # One that is becoming another program shows no words for a moment: it is looked for twice.
    while True:
        clients = list(_starting(name, program, mark))
        unseen = 0 if clients else unseen + 1
        if unseen == 2:
            return
        if clients and time.monotonic() > deadline:
            raise TimeoutError(f"{program} still starts {name}")
        for pid in clients if stays else ():
            kill_held(pid, partial(_starts, pid, name, program, mark))
        time.sleep(0.01)


def _starting(name: str, program: str, mark: str) -> Iterator[int]:
    """Yield the process of each client that starts the container."""
    for entry in PROCESSES.glob("[0-9]*"):
        if _starts(int(entry.name), name, program, mark):
            yield int(entry.name)


def _starts(pid: int, name: str, program: str, mark: str) -> bool:
    """Return whether a process is a client that starts the container. A zombie has no words."""
    with contextlib.suppress(OSError):  # it has ended
        words = (PROCESSES / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        return Path(words[0]).name == program and {name, mark} <= {*words}
    return False


if __name__ == "__main__":
    end(*sys.argv[1:])
