"""The worker's side of the protocol: one JSON object per line on what was standard output at the start."""

import json
import os
import threading
import time

BURST = "burst"
"""The line that gives a job that takes turns its next one. After the last, any line or the end of input ends it."""


class Events:
    """Writes events to a file descriptor, each at once and whole."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._ended = False

    def emit(self, event: str, t: float | None = None, **fields: object) -> None:
        """Write one event. ``t`` is when it happened on the worker's monotonic clock, by default now."""
        happened_s = time.monotonic() if t is None else t
        self.write({"event": event, "t": happened_s, **fields})

    def error(self, kind: str, message: str, remedy: str | None = None) -> None:
        """Say why the job failed. Only the first reason is written: what fails after it mostly follows from it."""
        with self._lock:
            first, self._ended = not self._ended, True
        if first:
            self.emit("error", kind=kind, message=message, remedy=remedy)

    def write(self, value: object) -> None:
        """Write any JSON value as one line."""
        data = json.dumps(value, allow_nan=False).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._fd, data) :]


def take_stdout() -> int:
    """Keep standard output for the protocol: whatever a library prints there from now on goes to standard error.

    Returns the descriptor to write events to; children do not inherit it.
    """
    fd = os.dup(1)
    os.dup2(2, 1)
    return fd
