"""The footprint of a target on this machine: its processes and what they have used.

Three sources: processes that live from before the job to after it (QEMU, shims); children of this process that end in
between (the job on bare metal, clients of engines, ssh), which the kernel adds up when they are waited for; and the
control group of a container, whose processes are mostly nobody's children here.
"""

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from provisioning import processes
from provisioning.cgroup.counters import ControlGroup, read
from provisioning.nodes import HostProcesses, LocalNode, WrappedNode
from suite.interfaces import Node
from suite.records.fields import checked_part
from suite.records.usage import Usage

PROC = Path("/proc")
Amounts = Mapping[str, float | None]
"""Fields of ``records.Usage`` that add up. None is unknown, and so is every sum with it."""
DISK = ("disk_read_bytes", "disk_written_bytes")
FAULTS = ("minor_faults", "major_faults")
NETWORK = ("network_received_bytes", "network_sent_bytes")
COUNTED = ("cpu_s", *DISK, *FAULTS)
NOTHING: Amounts = dict.fromkeys(COUNTED, 0)


@dataclass(frozen=True)
class FootprintReading:
    children: Amounts
    living: Mapping[int, Amounts]
    groups: Sequence[Amounts]
    networks: Sequence[tuple[int, int] | None]


@dataclass(frozen=True)
class Footprint:
    """The processes of this host that belong to the opened instances of a target."""

    pids: Sequence[int]
    host_processes: Sequence[HostProcesses]
    """The host processes of each instance whose layers know of some."""

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> "Footprint":
        """Find the processes: before the job, so that nothing is searched for when it has ended."""
        pids: set[int] = set()
        host_processes = []
        for node in nodes:
            lowest, bottom = lowest_processes(node)
            if isinstance(bottom, LocalNode):
                pids |= {process.pid for process in processes.carrying(bottom.token)}
            if lowest is None:
                continue
            host_processes.append(lowest)
            if lowest.main_pid:
                # The shim of an engine with a daemon is started by that, and does not carry the token.
                shim = _parent(lowest.main_pid)
                if shim not in (1, os.getpid(), None):
                    pids.add(shim)
        # The kernel's threads for a QEMU's network; newer kernels count them as QEMU's own.
        threads = {f"vhost-{pid}" for pid in pids}
        running = psutil.process_iter(["name"])
        pids |= {process.pid for process in running if process.info["name"] in threads}
        return cls(sorted(pids), host_processes)

    def with_started(self, nodes: Sequence[Node]) -> "Footprint":
        """Return the footprint with the processes that have begun since, such as a hypervisor that loaded a guest."""
        started = Footprint.of(nodes)
        return Footprint(sorted({*self.pids, *started.pids}), self.host_processes)

    def read(self) -> FootprintReading:
        living = {}
        for pid in self.pids:
            used = process_used(pid)
            if used:
                living[pid] = used
        main_pids = [processes.main_pid for processes in self.host_processes if processes.main_pid]
        return FootprintReading(
            children=children_used(),
            living=living,
            groups=list(map(_group_used, self._groups())),
            networks=list(map(network_bytes, main_pids)),
        )

    def _groups(self) -> list[ControlGroup]:
        return [processes.group for processes in self.host_processes if processes.group]

    def owns(self, pid: int) -> bool | None:
        """Return whether a process is one of the instances', or comes from this one; None if it is not visible here."""
        try:
            parents = (parent.pid for parent in psutil.Process(pid).parents())
            line = {pid, *parents}
        except psutil.Error:
            return None
        suite_pids = {os.getpid(), *self.pids}
        if line & suite_pids:
            return True
        group = ControlGroup.of_process(pid)
        return any(map(group.is_within, self._groups()))

    def used(self, before: FootprintReading, after: FootprintReading) -> Amounts:
        used = difference(before.children, after.children)
        for pid, amounts in after.living.items():
            spent = difference(before.living.get(pid, NOTHING), amounts)
            used = total(used, spent)
        if before.groups:
            grouped = NOTHING
            pairs = zip(before.groups, after.groups, strict=True)
            for earlier, later in pairs:
                grouped = total(grouped, difference(earlier, later))
            # Children are in the groups too; only what of them nobody waited for is in those alone.
            by_children = all(processes.by_children for processes in self.host_processes)
            ways = (used, grouped)
            numbers = [amounts["cpu_s"] for amounts in ways if amounts["cpu_s"] is not None]
            if by_children:
                used = {**used, "cpu_s": max(numbers, default=None)}
            else:
                used = total(used, grouped)
        return used

    def usage(self, before: FootprintReading, after: FootprintReading) -> Usage:
        """Return what was used between two readings; the peak of memory is that of now."""
        # The peaks may have come at different times, but what runs beside the job is small.
        of_processes = filter(None, map(peak_memory_bytes, self.pids))
        of_groups = [group.peak_memory_bytes() for group in self._groups()]
        peaks = [*of_processes, *of_groups]
        peak = None
        if None not in peaks:
            peak = sum(filter(None, peaks)) or None
        amounts = {
            **self.used(before, after),
            **_network(before, after),
            "peak_memory_bytes": peak,
        }
        return checked_part(Usage, amounts)


