"""Programs of the suite in processes that are forked from one which has imported them: each import takes seconds.

That each starts as a program of its own is shown by tests of its own.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread

REPOSITORY = Path(__file__).parents[1]
Program = Callable[[Sequence[str]], object]
_READING = Lock()
"""Held to read the status of a process, which can be done once, and to start one, which looks for others that ended."""
PRELOADED = (
    *("tests.forked", "tests.suite.sweeping_machine", "commands.sweep.command", "commands.run.command"),
    *("analysis.compare.convergence", "tests.worker.distributed_rank", "worker.main", "worker.training.job"),
    "torch._dynamo",  # DistributedDataParallel would import it in every rank, which takes a second or more
)


@functools.cache
def context() -> ForkServerContext:
    """Return the server of processes, one for all tests of a process."""
    made = get_context("forkserver")
    made.set_forkserver_preload([*PRELOADED])
    with chdir(REPOSITORY):  # it looks for modules where it starts, and a test may have gone elsewhere
        ensure_running()
    return made


def _run(ends: Sequence[Connection], program: Program, words: Sequence[str], env: dict[str, str]) -> None:
    """Run a program with these ends as standard input, output and error."""
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ.clear()
    os.environ.update(env)
    program(words)


class Started:
    """A program that runs; what ``subprocess.Popen`` offers of it."""

    def __init__(self, program: Program, words: Sequence[str], env: Mapping[str, str], ends: Sequence[int]) -> None:
        """Start it with these descriptors as standard input, output and error, which are closed here."""
        given = [Connection(end) for end in ends]
        self._process = context().Process(target=_run, args=(given, program, words, dict(env)))
        with _READING:
            self._process.start()
        for end in given:
            end.close()
        assert self._process.pid
        self.pid = self._process.pid
        self._waiting = Thread(target=self._reap, daemon=True)
        self._waiting.start()

    def _reap(self) -> None:
        wait([self._process.sentinel])
        with _READING:
            self._process.join()

    @property
    def returncode(self) -> int | None:
        return None if self._waiting.is_alive() else self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        self._waiting.join(timeout)
        if self._waiting.is_alive():
            raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()


class Forked(Started):
    """A program whose input is given, and whose output is read at its end."""

    def __init__(self, program: Program, *words: str, given: str = "", env: dict[str, str] | None = None) -> None:
        self._directory = TemporaryDirectory()
        paths = [Path(self._directory.name, name) for name in ("input", "output", "errors")]
        paths[0].write_text(given)
        ends = [os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for path in paths]
        super().__init__(program, words, os.environ if env is None else env, ends)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end, and return output and errors."""
        self.wait(timeout)
        output, errors = ((Path(self._directory.name) / name).read_text() for name in ("output", "errors"))
        self._directory.cleanup()
        return output, errors
