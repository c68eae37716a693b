"""The aggressors that compute or copy with torch, on caches, memory or the bus of a GPU, and those that are programs.

fio and iperf3 are started once and run until they are ended; a stop and a start between steps would be rest for the
victim. Their work is read from the kernel's account of the process. torch is imported in the functions: the host reads
the declarations, and has none.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from worker.aggressors.aggressor import Aggressor, AggressorLoad
from worker.environment import number
from worker.probes import computing, disk, network, tools
from worker.probes.probe import ProbeError
from worker.spec import Request

STEP_S = 0.25
"""How often the account of the program is read: that is its step."""
LONGEST_S = 86_400
"""The longest run that iperf3 takes; no trial comes near it."""


@contextmanager
def multiplied(request: Request) -> Iterator[AggressorLoad]:
    """Multiply square fp32 matrices; one of two n x n matrices counts as 2 n^3 operations."""
    import torch

    from worker.training.device import prepare

    facts = prepare(request.threads, request.device)
    rows, _, _ = computing.PRODUCTS[request.size]
    left, right = (torch.rand(rows, rows, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    result = torch.mm(left, right)

    def step() -> float:
        torch.mm(left, right, out=result)
        return 2.0 * rows**3

    yield AggressorLoad("operations", step, facts)


@contextmanager
def added(request: Request) -> Iterator[AggressorLoad]:
    """Compute ``a = b + s * c`` on arrays far larger than caches; the bytes of all three count, as in STREAM."""
    import torch

    from worker.training.device import prepare

    facts = prepare(request.threads, request.device)
    array_bytes = computing.ARRAY_MIB[request.size] * computing.MIB
    count = array_bytes // computing.BYTES_OF_DOUBLE
    b, c, a = (torch.full((count,), value, dtype=torch.float64) for value in (1.0, 2.0, 0.0))

    def step() -> float:
        torch.add(b, c, alpha=3.0, out=a)
        return 3 * array_bytes

    yield AggressorLoad("bytes", step, facts)


@contextmanager
def copied(request: Request) -> Iterator[AggressorLoad]:
    """Copy an array from pinned memory to the GPU and back; on the CPU from one array to another, and back.

    Both are far larger than caches. Its work are the bytes of both copies.
    """
    import torch

    from worker.training.device import prepare

    facts = prepare(request.threads, request.device)
    array_bytes = computing.ARRAY_MIB[request.size] * computing.MIB
    host = torch.zeros(array_bytes, dtype=torch.uint8, pin_memory=request.device == "cuda")
    other = torch.zeros(array_bytes, dtype=torch.uint8, device=request.device)

    def step() -> float:
        other.copy_(host)
        host.copy_(other)  # waits for the device
        return 2 * array_bytes

    yield AggressorLoad("bytes", step, facts)


@contextmanager
def running(argv: Sequence[str], counters: Sequence[str]) -> Iterator[AggressorLoad]:
    """Run the program until the end of the block; its own end is a failure. For ``counters`` see proc_pid_io(5)."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ,
        )
        before = moved_bytes(process.pid, counters)

        def step() -> float | None:
            nonlocal before
            time.sleep(STEP_S)
            if process.poll() is not None:
                output.seek(0)
                reply = output.read(4096).decode(errors="replace")
                words = reply.strip()[-300:] or "it says nothing"
                ended = f"{argv[0]} has ended by itself with status {process.returncode}: {words}"
                raise ProbeError(ended, remedy="see the output for why")
            now = moved_bytes(process.pid, counters)
            done = None if now is None or before is None else now - before
            before = now
            return done

        try:
            yield AggressorLoad("bytes", step)
        finally:
            process.kill()
            process.wait()


def moved_bytes(pid: int, counters: Sequence[str]) -> int | None:
    """Return the sum of some of the kernel's counters of a process, proc(5); None where the place hides them."""
    values = [value for name in counters if (value := number(f"proc/{pid}/io", name)) is not None]
    if len(values) == len(counters):
        return sum(values)
    return None


@contextmanager
def disk_loaded(request: Request) -> Iterator[AggressorLoad]:
    """Read and write 4 KiB directly at random places, 32 at a time; its work is in bytes from and to the disk."""
    program = tools.find("fio")
    tools.version_of(program, disk.OLDEST_FIO)
    size_bytes = disk.written_bytes(request.size)
    with disk.place_in(request.directory) as directory:
        disk.check_space(directory, size_bytes)
        argv = [program, "--name=aggressor", f"--filename={directory}/data", f"--size={size_bytes}", "--rw=randrw"]
        argv += ["--bs=4k", "--iodepth=32", "--ioengine=libaio", "--direct=1", "--overwrite=1", "--thread"]
        created = tools.run([*argv, "--create_only=1"])
        if created.returncode:
            raise ProbeError(f"fio cannot make its file: {created.stderr.strip()[-300:]}", remedy="free some space")
        with running(
            [*argv, "--time_based", f"--runtime={LONGEST_S}", "--eta=never"], ("read_bytes", "write_bytes")
        ) as load:
            yield load


@contextmanager
def network_loaded(_request: Request) -> Iterator[AggressorLoad]:
    """Send by TCP over the loopback of the place; its work is in bytes that the client has sent."""
    program = tools.find("iperf3")
    tools.version_of(program, network.OLDEST_IPERF3)
    common = ["--port", str(network.free_port()), "--interval", "0"]
    server = [program, "--server", "--one-off", "--forceflush", "--bind", network.LOOPBACK, *common]
    client = [program, "--client", network.LOOPBACK, "--time", str(LONGEST_S), *common]
    with tools.serving(server, "listening"), running(client, ("wchar",)) as load:
        yield load


CPU = Aggressor("cpu", multiplied)
MEMORY = Aggressor("memory", added)
COPIES = Aggressor("copies", copied)
DISK = Aggressor("disk", disk_loaded, disk.written_bytes)
NETWORK = Aggressor("network", network_loaded)
