"""Output of child processes, read within bounds: it fills neither the memory nor a disk, however long it goes on."""

import os
import selectors
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

from suite.errors import CommandError, MeasurementError
from suite.interfaces import Completed, Process

LONGEST_LINE_BYTES = 32 << 20
"""One line of standard output. The longest that the worker writes holds its steps: 29 MB for 100,000 of a GAN's."""
MOST_OUTPUT_BYTES = 64 << 20
"""All of standard output that is read by lines."""
TAIL_BYTES = 8192
"""The end of standard error that is kept."""
_CHUNK = 1 << 16
_ENDS_WITHIN_S = 2.0
"""The wait for the end of standard error, which a daemon that the child has left may hold open for ever."""


class PipeTail(threading.Thread):
    """Read a pipe to its end, and keep its last bytes. ``sink`` gets what comes first, up to ``most`` bytes.

    The thread sleeps in the kernel while nothing comes, and closes the descriptor when the last writer has.
    """

    def __init__(self, descriptor: int, sink: IO[bytes] | None = None, most: int = 0) -> None:
        super().__init__(daemon=True, name="standard error")
        self._descriptor = descriptor
        self._sink = sink
        self._left = most
        self._kept = b""
        self.start()

    def run(self) -> None:
        try:
            while chunk := os.read(self._descriptor, _CHUNK):
                self._kept = (self._kept + chunk)[-TAIL_BYTES:]
                if self._sink and self._left > 0:
                    with suppress(OSError, ValueError):  # a full disk, or a file that was closed before the last output
                        self._sink.write(chunk[: self._left])
                        self._sink.flush()
                    self._left -= len(chunk)
        finally:
            os.close(self._descriptor)

    def text(self) -> str:
        """Return the end of the output; after the child has ended, up to its last byte."""
        self.join(_ENDS_WITHIN_S)
        return self._kept.decode(errors="replace")


class BoundedProcess(Process):
    argv: list[str]

    @abstractmethod
    def close(self) -> None:
        """Kill it if it still runs, and close its output."""

    def completed(self, timeout_s: float, *, check: bool) -> Completed:
        """Read its output to the end, and close it. With ``check``, a non-zero exit status raises CommandError."""
        try:
            stdout = "".join(line + "\n" for line in self.lines(timeout_s))
            completed = Completed(self.wait(timeout_s), stdout, self.output_tail())
        finally:
            self.close()
        if check and completed.returncode:
            raise CommandError(self.argv, completed.returncode, completed.stderr or completed.stdout)
        return completed

    def _bounded(self, stdout: IO[bytes], timeout_s: float) -> Iterator[str]:
        """Yield standard output line by line, blocking in the kernel between lines.

        Too much of it ends the command, as the end of its time does.
        """
        deadline = time.monotonic() + timeout_s
        size_bytes = 0
        pending = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while chunk := self._next_chunk(selector, stdout, deadline):
                size_bytes += len(chunk)
                *lines, begun = chunk.split(b"\n")
                for line in lines:
                    pending += line
                    yield pending.decode(errors="replace")
                    pending.clear()
                pending += begun
                if size_bytes > MOST_OUTPUT_BYTES:
                    raise self._too_much(f"{MOST_OUTPUT_BYTES >> 20} MiB")
                if len(pending) > LONGEST_LINE_BYTES:
                    raise self._too_much(f"{LONGEST_LINE_BYTES >> 20} MiB in one line")
        if pending:
            yield pending.decode(errors="replace")

    def _next_chunk(self, selector: selectors.BaseSelector, stdout: IO[bytes], deadline: float) -> bytes:
        left_s = deadline - time.monotonic()
        # Checked before each reading: from a child that never stops writing there is always something to read.
        if left_s <= 0 or not selector.select(None if left_s == float("inf") else left_s):
            self.kill()
            raise CommandError(self.argv, None, self.output_tail())
        return os.read(stdout.fileno(), _CHUNK)

    def _too_much(self, most: str) -> MeasurementError:
        self.kill()
        return MeasurementError(
            f"{self.argv[0]} was ended: it wrote more than {most}",
            kind="output",
            command=self.argv,
            output_tail=self.output_tail(),
            remedy="see what it writes to its standard output; no command of the suite writes so much",
        )
