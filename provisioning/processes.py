"""Processes of this machine: starting them so that they can be found again, and ending them.

Every process that the suite starts carries a token in its environment, and so do its children and theirs. The token is
in the ledger before the first of them exists; whoever carries it belongs to the suite.
"""

import os
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from typing import IO

import psutil

from provisioning.hearing import PipeTail, TimeIsUp, TooMuchOutput, heard_lines
from suite.errors import CommandError, MeasurementError, RequestError
from suite.interfaces import Completed

TOKEN = "VIRTBENCH_TOKEN"  # noqa: S105 (a marker, no secret)
GONE_WITHIN_S = 20.0


def carrying(token: str) -> list[psutil.Process]:
    """Return the processes that carry the token, except this one. A zombie has no environment: it has ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(TOKEN) == token:
                found.append(process)
        except psutil.Error:
            continue
    return found


def end_all(token: str) -> None:
    """Kill every process that carries the token and wait until it is gone. Raises CommandError if one stays."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := carrying(token):
        if time.monotonic() > deadline:
            raise CommandError(["kill"], None, f"processes {[p.pid for p in left]} do not end")
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=1.0)


def run_apart(argv: Sequence[str], timeout_s: float) -> "subprocess.CompletedProcess[str]":
    """Run a program of this machine to its end where no node is open: for a removal, which Ctrl-C must not cut short.

    In a session of its own, so that Ctrl-C in the terminal reaches the suite alone. Raises CommandError after
    ``timeout_s``, and OSError for a program that cannot be started.
    """
    try:
        return subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise CommandError(argv, None, f"it did not end within {timeout_s:g} s") from None


class HeardProcess(ABC):
    """A command whose output is heard within bounds. See ``suite.interfaces.Process``."""

    argv: list[str]

    @abstractmethod
    def lines(self, timeout_s: float) -> Iterator[str]: ...
    @abstractmethod
    def wait(self, timeout_s: float) -> int: ...
    @abstractmethod
    def kill(self) -> None: ...
    @abstractmethod
    def output_tail(self) -> str: ...
    @abstractmethod
    def close(self) -> None:
        """Kill it if it still runs, and give its output back."""

    def completed(self, timeout_s: float, *, check: bool) -> Completed:
        """Hear it to its end, and close it. With ``check``, a non-zero exit status raises CommandError."""
        try:
            stdout = "".join(line + "\n" for line in self.lines(timeout_s))
            completed = Completed(self.wait(timeout_s), stdout, self.output_tail())
        finally:
            self.close()
        if check and completed.returncode:
            raise CommandError(self.argv, completed.returncode, completed.stderr or completed.stdout)
        return completed

    def _heard(self, stdout: IO[bytes], timeout_s: float) -> Iterator[str]:
        """Yield standard output line by line. Too much of it ends the command, as the end of its time does."""
        try:
            yield from heard_lines(stdout, timeout_s)
        except TimeIsUp:
            self.kill()
            raise CommandError(self.argv, None, self.output_tail()) from None
        except TooMuchOutput as error:
            self.kill()
            raise MeasurementError(
                f"{self.argv[0]} was ended: {error}",
                kind="output",
                command=self.argv,
                output_tail=self.output_tail(),
                remedy="see what it writes to its standard output; no command of the suite says so much",
            ) from None


class LocalProcess(HeardProcess):
    """A child of this process."""

    def __init__(
        self, argv: Sequence[str], token: str, stdin: bytes | IO[bytes], cwd: str = "/", stdout: IO[bytes] | None = None
    ) -> None:
        """Start the command.

        ``stdin`` is all of its input, or the reading end of a pipe. ``stdout`` is the writing end of a pipe, and there
        are no ``lines`` then. The ends of pipes belong to the child from now on.
        """
        self.argv = list(argv)
        given = tempfile.TemporaryFile() if isinstance(stdin, bytes) else stdin  # noqa: SIM115 (closed right below)
        reading, writing = os.pipe()
        with ExitStack() as on_failure, given, stdout or nullcontext(), os.fdopen(writing, "wb") as stderr:
            on_failure.callback(os.close, reading)
            if isinstance(stdin, bytes):
                given.write(stdin)
                given.seek(0)
            # A session of its own: Ctrl-C reaches the suite alone, which then ends its children in order.
            self.popen = _popen(self.argv, given, stdout, stderr, {**os.environ, TOKEN: token}, cwd)
            on_failure.pop_all()
        self._stderr = PipeTail(reading)

    def lines(self, timeout_s: float) -> Iterator[str]:
        assert self.popen.stdout is not None  # noqa: S101 (opened as a pipe below)
        return self._heard(self.popen.stdout, timeout_s)

    def wait(self, timeout_s: float) -> int:
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise CommandError(self.argv, None, self.output_tail()) from None

    def running(self) -> bool:
        return self.popen.poll() is None

    def kill(self) -> None:
        if self.popen.poll() is None:
            # Its session, so that no grandchild keeps the pipes open.
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()

    def output_tail(self) -> str:
        return self._stderr.text()

    def close(self) -> None:
        self.kill()
        if self.popen.stdout:
            self.popen.stdout.close()


def _popen(
    argv: list[str], stdin: IO[bytes], stdout: IO[bytes] | None, stderr: IO[bytes], env: dict[str, str], cwd: str
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=stdout or subprocess.PIPE,
            stderr=stderr,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise RequestError(f"{argv[0]} is not installed", remedy="bench doctor says what to install") from error
    except OSError as error:
        raise CommandError(argv, error.errno, f"cannot start {argv[0]}: {error.strerror}") from error
