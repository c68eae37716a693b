"""Programs of the suite in processes that are forked from one which has imported them: each import takes seconds.

That each starts as a program of its own is shown by tests of its own.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import chdir
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from tempfile import TemporaryDirectory

REPOSITORY = Path(__file__).parents[1]
Program = Callable[[Sequence[str]], object]
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


def _run(directory: str, program: Program, words: Sequence[str], env: dict[str, str]) -> None:
    """Run a program with files as standard input, output and error."""
    for number, name in enumerate(("input", "output", "errors")):
        file = os.open(f"{directory}/{name}", os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ.clear()
    os.environ.update(env)
    program(words)


class Forked:
    """A program that runs; what ``subprocess.Popen`` offers of it."""

    def __init__(
        self,
        program: Callable[[Sequence[str]], object],
        *words: str,
        given: str = "",
        env: dict[str, str] | None = None,
    ) -> None:
        self._directory = TemporaryDirectory()
        (Path(self._directory.name) / "input").write_text(given)
        arguments = (self._directory.name, program, words, dict(os.environ) if env is None else env)
        self._process = context().Process(target=_run, args=arguments)
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end, and return output and errors."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
        output, errors = ((Path(self._directory.name) / name).read_text() for name in ("output", "errors"))
        self._directory.cleanup()
        return output, errors
