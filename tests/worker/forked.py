"""The worker as a program that is forked from a process which has imported torch already."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from tempfile import TemporaryFile
from threading import Thread
from typing import IO, Any

from provisioning.bounded_output import PipeTail
from provisioning.processes import LocalProcess
from tests.forked import Forked, context
from worker.main import main


def run(arguments: Sequence[str]) -> None:
    sys.exit(main(arguments, started_s=time.monotonic()))


def worker(given: str, *arguments: str) -> tuple[int | None, list[dict[str, Any]], str]:
    """Return exit status, events and standard error."""
    process = Forked(run, *arguments, given=given)
    output, errors = process.communicate()
    return process.returncode, [json.loads(line) for line in output.splitlines()], errors


class ForkedWorker:
    """A worker that runs in a session of its own; what ``LocalProcess`` asks ``subprocess.Popen`` for."""

    def __init__(self, argv: Sequence[str], stdin: int, stderr: int) -> None:
        """Start what ``env NAME=VALUE ... PYTHON -m worker WORDS`` would: the variables are its whole environment."""
        begin = argv.index("worker")
        env = dict(word.split("=", 1) for word in argv[:begin] if "=" in word)
        reading, writing = os.pipe()
        ends = [Connection(os.dup(stdin)), Connection(writing), Connection(os.dup(stderr))]
        self._process = context().Process(target=_run, args=(ends, argv[begin + 1 :], env))
        self._process.start()
        for end in ends:
            end.close()
        assert self._process.pid
        self.pid, self.stdout = self._process.pid, os.fdopen(reading, "rb")
        # One thread alone waits: the status can be read once.
        self._ending = Thread(target=self._process.join, daemon=True)
        self._ending.start()

    def poll(self) -> int | None:
        return None if self._ending.is_alive() else self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._ending.join(timeout)
        if self._ending.is_alive():
            raise subprocess.TimeoutExpired(["worker"], timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        for send in (os.killpg, os.kill):  # it may not have its session yet, or have ended
            with suppress(ProcessLookupError):
                send(self.pid, signal.SIGKILL)


class ForkedProcess(LocalProcess):
    """The worker as a node's process."""

    popen: ForkedWorker  # type: ignore[assignment]

    def __init__(self, argv: Sequence[str], stdin: bytes | IO[bytes]) -> None:
        self.argv = list(argv)
        reading, writing = os.pipe()
        with TemporaryFile() if isinstance(stdin, bytes) else stdin as source, os.fdopen(writing, "wb") as stderr:
            if isinstance(stdin, bytes):
                source.write(stdin)
                source.seek(0)
            self.popen = ForkedWorker(self.argv, source.fileno(), stderr.fileno())
        self._stderr = PipeTail(reading)

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()


def _run(ends: Sequence[Connection], words: Sequence[str], env: dict[str, str]) -> None:
    os.setsid()
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ.clear()
    os.environ.update(env)
    run(words)
