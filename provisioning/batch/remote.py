"""Run blocks on a machine that shares no file system with this one: files go there and come back as lines."""

import os
import subprocess
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from provisioning.bounded_output import PipeTail
from provisioning.processes import popen_settings
from suite.errors import BenchError, MeasurementError, RequestError
from suite.results.files import appending
from suite.sweep.file_transfer import GIVEN, LONGEST_LINE_BYTES, OF_A_BLOCK, TransferError

MOST_LOG_BYTES = 16 << 20
"""What one block may write into the log; the rest is forgotten."""
CLOSES_WITHIN_S = 120
"""A virtual machine under emulation takes half a minute to close."""


class StreamProcess:
    """A block that a command runs, by ssh or salloc, with its files on standard input and records on standard output.

    Standard input stays open while it runs. The far side ends itself, in order, when that closes: by ``stop``, by the
    death of this process, or by that of the connection. Lines before the first of a block are a login shell's, or a
    TaskProlog's, and go where standard error goes. See ``BlockProcess``.
    """

    where = ""

    def __init__(
        self,
        argv: Sequence[str],
        files: Iterable[str],
        log: Path,
        *,
        without: Collection[str] = (),
        after: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start the command ``without`` these variables. ``files`` are what the block needs, as lines.

        Standard error is appended to ``log``; ``after`` gets its end once the command has ended. Raises RequestError if
        the program is not installed.
        """
        self.argv = list(argv)
        self.files = files
        self.log = log
        self._after = after
        with ExitStack() as stack:
            file = stack.enter_context(appending(log, log.parents[1]))
            reading, writing = os.pipe()
            self._beside = stack.enter_context(os.fdopen(writing, "wb", buffering=0))
            try:
                self._process = subprocess.Popen(
                    self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writing, **popen_settings(without)
                )
            except FileNotFoundError as error:
                os.close(reading)
                raise RequestError(f"{argv[0]} is not installed", remedy="see docs/guide/clusters.md") from error
            self._complaints = PipeTail(reading, file, MOST_LOG_BYTES)
            self._open = stack.pop_all()

    def lines(self) -> Generator[str, None, None]:
        stdin = self._process.stdin
        stdout = self._process.stdout
        assert stdin is not None  # noqa: S101 (opened as pipes above)
        assert stdout is not None  # noqa: S101
        with suppress(BrokenPipeError, ValueError):  # why it died is in its log; stopped: closed by ``stop``
            for line in (*self.files, GIVEN):
                stdin.write(line.encode() + b"\n")
            stdin.flush()
        begun = False
        while raw := stdout.readline(LONGEST_LINE_BYTES):
            if len(raw) == LONGEST_LINE_BYTES:
                raise TransferError(f"a line of more than {LONGEST_LINE_BYTES >> 20} MiB arrived")
            line = raw.decode(errors="replace").rstrip("\n")
            if not begun and (first := OF_A_BLOCK.search(line)):
                begun = True
                line = line[first.start() :]
            if begun:
                yield line
            else:
                self._beside.write(raw)

    def stop(self) -> None:
        assert self._process.stdin is not None  # noqa: S101 (opened as a pipe)
        with suppress(OSError, ValueError):
            self._process.stdin.close()

    def close(self) -> None:
        self.stop()
        with self._open:
            try:
                self._process.wait(CLOSES_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()
            self._beside.close()
            complaints = self._complaints.text()  # all of it is in the log then
        self._after(complaints)

    def lost(self) -> BenchError:
        """Return an error in the far side's own words: bench's message, else the last line."""
        status = self._process.returncode
        complaints = self._complaints.text()
        return lost(complaints, f"exit status {status}", self.log, refused=status == RequestError.exit_code)


def lost(output: str, otherwise: str, log: Path, *, refused: bool) -> BenchError:
    """Return why a block was lost: bench's own message in its output, else the last line, else ``otherwise``."""
    lines = output.strip().splitlines() or [otherwise]
    message = next((line for line in reversed(lines) if line.startswith("bench: ")), lines[-1])[:1000]
    if refused:
        return RequestError(message, remedy=f"see {log}")
    return MeasurementError(message, kind="lost", output_tail=output, remedy=f"see {log}")
