"""The CPUs' own counters of the last-level cache and of memory, by ``perf stat`` on this host.

Counted are CPUs and not processes: a guest's are then counted as a container's are. Most hosts that are virtual
machines themselves have no such counters, which is a normal state and recorded with its reason.
"""

import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from provisioning.processes import check_answer, popen_settings, run_apart
from suite.errors import BenchError, CommandError
from suite.records.usage import CacheUse

PERF = "perf"
LOADS = "LLC-loads"
MISSES = "LLC-load-misses"
CONTROLLERS = Path("/sys/bus/event_source/devices")
MEMORY = {"memory_read_bytes": "cas_count_read", "memory_written_bytes": "cas_count_write"}
"""The counters of the memory controllers of Intel's servers; perf gives them in MiB."""
WITHIN_S = 30.0
MIB = 1 << 20


def perf_argv(events: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return the ``perf stat`` command that counts on every CPU while a command runs."""
    return [PERF, "stat", "-x,", "-a", "-A", "-e", ",".join(events), "--", *command]


def events_of() -> list[str]:
    """Return the events to count: those of the cache, and those of memory if the kernel names them."""
    named = {path.name for path in CONTROLLERS.glob("uncore_imc*/events/cas_count_*")}
    return [LOADS, MISSES, *(f"uncore_imc/{event}/" for event in MEMORY.values() if event in named)]


def counts(text: str, event: str, cpus: Collection[int] | None = None) -> float | None:
    """Return the sum of an event over the CPUs, or over all, from the lines of ``perf stat -x, -A``.

    None where one of them was not counted, or there is none: ``<not supported>``, ``<not counted>``. An event that only
    one kind of unlike cores has leaves the CPUs of the other out.
    """
    values: dict[int, list[str]] = {}
    for line in text.splitlines():
        cpu, value, _, name, *_ = [*line.split(","), "", "", ""]
        # On CPUs of unlike cores an event has the name of the cores, too: cpu_core/LLC-loads/.
        if cpu.startswith("CPU") and event in name.split("/"):
            values.setdefault(int(cpu.removeprefix("CPU")), []).append(value)
    counted = values if cpus is None else cpus
    wanted = [value for cpu in counted for value in values.get(cpu, [""])]
    numbers = [float(value) for value in wanted if value.replace(".", "", 1).isdigit()]
    if numbers and len(numbers) == len(wanted):
        return sum(numbers)
    return None


@cache
def absent() -> str | None:
    """Return why this host counts no cache misses; None if it does. It is tried once."""
    try:
        check_answer(PERF, run_apart([PERF, "--version"], WITHIN_S).stdout, "this machine")
        tried = run_apart(perf_argv(events_of(), ["true"]), WITHIN_S)
    except FileNotFoundError:
        return "perf is not installed (package linux-perf)"
    except CommandError:
        return f"perf did not end within {WITHIN_S:g} s"
    except BenchError as error:
        return error.message
    if tried.returncode:  # a distribution's wrapper names the package that is missing at the end
        return f"perf may not count: {' '.join(tried.stderr.split())[:400]}"
    if counts(tried.stderr, MISSES) is not None:
        return None
    return "perf: <not supported>, there is no such counter"


class Counting:
    """Counts from ``start`` to ``stop``, once each. ``own`` are CPUs that only the job was given; None without any."""

    def __init__(self, cpus: Sequence[int] | None) -> None:
        self._own = cpus
        self._perf: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Return once it counts. What perf runs is a ``cat``, which answers, and ends with its pipe even if we die."""
        if absent() is None:
            self._perf = subprocess.Popen(
                perf_argv(events_of(), ["cat"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                **popen_settings(),  # a comma in a number would begin a new field
            )
            if not (self._perf.stdin and self._perf.stdout):
                return
            with suppress(BrokenPipeError):  # it has ended by itself: what it said is heard in the end
                self._perf.stdin.write("counting\n")
                self._perf.stdin.flush()
                self._perf.stdout.readline()

    def stop(self) -> CacheUse:
        if self._perf is None:
            return CacheUse(absent=absent())
        try:
            _, text = self._perf.communicate(timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            self._perf.kill()
            self._perf.communicate()
            return CacheUse(absent=f"perf did not end within {WITHIN_S:g} s")
        return cache_use(text, self._own)


def cache_use(text: str, job_cpus: Sequence[int] | None) -> CacheUse:
    return CacheUse(
        cpus=list(job_cpus) if job_cpus else None,
        llc_loads=_whole(counts(text, LOADS, job_cpus)) if job_cpus else None,
        llc_load_misses=_whole(counts(text, MISSES, job_cpus)) if job_cpus else None,
        **{name: _whole(counts(text, event), MIB) for name, event in MEMORY.items()},
        absent="; ".join(_reasons(text, job_cpus)) or None,
    )


def _reasons(text: str, job_cpus: Sequence[int] | None) -> Iterator[str]:
    if not job_cpus:
        yield "the cache: the job has no CPUs of its own, and CPUs are what is counted"
    elif counts(text, MISSES, job_cpus) is None:
        yield "the cache: perf did not count on all CPUs of the job"
    if counts(text, MEMORY["memory_read_bytes"]) is None:
        yield "memory: no counters of memory controllers (uncore_imc)"


def _whole(value: float | None, unit: int = 1) -> int | None:
    if value is None:
        return None
    return round(value * unit)
