"""The worker's side of the protocol: one JSON object per line on what was standard output at the start.

The last line of a failed job is an ``error``, and its exit status is that of the failure.
"""

import json
import os
import re
import threading
import time
from collections.abc import Callable

from worker.failure import explained, print_folded

BURST = "burst"
"""The line that gives a job that takes turns its next one. After the last, any line or the end of input ends it."""
FAILED = 1
REQUEST = 2
"""Exit statuses: the job failed, and it was asked for wrongly."""
_HALF_PAIR = re.compile("[\ud800-\udfff]")
"""Python's form of a byte that is no UTF-8, in names of files: no reader of JSON has to take it."""


class Events:
    """Writes events to a file descriptor, each at once and whole."""

    def __init__(self, fd: int) -> None:
        self.step = ""
        """The step that the job takes, which a failure names."""
        self._fd = fd
        self._lock = threading.Lock()
        self._ended = False

    def emit(self, event: str, t: float | None = None, **fields: object) -> None:
        """Write one event. ``t`` is when it happened on the worker's monotonic clock, by default now."""
        self.write({"event": event, "t": time.monotonic() if t is None else t, **fields})

    def error(self, kind: str, message: str, remedy: str | None = None) -> None:
        """Say why the job failed. Only the first reason is written: what fails after it mostly follows from it."""
        with self._lock:
            first = not self._ended
            self._ended = True
        if first:
            self.emit("error", kind=kind, message=message, remedy=remedy)

    def write(self, value: object) -> None:
        """Write any JSON value as one line."""
        line = json.dumps(value, allow_nan=False, ensure_ascii=False)
        data = _HALF_PAIR.sub(lambda half: f"\\\\u{ord(half[0]):04x}", line).encode() + b"\n"
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


class SpecError(Exception):
    """The specification cannot be run as it is written."""


class JobError(Exception):
    """The job failed. ``kind`` classifies it in the record's outcome; ``remedy`` says what to do, if that is known."""

    def __init__(self, message: str, *, kind: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.remedy = remedy


def guarded(events: Events, work: Callable[[], None]) -> int:
    """Do the work and return the exit status; whatever it fails by becomes an event."""
    try:
        work()
    except SpecError as error:
        events.error("request", str(error))
        return REQUEST
    except JobError as error:
        events.error(error.kind, str(error), error.remedy)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must reach the record
        print_folded(error)
        events.error(kind_of(error), explained(error, events.step))
    else:
        return 0
    return FAILED


def kind_of(error: Exception) -> str:
    """Return the kind of an unforeseen error: ``import``, ``out-of-memory`` or ``exception``.

    torch has a type of its own for a full GPU only; it reports a lack of host memory in the message.
    """
    if isinstance(error, ImportError):
        return "import"
    message = str(error).lower()
    full = isinstance(error, MemoryError) or "can't allocate memory" in message or "not enough memory" in message
    if full or type(error).__name__ == "OutOfMemoryError":
        return "out-of-memory"
    return "exception"
