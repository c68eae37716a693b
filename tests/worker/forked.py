"""The worker as a program that is forked from a process which has imported torch already."""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any

from provisioning.bounded_output import PipeTail
from provisioning.processes import LocalProcess
from tests.forked import Forked, Started
from worker.main import main


def run(arguments: Sequence[str]) -> None:
    sys.exit(main(arguments, started_s=time.monotonic()))


def worker(given: str, *arguments: str) -> tuple[int | None, list[dict[str, Any]], str]:
    """Return exit status, events and standard error."""
    process = Forked(run, *arguments, given=given)
    output, errors = process.communicate()
    return process.returncode, [json.loads(line) for line in output.splitlines()], errors


def events_of(given: Mapping[str, Any], *arguments: str) -> list[dict[str, Any]]:
    """Return the events of a worker that comes to its good end."""
    status, events, said = worker(json.dumps(given), *arguments)
    assert status == 0, (events[-1], said)
    return events


def run_apart(arguments: Sequence[str]) -> None:
    os.setsid()
    run(arguments)


class ForkedWorker(Started):
    """A worker that runs in a session of its own, and says its lines into a pipe."""

    def __init__(self, argv: Sequence[str], stdin: int, stderr: int) -> None:
        """Start what ``env NAME=VALUE ... PYTHON -m worker WORDS`` would: the variables are its whole environment."""
        begin = argv.index("worker")
        env = dict(word.split("=", 1) for word in argv[:begin] if "=" in word)
        reading, writing = os.pipe()
        super().__init__(run_apart, argv[begin + 1 :], env, [os.dup(stdin), writing, os.dup(stderr)])
        self.stdout = os.fdopen(reading, "rb")


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
            with suppress(ProcessLookupError):  # it may not have its session yet
                os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.kill()
            self.popen.wait()