def _group_used(group: ControlGroup) -> Amounts:
    return {
        "cpu_s": group.cpu_s(),
        **dict(zip(FAULTS, group.faults(), strict=True)),
        **dict(zip(DISK, group.disk_bytes(), strict=True)),
    }


def lowest_processes(node: Node) -> tuple[HostProcesses | None, Node]:
    """Return the host processes of the lowest layer that has some, and the node below all layers."""
    lowest = None
    while isinstance(node, WrappedNode):
        lowest = node.host_processes or lowest
        node = node.parent
    return lowest, node


def _network(before: FootprintReading, after: FootprintReading) -> Amounts:
    """Return the bytes received and sent; nothing if those of one instance are unknown."""
    networks = zip(before.networks, after.networks, strict=True)
    pairs = [(a, b) for a, b in networks if a and b]
    if not pairs or len(pairs) < len(before.networks):
        return {}
    amounts: dict[str, float | None] = {}
    for way, name in enumerate(NETWORK):
        amounts[name] = sum(b[way] - a[way] for a, b in pairs)
    return amounts


def total(a: Amounts, b: Amounts) -> Amounts:
    sums: dict[str, float | None] = {}
    for name in COUNTED:
        x = a[name]
        y = b[name]
        sums[name] = None if x is None or y is None else x + y
    return sums


def difference(before: Amounts, after: Amounts) -> Amounts:
    """Return after minus before, and never below 0."""
    differences: dict[str, float | None] = {}
    for name in COUNTED:
        earlier = before[name]
        later = after[name]
        if earlier is None or later is None:
            differences[name] = None
        else:
            differences[name] = max(0, later - earlier)
    return differences


def process_used(pid: int) -> Amounts | None:
    """Return what a process and all its threads have used, without its children; None if it is gone."""
    stat = read(PROC / str(pid) / "stat")
    if not stat:
        return None
    # proc(5): the name, in parentheses, can hold anything; the first field after it is the third.
    fields = stat.rpartition(")")[2].split()
    fields_of_times = (10, 12, 14, 15)
    minor, major, user, system = (int(fields[number - 3]) for number in fields_of_times)
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return {
        "cpu_s": (user + system) / ticks_per_s,
        "minor_faults": minor,
        "major_faults": major,
        **_disk(pid),
    }


def children_used() -> Amounts:
    """Return what children that were waited for have used. The kernel adds their disk bytes to this process's own."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "cpu_s": used.ru_utime + used.ru_stime,
        "minor_faults": used.ru_minflt,
        "major_faults": used.ru_majflt,
        **_disk("self"),
    }


def _disk(pid: int | str) -> Amounts:
    lines = read(PROC / str(pid) / "io").splitlines()
    counters = {}
    for line in lines:
        name, value = line.split(": ")
        counters[name] = int(value)
    return {
        "disk_read_bytes": counters.get("read_bytes"),
        "disk_written_bytes": counters.get("write_bytes"),
    }


def peak_memory_bytes(pid: int) -> int | None:
    """Return the peak resident memory; None for a process that is gone, and for a thread of the kernel."""
    status = read(PROC / str(pid) / "status").splitlines()
    lines = [line for line in status if line.startswith("VmHWM:")]
    if lines:
        return int(lines[0].split()[1]) * 1024
    return None


def network_bytes(pid: int) -> tuple[int, int] | None:
    """Return the bytes received and sent in the process's network namespace, without loopback; None if it is ours."""
    try:
        namespace = (PROC / str(pid) / "ns/net").readlink()
        if namespace == (PROC / "self/ns/net").readlink():
            return None
    except OSError:
        return None
    rows = read(PROC / str(pid) / "net/dev").splitlines()[2:]
    lines = [line.partition(":") for line in rows]
    counters = []
    for name, _, values in lines:
        if name.strip() != "lo":
            counters.append(values.split())
    received = (int(values[0]) for values in counters)
    sent = (int(values[8]) for values in counters)
    return sum(received), sum(sent)


def _parent(pid: int) -> int | None:
    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return None
