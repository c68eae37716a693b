"""The state of this host around a job: what the kernel has counted, how the CPUs are set, the energy that was used.

The processes that take CPU time beside a job are named by what the kernel counts of each that lives.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeVar

from provisioning.cgroup.counters import ControlGroup, read
from suite.job.envelope import parse_cpu_list
from suite.records.usage import Conditions
from suite.untrusted.parse import has_control_characters

PROC = Path("/proc")
SYS = Path("/sys")
POWERCAP = SYS / "class/powercap"
MOST_NAMED = 3
_KERNEL = "2"
"""The process that starts the kernel's threads."""
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class HostReading:
    at_s: float
    busy_s: float | None
    """The CPU time of anything on the envelope's CPUs."""
    steal_s: float | None
    own_s: float
    """CPU seconds of this process."""
    throttled_s: tuple[float, ...]
    thermal: tuple[int | None, ...]
    swapped_bytes: int | None
    mhz: float | None


@dataclass(frozen=True)
class EnvelopeHost:
    """This machine as far as it concerns the CPUs of an envelope. ``groups`` are those of the suite and of the job."""

    cpus: Sequence[int]
    groups: Sequence[ControlGroup] = ()
    gpus: Sequence[str] = ()
    """The PCI addresses of the job's GPUs."""

    def read(self, at_s: float, own_s: float) -> HostReading:
        busy_s, steal_s = (None, None) if self._absent else self._cpu_s()
        throttled_s: list[float] = []
        for group in self.groups:
            throttled_s += group.throttled_s()
        return HostReading(
            at_s=at_s,
            busy_s=busy_s,
            steal_s=steal_s,
            own_s=own_s,
            throttled_s=tuple(throttled_s),
            thermal=tuple(map(self._thermal, self._counted)),
            swapped_bytes=self._swapped_bytes(),
            mhz=self._mhz(),
        )

    def conditions(self, before: HostReading, after: HostReading, serving_cpu_s: float | None) -> Conditions:
        """Return what happened between two readings. The caller adds ``load_1min`` and ``sampler_cpu_s``."""
        temperatures = zip(before.thermal, after.thermal, strict=True)
        heats = [_minus(b, a) for a, b in temperatures]
        hot = [heat for heat in heats if heat is not None]
        counters = zip(before.throttled_s, after.throttled_s, strict=False)
        throttled = [b - a for a, b in counters]
        busy_s = _minus(after.busy_s, before.busy_s)
        ours_s = None
        if serving_cpu_s is not None:
            ours_s = serving_cpu_s + after.own_s - before.own_s
        frequency_mhz = None
        if before.mhz is not None and after.mhz is not None:
            frequency_mhz = (before.mhz, after.mhz)
        return Conditions(
            interval_s=after.at_s - before.at_s or None,
            steal_s=_minus(after.steal_s, before.steal_s),
            other_cpu_s=_minus(busy_s, ours_s),
            throttled_s=max(throttled, default=None),
            thermal_throttles=max(hot, default=None) if len(hot) == len(heats) else None,
            swapped_bytes=_minus(after.swapped_bytes, before.swapped_bytes),
            governor=self._governor(),
            frequency_mhz=frequency_mhz,
            siblings_shared=self._siblings_shared(),
            numa_nodes=self._numa_nodes(),
            absent=self._absent,
        )

    @cached_property
    def _absent(self) -> str | None:
        """Return why nothing is counted by CPU: a file of /proc or /sys that is not the kernel's own.

        That of a system container (lxcfs) numbers the CPUs anew, unlike affinities, and counts the container alone.
        """
        topology = "devices/system/cpu"
        files = (
            (PROC, "stat"),
            (PROC, "cpuinfo"),
            (SYS, topology),
            (SYS, f"{topology}/online"),
        )
        for top, name in files:
            path = top / name
            if path.exists() and path.stat().st_dev != top.stat().st_dev:
                return f"{path} is not the kernel's: its CPUs may be numbered otherwise"
        return None

    @cached_property
    def _counted(self) -> Sequence[int]:
        return () if self._absent else self.cpus

    def _cpu_s(self) -> tuple[float | None, float | None]:
        """Return the busy and the stolen seconds.

        proc(5): user nice system idle iowait irq softirq steal; a guest's time is in user's.
        """
        table = read(PROC / "stat").splitlines()
        lines = [line.split() for line in table]
        names = {f"cpu{cpu}" for cpu in self._counted}
        rows = []
        for words in lines:
            if words and words[0] in names:
                rows.append([int(word) for word in words[1:]])
        if len(rows) != len(names) or any(len(row) < 8 for row in rows):
            return None, None
        busy = 0
        stolen = 0
        for user, nice, system, _, _, irq, softirq, steal, *_ in rows:
            busy += user + nice + system + irq + softirq
            stolen += steal
        return ticks_s(busy), ticks_s(stolen)

    def _thermal(self, cpu: int) -> int | None:
        directory = self._cpu(cpu) / "thermal_throttle"
        counts = [read(directory / f"{kind}_throttle_count") for kind in ("core", "package")]
        numbers = []
        for count in counts:
            if count.isdigit():
                numbers.append(int(count))
        if numbers:
            return sum(numbers)
        return None

    def _swapped_bytes(self) -> int | None:
        lines = read(PROC / "vmstat").splitlines()
        pairs = dict(line.split() for line in lines)
        pages = [pairs.get(name) for name in ("pswpin", "pswpout")]
        if None not in pages:
            locked = (int(page) for page in pages if page)
            return sum(locked) * os.sysconf("SC_PAGE_SIZE")
        return None

    def _governor(self) -> str | None:
        """Return the governor of all the CPUs; several are joined by ``+``."""
        names = {read(self._cpu(cpu) / "cpufreq/scaling_governor") for cpu in self._counted}
        if "" in names:
            return None
        return "+".join(sorted(names)) or None

    def _mhz(self) -> float | None:
        khz = [read(self._cpu(cpu) / "cpufreq/scaling_cur_freq") for cpu in self._counted]
        known = khz and all(text.isdigit() for text in khz)
        if known:
            return fmean(int(text) / 1000 for text in khz)
        return self._mhz_of_cpuinfo()

    def _mhz_of_cpuinfo(self) -> float | None:
        cpuinfo = read(PROC / "cpuinfo").splitlines()
        lines = [line.partition(":") for line in cpuinfo]
        numbers = []
        for key, _, value in lines:
            if key.strip() == "processor":
                numbers.append(int(value))
        mhz = [_rate(value) for key, _, value in lines if key.strip() == "cpu MHz"]
        pairs = zip(numbers, mhz, strict=False)
        rates = [rate for number, rate in pairs if number in self._counted]
        known = [rate for rate in rates if rate is not None]
        if known and len(known) == len(self._counted):
            return fmean(known)
        return None

    def _siblings_shared(self) -> bool | None:
        texts = [read(self._cpu(cpu) / "topology/thread_siblings_list") for cpu in self._counted]
        if not texts or not all(texts):
            return None
        listed = {cpu for text in texts for cpu in parse_cpu_list(text)}
        return not listed <= set(self.cpus)

    def _numa_nodes(self) -> list[int] | None:
        nodes = set[str]()
        for cpu in self._counted:
            links = self._cpu(cpu).glob("node[0-9]*")
            nodes |= {link.name.removeprefix("node") for link in links}
        of_gpus = {read(SYS / f"bus/pci/devices/{address}/numa_node") for address in self.gpus}
        nodes |= of_gpus - {"", "-1"}
        return sorted(int(node) for node in nodes) or None

    def _cpu(self, cpu: int) -> Path:
        return SYS / f"devices/system/cpu/cpu{cpu}"


