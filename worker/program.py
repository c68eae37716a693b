"""A program of the user's own as a child of the worker, until it ends; what it leaves behind is ended.

The end of its output goes on to standard error, of which the host keeps no more.
"""

import ctypes
import fcntl
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from worker.environment import number, read
from worker.process_tree import descendants
from worker.protocol import JobError
from worker.spec import ProgramRequest
from worker.surroundings import usable_cpus

GATHERED_S = 0.01
"""After the first output the rest of a burst is awaited for so long: to wake for each line would cost the command."""
PIPE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16
FORWARDED_BYTES = 1 << 14
"""The pipe holds a burst; of what it held at once the end is forwarded."""
LEAST_PAUSE_S = 0.2
PAUSE_SHARE = 0.2
SAMPLING_SHARE = 0.002
"""The pause between samples of memory: this share of the time so far, or until samples take that share of a CPU."""
ENDS_WITHIN_S = 0.2
"""Helpers such as the resource tracker of multiprocessing end so soon after the command."""
KILLED_WITHIN_S = 5.0
TERMINATED_WITHIN_S = 8.0
"""The time that a program has to end after SIGTERM: less than the host waits for it."""
STOPPING_PAUSE_S = 0.1
_OWN_MODULES = str(Path(__file__).parents[1])
"""The suite's packages, which must not hide the command's."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Ended:
    """The end of a program: its exit status (negative for a signal), the moment, and what it left behind."""

    status: int
    ended_s: float
    left: list[str]
    """The names of the processes that did not end by themselves and were killed."""
    stopped_s: float | None = None
    """The moment at which it was asked to end; None if it ended by itself."""
    killed: bool = False
    """Whether it had not ended within ``TERMINATED_WITHIN_S`` of being asked to."""


class OutputReader(Protocol):
    """Takes in what a program prints."""

    def begin(self) -> None: ...

    def read(self, output: bytes, *, ended: bool = False) -> None: ...


class ProgramRun:
    """A program of the user's own from its start to its end, with its output and its memory.

    A line on the descriptor ``stop``, or its end, asks the program to end: by SIGTERM, then by SIGKILL.
    """

    def __init__(self, request: ProgramRequest, directory: str, output: OutputReader, stop: int | None = None) -> None:
        # Processes that lose their parent become children of this one, which can count and end them.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._child_ended, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self.memory = TreeMemory()
        self._output = output
        output.begin()
        self._process = _start(request, directory)
        assert self._process.stdout is not None  # noqa: S101 (opened as a pipe)
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        with suppress(OSError):
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._stop = stop
        self._stopped_s: float | None = None
        self._killed = False
        self._watched = [self._child_ended, self._pipe]
        if stop is not None:
            self._watched.append(stop)

    def to_its_end(self, before_stop: Callable[[], object] = lambda: None) -> Ended:
        """Follow the program until it has ended, and end what it leaves behind.

        ``before_stop`` is called right before it is asked to end.
        """
        try:
            self.runs_until(math.inf, before_stop)
            ended_s = time.monotonic()
        finally:
            left = self.end()
        _read(self._pipe, self._output)
        self._output.read(b"", ended=True)
        return Ended(self._process.returncode, ended_s, left, self._stopped_s, self._killed)

    def runs_until(self, moment_s: float, before_stop: Callable[[], object] = lambda: None) -> bool:
        """Follow the program until it ends, or until that moment at which it still runs: return whether it does."""
        while self._process.returncode is None:
            left_s = moment_s - time.monotonic()
            if left_s <= 0:
                return True
            pause_s = min(self.memory.sample(), left_s)
            if self._stopped_s is not None:
                pause_s = min(pause_s, STOPPING_PAUSE_S)
            ready, _, _ = select.select(self._watched, [], [], pause_s)
            if self._child_ended in ready:
                os.read(self._child_ended, CHUNK_BYTES)
            if self._pipe in ready:
                select.select([self._child_ended], [], [], GATHERED_S)
                if not _read(self._pipe, self._output):
                    self._watched.remove(self._pipe)
            if self._stop in ready:
                self._watched.remove(self._stop)
                before_stop()
                self._stopped_s = time.monotonic()
                self._process.terminate()
            self._kill_late()
            _reap(self._process)
        return False

    def end(self) -> list[str]:
        """End what still runs of it. Returns the names of the processes that did not end by themselves."""
        return _end_all(self._process)

    def _kill_late(self) -> None:
        if self._stopped_s is not None and time.monotonic() - self._stopped_s > TERMINATED_WITHIN_S:
            self._killed = True
            self._process.kill()


def _start(request: ProgramRequest, directory: str) -> subprocess.Popen[bytes]:
    variables = dict(os.environ)
    modules = variables.pop("PYTHONPATH", "").split(os.pathsep)
    packages = [path for path in modules if path not in ("", _OWN_MODULES)]
    if packages:  # an adopted image names them so
        variables["PYTHONPATH"] = os.pathsep.join(packages)
    programs = Path(sys.executable).parent  # where scripts find python if this is no image's
    variables |= {"HOME": str(Path(directory).parent), "PATH": f"{os.environ['PATH']}:{programs}"}
    variables["PYTHON_CPU_COUNT"] = str(usable_cpus())  # of Python 3.13 and newer
    program, *words = request.argv
    # The interpreter that has torch: an image may call it python3 alone.
    program = sys.executable if program in ("python", "python3") else program
    try:
        return subprocess.Popen(
            [program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=directory,
        )
    except OSError as error:
        raise JobError(
            f"{program} cannot be started in the target: {error.strerror}",
            kind="command",
            remedy="name a program of the image, or one of the directory given with --command-files",
        ) from error


def _read(output: int, reader: OutputReader) -> bool:
    """Read what the pipe holds, and forward the end of it. Returns False if nobody can write any more."""
    tail = b""
    chunk = b"-"
    with suppress(BlockingIOError):
        for _ in range(PIPE_BYTES // CHUNK_BYTES + 1):
            chunk = os.read(output, CHUNK_BYTES)
            if not chunk:
                break
            tail = (tail + chunk)[-FORWARDED_BYTES:]
            reader.read(chunk)
    sys.stderr.buffer.write(tail)
    sys.stderr.buffer.flush()
    return bool(chunk)


def _reap(command: subprocess.Popen[bytes]) -> None:
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            if child[0] == command.pid:
                command.returncode = os.waitstatus_to_exitcode(child[1])


def _end_all(command: subprocess.Popen[bytes]) -> list[str]:
    """End what the command has left behind. Returns the names of the processes that did not end by themselves."""
    begin_s = time.monotonic()
    names: list[str] = []
    while (left := descendants()) and time.monotonic() - begin_s < KILLED_WITHIN_S:
        if time.monotonic() - begin_s > ENDS_WITHIN_S:
            names = names or [(read(f"proc/{pid}/comm") or "?").strip() for pid in left]
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    _reap(command)
    return names


class TreeMemory:
    """Samples the memory of all processes of the command together.

    Pages that several share count once, as the kernel divides them. A control group would count the page cache, too,
    and a guest has none.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._begin_s = time.monotonic()
        self._due_s = self._begin_s + LEAST_PAUSE_S

    def sample(self) -> float:
        """Take a sample if it is due. Returns the seconds until the next one."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            begin_s = time.thread_time()
            pids = descendants()
            kib = (number(f"proc/{pid}/smaps_rollup", "Pss") or number(f"proc/{pid}/status", "VmRSS") for pid in pids)
            summed_kib = sum(filter(None, kib))
            self.peak_bytes = max(self.peak_bytes, 1024 * summed_kib)
            pause_s = (time.thread_time() - begin_s) / SAMPLING_SHARE
            spent_s = now_s - self._begin_s
            self._due_s = now_s + max(LEAST_PAUSE_S, min(pause_s, PAUSE_SHARE * spent_s))
        return max(0.0, self._due_s - now_s)
