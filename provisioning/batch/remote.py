"""Run blocks on a machine that shares no file system with this one: files go there and come back as lines."""

import os
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from provisioning.hearing import PipeTail
from suite.errors import BenchError, MeasurementError, RequestError
from suite.results.files import appending
from suite.sweep.file_transfer import ENDED, GIVEN, LONGEST_LINE_BYTES, TransferError

MOST_LOG_BYTES = 16 << 20
"""What one block may write into the log; the rest is forgotten."""
ALIVE_S = 15
"""Seconds between two keep-alives of ssh; a machine that does not answer four of them is lost."""
CLOSES_WITHIN_S = 120.0
"""A virtual machine under emulation takes half a minute to close."""

Wrap = Callable[[Sequence[str]], list[str]]
"""Returns the command that runs a command on another machine."""


@dataclass
class RemoteExecutor:
    """Runs ``command`` with the block's number behind it, through ``wrap``: by ssh or by srun.

    While it runs its standard input stays open. The far side ends itself, in order, when that closes: by ``stop``, by
    the death of this process, or by that of the connection.
    """

    name: str
    wrap: Wrap
    command: Sequence[str]
    receive: Callable[[int, str], None]
    """Takes the block and every line that comes back; called from the thread that runs the block."""
    files: Callable[[int], Iterable[str]]
    """Returns the files that a block needs, as lines: the plan, and the records that are there already."""
    log: Path
    """The file to which the standard error of the far side is appended, ``MOST_LOG_BYTES`` of each block at most."""
    _stopped: bool = False
    _process: "subprocess.Popen[bytes] | None" = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def run(self, block: int) -> None:
        """See ``provisioning.batch.pool.Executor``."""
        argv = self.wrap([*self.command, str(block)])
        with appending(self.log, self.log.parents[1]) as log:
            process, complaints = self._start(argv, log)
            try:
                ended = self._exchange(process, block)
            finally:
                self._close(process)
                said = complaints.text()
        if not ended:
            raise self._lost(process.returncode, argv, said)

    def stop(self) -> None:
        """See ``provisioning.batch.pool.Executor``."""
        with self._guard:
            self._stopped = True
            process = self._process
        if process:
            self._end_input(process)

    def _end_input(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None  # noqa: S101 (opened as a pipe)
        with suppress(OSError, ValueError):
            process.stdin.close()

    def _start(self, argv: list[str], log: IO[bytes]) -> "tuple[subprocess.Popen[bytes], PipeTail]":
        reading, writing = os.pipe()
        try:
            # A session of its own: Ctrl-C reaches this process alone, which then ends the far side in order.
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writing, start_new_session=True
            )
        except FileNotFoundError as error:
            os.close(reading)
            raise RequestError(f"{argv[0]} is not installed", remedy="see docs/guide/clusters.md") from error
        finally:
            os.close(writing)
        complaints = PipeTail(reading, log, MOST_LOG_BYTES)
        with self._guard:
            self._process = process
            stopped = self._stopped
        if stopped:  # while it was being started
            self._end_input(process)
        return process, complaints

    def _exchange(self, process: "subprocess.Popen[bytes]", block: int) -> bool:
        """Send the files and receive what comes; return whether the far side completed the block."""
        assert process.stdin is not None  # noqa: S101 (opened as pipes above)
        assert process.stdout is not None  # noqa: S101
        with suppress(BrokenPipeError, ValueError):  # what it has died of is in its log; stopped: closed by stop
            for line in (*self.files(block), GIVEN):
                process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
        while raw := process.stdout.readline(LONGEST_LINE_BYTES):
            if len(raw) == LONGEST_LINE_BYTES:
                raise TransferError(f"a line of more than {LONGEST_LINE_BYTES >> 20} MiB arrived")
            text = raw.decode(errors="replace").rstrip("\n")
            if text == ENDED:
                return True
            self.receive(block, text)
        return False

    def _close(self, process: "subprocess.Popen[bytes]") -> None:
        self._end_input(process)
        try:
            process.wait(CLOSES_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()

    def _lost(self, returncode: int, argv: list[str], said: str) -> BenchError:
        """Return an error in the far side's own words: bench's message, else the last line."""
        lines = said.strip().splitlines() or [f"exit status {returncode}"]
        message = next((line for line in reversed(lines) if line.startswith("bench: ")), lines[-1])[:1000]
        if returncode == RequestError.exit_code:
            return RequestError(message, remedy=f"see {self.log}")
        return MeasurementError(message, kind="lost", command=argv, output_tail=said, remedy=f"see {self.log}")


def ssh_wrap(host: str, *, port: int | None = None, config: Path | None = None) -> Wrap:
    """Return what wraps a command in ssh, with the user's own configuration, agent and known hosts; it never asks.

    ssh hands the far side one string for its shell, so each word is quoted for that.
    """
    settings = {"BatchMode": "yes", "ServerAliveInterval": ALIVE_S, "ServerAliveCountMax": 4, "ConnectTimeout": 30}
    words = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    words += ["-F", str(config)] if config else []
    words += ["-p", str(port)] if port else []
    return lambda argv: ["ssh", "-T", *words, "--", host, shlex.join(argv)]


def srun_wrap(resources: Sequence[str]) -> Wrap:
    """Return what wraps a command in srun: a job of its own, which waits in the queue until a node is free."""
    return lambda argv: ["srun", "--quiet", "--kill-on-bad-exit=1", *resources, *argv]