def ticks_s(ticks: int) -> float:
    return ticks / os.sysconf("SC_CLK_TCK")


def _rate(text: str) -> float | None:
    """Return a rate of /proc/cpuinfo; None where the kernel cannot tell it, and writes ``Unknown`` since 6.15."""
    try:
        return float(text)
    except ValueError:
        return None


def _minus(a: Number | None, b: Number | None) -> Number | None:
    """Return the difference, never below 0: the kernel counts CPU time of processes finer than that of CPUs."""
    if a is None or b is None:
        return None
    return max(a - b, type(a)(0))


Energy = tuple[int, int]
"""A counter in µJ, and the value at which it begins again at 0; ``accounting`` reads it at least once a turn."""


def read_energy() -> dict[str, Energy]:
    """Return the counters of this host's packages and memory, by name (``package-0``, ``dram-0``); empty without any.

    It is RAPL, by the kernel's powercap (Intel and AMD). Only root may read it. The names are of separate meters: the
    zones of several dies can show one counter of their package, and the first of them then stands for all.
    """
    meters = dict[str, Energy]()
    zones = dict[str, Path]()
    for zone in sorted(POWERCAP.glob("intel-rapl:*")):
        name = read(zone / "name")
        if name == "dram":
            # A part of a package's zone, and named without its number: intel-rapl:0:0 is below intel-rapl:0.
            parent = zone.name.rpartition(":")[0]
            name += read(POWERCAP / parent / "name").removeprefix("package")
        uj = read(zone / "energy_uj")
        range_uj = read(zone / "max_energy_range_uj")
        if name.startswith(("package", "dram")) and uj.isdigit() and range_uj.isdigit():
            counter = (int(uj), int(range_uj))
            dies = [die for die in meters if _package(die) == _package(name)]
            if not any(_between(counter, meters[die], read(zones[die] / "energy_uj")) for die in dies):
                meters[name] = counter
                zones[name] = zone
    return meters


