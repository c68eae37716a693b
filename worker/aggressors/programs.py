"""Two aggressors that are programs: fio at random places of a file, and iperf3 with itself over the loopback.

Each is started once and runs until it is ended; a stop and a start between steps would be rest for the victim. What it
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

from worker.aggressors.load import PROGRAM_STEP_S, Load
from worker.memory import read
from worker.probes import disk, iperf3, jobfile, tools
from worker.probes.network import LOOPBACK, free_port
from worker.probes.reading import ProbeError
from worker.probes.request import Request

LONGEST_S = 86_400
"""The most that iperf3 takes; no trial comes near it."""
_STORAGE, _CALLS = ("read_bytes", "write_bytes"), ("wchar",)


@contextmanager
def fio(request: Request) -> Iterator[Load]:
    """Direct reads and writes of 4 KiB at random, 32 at a time; the work are bytes from and to the disk."""
    program = tools.find("fio")
    tools.version_of(program, disk.OLDEST_FIO)
    size_mib = jobfile.FILE_MIB[request.size]
    with disk.place_in(request.directory) as place:
        disk.check_room(place, size_mib << 20)
        argv = [program, "--name=aggressor", f"--filename={place}/data", f"--size={size_mib}m", "--rw=randrw"]
        argv += ["--bs=4k", "--iodepth=32", "--ioengine=libaio", "--direct=1", "--overwrite=1", "--thread"]
        made = tools.run([*argv, "--create_only=1"])
        if made.returncode:
            raise ProbeError(f"fio cannot make its file: {made.stderr.strip()[-300:]}", remedy="free some space")
        with _running([*argv, "--time_based", f"--runtime={LONGEST_S}", "--eta=never"], _STORAGE) as load:
            yield load


@contextmanager
def iperf3_to_itself() -> Iterator[Load]:
    """TCP over the loopback of the place; the work are the bytes that the client has sent."""
    program = tools.find("iperf3")
    tools.version_of(program, iperf3.OLDEST)
    common = ["--port", str(free_port(LOOPBACK, LOOPBACK)), "--interval", "0"]
    server = [program, "--server", "--one-off", "--forceflush", "--bind", LOOPBACK, *common]
    client = [program, "--client", LOOPBACK, "--time", str(LONGEST_S), *common]
    with tools.serving(server, "listening"), _running(client, _CALLS) as load:
        yield load


@contextmanager
def _running(argv: Sequence[str], counters: Sequence[str]) -> Iterator[Load]:
    """The program, ended with the block. A step is a look at it, and its end is a failure."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=os.environ)
        before = moved_bytes(process.pid, counters)

        def step() -> float | None:
            nonlocal before
            time.sleep(PROGRAM_STEP_S)
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
    """The sum of some of the kernel's counters of a process, proc(5); None where the place hides them."""
    text = read(proc / str(pid) / "io") or ""
    found = [re.search(rf"^{name}: (\d+)", text, re.MULTILINE) for name in counters]
    values = [int(each[1]) for each in found if each]
    return sum(values) if len(values) == len(counters) else None


def _end(program: str, status: int, said: int) -> str:
    os.lseek(said, 0, os.SEEK_SET)
    words = os.read(said, 4096).decode(errors="replace").strip()[-300:] or "it says nothing"
    return f"{program} has ended by itself with status {status}: {words}"
