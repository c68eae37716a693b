"""A program that loads the machine by itself, such as fio or iperf3, as the load of an aggressor.

It is started once and runs until it is ended; a stop and a start between steps would be rest for the victim. What it
has done is read from the kernel's own account of its process.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from worker.aggressors.aggressor import Load
from worker.memory import read
from worker.probes.reading import ProbeError

STEP_S = 0.25
"""How often the account of the program is read: that is its step."""
LONGEST_S = 86_400
"""The longest run that iperf3 takes; no trial comes near it."""


@contextmanager
def running(argv: Sequence[str], counters: Sequence[str]) -> Iterator[Load]:
    """Run the program until the end of the block; its own end is a failure. For ``counters`` see proc_pid_io(5)."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=os.environ)
        before = moved_bytes(process.pid, counters)

        def step() -> float | None:
            nonlocal before
            time.sleep(STEP_S)
            if process.poll() is not None:
                raise ProbeError(_end(argv[0], process.returncode, said.fileno()), remedy="see the output for why")
            now = moved_bytes(process.pid, counters)
            done = None if now is None or before is None else now - before
            before = now
            return done

        try:
            yield Load("bytes", step)
        finally:
            process.kill()
            process.wait()


def moved_bytes(pid: int, counters: Sequence[str], proc: Path = Path("/proc")) -> int | None:
    """Return the sum of some of the kernel's counters of a process, proc(5); None where the place hides them."""
    text = read(proc / str(pid) / "io") or ""
    found = [re.search(rf"^{name}: (\d+)", text, re.MULTILINE) for name in counters]
    values = [int(each[1]) for each in found if each]
    return sum(values) if len(values) == len(counters) else None


def _end(program: str, status: int, said: int) -> str:
    os.lseek(said, 0, os.SEEK_SET)
    words = os.read(said, 4096).decode(errors="replace").strip()[-300:] or "it says nothing"
    return f"{program} has ended by itself with status {status}: {words}"
