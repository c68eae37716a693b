"""The system call probe: entering the kernel, waking another process, starting a program, page faults, mappings.

The first two are ``perf bench``'s, in C: it opens no performance counter, so that a seccomp filter that denies
perf_event_open(2) does not touch it (seen with strace). The others do so much in the kernel for each call that the
interpreter around it hardly counts; only of mmap-munmap it is a large part, and it is the same in every target.
"""

import contextlib
import mmap
import os
import re
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from worker.probes import tools
from worker.probes.probe import Measured, Probe, ProbeError, Reading, median
from worker.spec import Request

PERF = ("perf", "perf_6.1")
LEAST_SHARE_OF_FAULTS = 0.9


@dataclass(frozen=True)
class Counts:
    """The repetitions of each call: few enough for an emulated CPU, on which a call costs 20 to 300 times as much."""

    repeats: int
    calls: int
    ping_pongs: int
    programs: int
    fault_mib: int
    mappings: int


COUNTS = {
    "smoke": Counts(
        repeats=3,
        calls=100_000,
        ping_pongs=2_000,
        programs=20,
        fault_mib=16,
        mappings=2_000,
    ),
    "quick": Counts(
        repeats=5,
        calls=1_000_000,
        ping_pongs=20_000,
        programs=200,
        fault_mib=64,
        mappings=20_000,
    ),
    "paper": Counts(
        repeats=10,
        calls=10_000_000,
        ping_pongs=200_000,
        programs=1_000,
        fault_mib=256,
        mappings=100_000,
    ),
}


def measure(request: Request) -> Measured:
    """Return what can be measured here; ``refused`` in the details says why the rest cannot."""
    counts = COUNTS[request.size]
    parts: dict[str, Callable[[Counts], Reading]] = {
        "getppid": lambda counts: perf_bench("syscall", "basic", counts.calls, counts.repeats, "ns"),
        "pipe-ping-pong": lambda counts: perf_bench("sched", "pipe", counts.ping_pongs, counts.repeats, "us"),
        "fork-exec": fork_exec,
        "page-fault": page_fault,
        "mmap-munmap": mmap_munmap,
    }
    metrics = {}
    refused = {}
    for name, part in parts.items():
        try:
            metrics[name] = part(counts)
        except ProbeError as error:
            refused[name] = f"{error}; {error.remedy}"
    if not metrics:
        raise ProbeError("; ".join(refused.values()), remedy="see what the target denies")
    return Measured(metrics, {"refused": refused} if refused else {})


def perf_bench(collection: str, name: str, loops: int, repeats: int, unit: Literal["ns", "us"]) -> Reading:
    """Return the time of a call, by ``perf bench``. Its simple format is not used: it has whole milliseconds."""
    argv = [tools.find(*PERF), "bench", collection, name, "--loop", str(loops)]
    per_us = {"ns": 1e3, "us": 1.0}[unit]
    runs = (tools.run(argv) for _ in range(repeats))
    per_call = [parse_perf(done.stdout, done.stderr) * per_us for done in runs]
    return median(per_call, unit, "less")


def parse_perf(written: str, said: str = "") -> float:
    match = re.search(r"([\d.]+) usecs/op", written)
    if not match or not float(match[1]) > 0:
        words = " ".join((said or written).split())[:400] or "it says nothing"
        raise ProbeError(f"perf bench gives no time: {words}", remedy=tools.MISSING)
    return float(match[1])


def fork_exec(counts: Counts) -> Reading:
    """Start ``true`` and wait for it, once each."""
    try:
        argv = [tools.find("true"), "true"]
    except ProbeError:
        argv = [tools.find("busybox"), "busybox", "true"]
    samples = []
    for _ in range(counts.programs):
        begin_ns = time.perf_counter_ns()
        process = os.posix_spawn(argv[0], argv[1:], {})
        _, status = os.waitpid(process, 0)
        samples.append((time.perf_counter_ns() - begin_ns) / 1e3)
        if status:
            raise ProbeError(f"{argv[0]} ended with {status}", remedy="see what the target denies")
    return median(samples, "us", "less")


def page_fault(counts: Counts) -> Reading:
    """Touch one byte of every page of fresh memory in one call: nanoseconds a page, without huge pages."""
    pages = (counts.fault_mib << 20) // mmap.PAGESIZE
    ones = b"\1" * pages
    samples = []
    for _ in range(counts.repeats):
        with mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
            with contextlib.suppress(OSError):  # a kernel that knows no huge pages
                fresh.madvise(mmap.MADV_NOHUGEPAGE)
            with memoryview(fresh) as view, view[:: mmap.PAGESIZE] as first_bytes:
                faults = _minor_faults()
                begin_ns = time.perf_counter_ns()
                first_bytes[:] = ones
                samples.append((time.perf_counter_ns() - begin_ns) / pages)
                faults = _minor_faults() - faults
        if faults < pages * LEAST_SHARE_OF_FAULTS:
            raise ProbeError(f"{pages} pages came with {faults} faults", remedy="turn huge pages off in the target")
    return median(samples, "ns", "less")


def _minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def mmap_munmap(counts: Counts) -> Reading:
    """Map one page and give it back, untouched."""
    samples = []
    for _ in range(counts.repeats):
        begin_ns = time.perf_counter_ns()
        for _ in range(counts.mappings):
            mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        samples.append((time.perf_counter_ns() - begin_ns) / counts.mappings)
    return median(samples, "ns", "less")


SYSCALL = Probe("syscall", measure, in_turns=True)
