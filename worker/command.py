"""Runs a command of the user's own as a child of the worker, and reads throughput and steps from what it prints.

The child is in the target as the worker is, with its limits and environment. What it prints goes on to standard error,
of which the host keeps the end; nothing of it is kept here but a few last lines and the numbers.
"""

import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import IO

from worker.environment import collect
from worker.protocol import Events, JobError
from worker.spec import CommandRequest
from worker.surroundings import level, writable_copy

LONGEST_LINE = 4096
"""Characters of a line in which numbers are looked for; the rest of a longer one is passed over."""
SEARCHED_WITHIN_S = 1.0
"""A pattern that searches one such line for so long never ends for all practical purposes. Others take microseconds."""
MOST_NUMBERS = 100_000
"""As many as a training can have steps: the worker says them in one line, whose length is bounded."""
LAST_LINES = 5


def run(request: CommandRequest, events: Events) -> None:
    """Run the command and emit everything from ``environment`` to ``done``. Raises JobError."""
    reader = NumberReader(request.throughput)
    substitutes = dict(level(request.tmpfs_bytes))
    with writable_copy(request.directory, request.scratch) as copy:
        facts = {**collect(), "threads": request.threads}
        events.emit("environment", environment=facts, substitutes=substitutes)
        status, used = _run(request, copy.directory, reader)
        ended_s = time.monotonic()
    if status:
        raise JobError(f"the command {_ending(status)}{reader.said()}", kind="command", remedy=_remedy(status))
    throughput = reader.throughput()
    usage = {
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_memory_bytes": used.ru_maxrss * 1024,
        "disk_read_bytes": used.ru_inblock * 512,
        "disk_written_bytes": used.ru_oublock * 512,
        "minor_faults": used.ru_minflt,
        "major_faults": used.ru_majflt,
    }
    metrics = {
        "cpu-time": {"value": usage["cpu_s"], "unit": "s", "better": "less"},
        "peak-memory": {"value": usage["peak_memory_bytes"] / 1e6, "unit": "MB", "better": "less"},
    }
    counted = {"steps": reader.steps, "throughputs": reader.numbers or None}
    details = {"exit_status": status, **counted, "working_directory": asdict(copy)}
    events.emit("metrics", t=ended_s, throughput=throughput, metrics=metrics, details=details)
    events.emit("done", usage=usage)


def _run(request: CommandRequest, directory: str, reader: "NumberReader") -> tuple[int, resource.struct_rusage]:
    """Return the exit status of the command, negative for a signal, and what it and its own children have used."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    programs = Path(sys.executable).parent  # where scripts find python if this is no image's
    variables |= {"HOME": str(Path(directory).parent), "PATH": f"{os.environ['PATH']}:{programs}"}
    program, *words = request.argv
    # The interpreter that has torch: an image may call it python3 alone.
    program = sys.executable if program in ("python", "python3") else program
    try:
        process = subprocess.Popen(
            [program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=variables,
            cwd=directory,
        )
    except OSError as error:
        raise JobError(
            f"{program} cannot be started in the target: {error.strerror}",
            kind="command",
            remedy="name a program of the image, or one of the directory given with --command-files",
        ) from error
    assert process.stdout is not None  # noqa: S101 (opened as a pipe)
    with process.stdout as output:
        reader.read(output)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used


@dataclass
class NumberReader:
    """Reads the numbers that the command prints. ``pattern`` is a regular expression, ``json``, or None for none."""

    pattern: str | None
    numbers: list[float] = field(default_factory=list)
    steps: int | None = None
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    def read(self, output: IO[str]) -> None:
        """Read to the end, line by line; progress bars end their lines by a carriage return. Raises JobError."""
        begins = True
        with _alarm():
            for piece in iter(lambda: output.readline(LONGEST_LINE), ""):
                sys.stderr.write(piece)
                if begins and piece.strip():
                    self.last.append(piece.strip()[:200])
                    self._take(piece)
                begins = piece.endswith("\n")
        sys.stderr.flush()

    def throughput(self) -> float | None:
        """Return the median of what was printed. Raises JobError where nothing was, and something should have been."""
        if self.pattern is None:
            return None
        if not self.numbers:
            raise JobError(
                f"the command has printed no throughput{self.said()}",
                kind="command",
                remedy="correct --throughput-pattern, or leave it out",
            )
        return statistics.median(self.numbers)

    def said(self) -> str:
        """Return what the command has printed last, as the end of a sentence."""
        return f"; it printed last: {' | '.join(self.last)}" if self.last else "; it has printed nothing"

    def _take(self, line: str) -> None:
        found = self._found(line)
        throughput, step = _number(found.get("throughput")), _number(found.get("step"))
        if throughput and throughput > 0:
            if len(self.numbers) == MOST_NUMBERS:
                raise JobError(
                    f"the command has printed more than {MOST_NUMBERS} throughputs",
                    kind="command",
                    remedy="print them less often, or let --throughput-pattern match fewer lines",
                )
            self.numbers.append(throughput)
        if step is not None:
            self.steps = max(int(step), self.steps or 0)

    def _found(self, line: str) -> Mapping[str, object]:
        if self.pattern is None:
            return {}
        if self.pattern == "json":
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                return {}
            return found if isinstance(found, dict) else {}
        signal.setitimer(signal.ITIMER_REAL, SEARCHED_WITHIN_S)
        try:
            match = re.search(self.pattern, line)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return match.groupdict() if match else {}


@contextmanager
def _alarm() -> Iterator[None]:
    """Let the timer end a search that does not end by itself: the interpreter's matching looks for signals."""

    def refuse(_number: int, _frame: FrameType | None) -> None:
        raise JobError(
            f"--throughput-pattern searched one line for more than {SEARCHED_WITHIN_S:g} s",
            kind="command",
            remedy="write it without repetitions inside of repetitions, such as (a+)+",
        )

    before = signal.signal(signal.SIGALRM, refuse)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def _number(found: object) -> float | None:
    """Return a finite number; None for anything else. ``1,234.5`` is one."""
    if isinstance(found, bool) or not isinstance(found, (int, float, str)):
        return None
    try:
        number = float(found.replace(",", "") if isinstance(found, str) else found)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _ending(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def _remedy(status: int) -> str | None:
    return "give the targets more with --memory" if status == -signal.SIGKILL else None