def _package(meter: str) -> str:
    return meter.partition("-die-")[0]


def _between(counter: Energy, earlier: Energy, later_uj: str) -> bool:
    """Return whether a counter lies between two readings of another, before and after it, as only the same one does."""
    if not later_uj.isdigit():
        return False
    (uj, range_uj) = counter
    begin_uj, _ = earlier
    counted_uj = (uj - begin_uj) % range_uj
    most_uj = (int(later_uj) - begin_uj) % range_uj
    return counted_uj <= most_uj


def joules(before: Mapping[str, Energy], after: Mapping[str, Energy]) -> dict[str, float]:
    """Return the joules that were spent between two readings less than a turn apart, by counter."""
    spent_j = {}
    for name, (begin_uj, range_uj) in before.items():
        if name in after:
            end_uj, _ = after[name]
            spent_uj = end_uj - begin_uj
            if spent_uj < 0:
                spent_uj += range_uj
            spent_j[name] = spent_uj / 1e6
    return spent_j


class BusyProcess(NamedTuple):
    """A process by its number, its start and its name: never its command line, which may hold secrets."""

    pid: int
    start: str
    name: str


def used_s() -> dict[BusyProcess, float]:
    """Return the CPU seconds of every process that this user may see.

    Threads of the kernel are left out: they also work for the job.
    """
    used: dict[BusyProcess, float] = {}
    for place in PROC.glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            # proc(5): pid (name) state ..., of which the name may hold anything.
            stat = (place / "stat").read_text(errors="replace")
            head, _, tail = stat.rpartition(")")
            name = head.partition("(")[2]
            words = tail.split()
            if words[1] != _KERNEL and not has_control_characters(name):
                process = BusyProcess(int(place.name), words[19], name)
                user = int(words[11])
                system = int(words[12])
                used[process] = ticks_s(user + system)
    return used


def spent_s(before: Mapping[BusyProcess, float], after: Mapping[BusyProcess, float]) -> list[tuple[BusyProcess, float]]:
    """Return what each process has used between two readings, the busiest first, without those that were idle."""
    busy = []
    for process, later_s in after.items():
        seconds = later_s - before.get(process, 0.0)
        if seconds > 0:
            busy.append((process, seconds))
    return sorted(busy, key=lambda use: use[1], reverse=True)


def busiest(
    before: Mapping[BusyProcess, float],
    after: Mapping[BusyProcess, float],
    least_s: float,
    owns: Callable[[int], bool | None],
) -> dict[str, float] | None:
    """Return the CPU seconds of the names that used most and at least so much; None if no name did.

    ``owns`` returns whether a process belongs to the job or to the suite.
    """
    by_name: dict[str, float] = defaultdict(float)
    for process, seconds in spent_s(before, after):
        if seconds < least_s / 10:  # a name may stand for several
            break
        if not owns(process.pid):
            by_name[process.name] += seconds
    by_use = sorted(by_name, key=lambda name: by_name[name], reverse=True)
    most = by_use[:MOST_NAMED]
    named = {name: by_name[name] for name in most if by_name[name] >= least_s}
    return named or None
