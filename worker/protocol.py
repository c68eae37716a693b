"""The worker's side of the protocol: one JSON object per line on what was standard output at the start.

The last line of a failed job is an ``error``, and its exit status is that of the failure. If the user's own code has
raised it, in a workload that the host has sent, the line has the place.
"""

import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

PLUGINS = "virtbench-plugin-"
"""Begins the name of the directory that a module which the host has sent is written to."""


def is_own(file: str | None) -> bool:
    return Path(file or "").parent.name.startswith(PLUGINS)


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if is_own(frame.filename)]


def explained(error: Exception, step: str) -> str:
    """Return type and message of an error, with file, line, function and step if the user's code has raised it."""
    message = f"{type(error).__name__}: {error}"
    frames = own_frames(error)
    if not frames:
        return message
    where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name}"
    return f"{message} ({where}{f', {step}' if step else ''})"


def print_folded(error: Exception) -> None:
    """Print the traceback to standard error: the user's frames with their lines, then all others as one line each."""
    formatted = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in formatted.stack if is_own(frame.filename)]
    others: Sequence[traceback.FrameSummary] = []
    if frames:
        others = [frame for frame in formatted.stack if frame not in frames]
        formatted.stack = traceback.StackSummary.from_list(frames)
    print("".join(formatted.format()), end="", file=sys.stderr)
    if others:
        print(f"{len(others)} other frames, of the suite and its libraries:", file=sys.stderr)
    for frame in others:
        print(f"  {'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno} {frame.name}", file=sys.stderr)


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
    """The job failed. ``kind`` classifies it in the record's outcome; ``remedy`` is what to do, or None."""

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
