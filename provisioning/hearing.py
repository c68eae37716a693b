"""Hear a child process within bounds: what it says fills neither the memory nor a disk, however long it talks."""

import os
import selectors
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

LONGEST_LINE_BYTES = 32 << 20
"""One line of standard output. The longest that the worker writes holds its steps: 29 MB for 100,000 of a GAN's."""
MOST_OUTPUT_BYTES = 64 << 20
"""All of standard output, as far as it is heard by lines."""
TAIL_BYTES = 8192
"""What is kept of standard error: its end. The rest is read and forgotten."""
_CHUNK = 1 << 16
_ENDS_WITHIN_S = 0.5
"""How long the end of standard error is waited for. A daemon that the child has left may hold it open for ever."""


class TimeIsUp(Exception):  # noqa: N818 (not an error by itself: the caller says what it means)
    """The child was still talking, or silent, when its time was over."""


class TooMuchOutput(Exception):  # noqa: N818 (as above)
    """The child has said more than any command of the suite does."""


class PipeTail(threading.Thread):
    """Read a pipe to its end, and keep its last bytes. ``sink`` gets what comes first, up to ``most`` bytes.

    The thread sleeps in the kernel while nothing comes, and closes the descriptor when the last writer has.
    """

    def __init__(self, descriptor: int, sink: IO[bytes] | None = None, most: int = 0) -> None:
        super().__init__(daemon=True, name="standard error")
        self._descriptor, self._sink, self._left = descriptor, sink, most
        self._kept = b""
        self.start()

    def run(self) -> None:
        """Read; called by the thread."""
        try:
            while chunk := os.read(self._descriptor, _CHUNK):
                self._kept = (self._kept + chunk)[-TAIL_BYTES:]
                if self._sink and self._left > 0:
                    with suppress(OSError, ValueError):  # a full disk, or a file that was closed before the last word
                        self._sink.write(chunk[: self._left])
                        self._sink.flush()
                    self._left -= len(chunk)
        finally:
            os.close(self._descriptor)

    def text(self) -> str:
        """Return the end of what was said; of a child that has ended, to its last byte."""
        self.join(_ENDS_WITHIN_S)
        return self._kept.decode(errors="replace")


def heard_lines(stdout: IO[bytes], timeout_s: float) -> Iterator[str]:
    """Yield standard output line by line until it ends. Raises TimeIsUp, and TooMuchOutput.

    Blocks in the kernel between lines; nothing polls.
    """
    deadline, heard = time.monotonic() + timeout_s, 0
    pending = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while chunk := _next_chunk(selector, stdout, deadline):
            heard += len(chunk)
            *whole, rest = chunk.split(b"\n")
            for line in whole:
                pending += line
                yield pending.decode(errors="replace")
                pending.clear()
            pending += rest
            if heard > MOST_OUTPUT_BYTES:
                raise TooMuchOutput(f"it said more than {MOST_OUTPUT_BYTES >> 20} MiB")
            if len(pending) > LONGEST_LINE_BYTES:
                raise TooMuchOutput(f"it said more than {LONGEST_LINE_BYTES >> 20} MiB in one line")
    if pending:
        yield pending.decode(errors="replace")


def _next_chunk(selector: selectors.BaseSelector, stdout: IO[bytes], deadline: float) -> bytes:
    left_s = deadline - time.monotonic()
    # Asked before each reading: from a child that never stops talking there is always something to read.
    if left_s <= 0 or not selector.select(None if left_s == float("inf") else left_s):
        raise TimeIsUp
    return os.read(stdout.fileno(), _CHUNK)
