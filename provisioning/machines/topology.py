"""The topology of a guest's virtual CPUs: that of the host CPUs that they are pinned to."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from suite.interfaces import Node
from suite.job.envelope import parse_cpu_list

CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"
PACKAGE = "physical_package_id"
CORE = "core_id"
LAST_APIC_ID = 254
"""The greatest of 8 bits, of which 255 is for all; with more bits interrupts must be remapped."""


@dataclass(frozen=True)
class Topology:
    """The virtual CPUs of a guest: QEMU numbers the threads of a core first, then cores, then sockets."""

    cpus: tuple[int, ...]
    """The host CPU of each virtual one."""
    sockets: int = 1
    threads: int = 1
    nodes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """The NUMA nodes of the host with the virtual CPUs on them; empty on a host that has one."""

    @property
    def cores(self) -> int:
        """Return the cores of each socket."""
        return len(self.cpus) // (self.sockets * self.threads)

    @property
    def last_apic_id(self) -> int:
        """Return the greatest APIC ID: threads, cores and sockets have bits of their own."""
        thread_bits = (self.threads - 1).bit_length()
        core_bits = (self.cores - 1).bit_length()
        in_socket = (self.cores - 1 << thread_bits) + self.threads - 1
        return (self.sockets - 1 << core_bits + thread_bits) + in_socket


def topology_on(node: Node, cpus: Sequence[int]) -> Topology:
    """Return the topology of CPUs of a node; that of one socket without hardware threads where it tells nothing."""
    files = [f"{CPUS}/cpu{cpu}/topology/{name}" for cpu in cpus for name in (PACKAGE, CORE)]
    numa = node.run(["find", NODES, "-maxdepth", "2", "-name", "cpulist"], check=False).stdout.split()
    answer = node.run(["grep", "-s", "-H", "", "--", *files, *numa], check=False)
    return topology_of(answer.stdout.splitlines(), cpus)


def topology_of(lines: Iterable[str], cpus: Sequence[int]) -> Topology:
    """Return the topology by lines ``FILE:TEXT`` of /sys.

    All are cores of one socket where cores or sockets have unlike numbers of these CPUs, which no guest can have, and
    where the bits of its APIC IDs would not suffice.
    """
    texts: dict[str, str] = {}
    for line in lines:
        path, _, text = line.partition(":")
        texts[path] = text
    places: dict[int, tuple[int, int]] = {}
    for cpu in cpus:
        package = texts.get(f"{CPUS}/cpu{cpu}/topology/{PACKAGE}", "")
        core = texts.get(f"{CPUS}/cpu{cpu}/topology/{CORE}", "")
        if package.isdigit() and core.isdigit():
            places[cpu] = int(package), int(core)
    ordered = tuple(sorted(cpus, key=lambda cpu: (*places.get(cpu, (0, 0)), cpu)))
    of_cores = Counter(places.values())
    of_sockets = Counter(package for package, _ in places.values())
    is_known = len(places) == len(cpus)
    if not is_known or _differ(of_cores) or _differ(of_sockets):
        return Topology(tuple(cpus))
    topology = Topology(
        ordered,
        sockets=len(of_sockets),
        threads=len(cpus) // len(of_cores),
        nodes=_numa(texts, ordered),
    )
    if topology.last_apic_id > LAST_APIC_ID:
        return Topology(ordered, nodes=topology.nodes)
    return topology


def _differ(counts: Counter[Any]) -> bool:
    return len(set(counts.values())) > 1


def _numa(texts: dict[str, str], cpus: Sequence[int]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the NUMA nodes of the host that have some of these CPUs, with the positions of these."""
    nodes: list[tuple[int, tuple[int, ...]]] = []
    count = 0
    for path, text in texts.items():
        node = re.fullmatch(rf"{NODES}/node(\d+)/cpulist", path)
        if not node or not text:
            continue
        count += 1
        of_node = parse_cpu_list(text)
        positions = tuple(position for position, cpu in enumerate(cpus) if cpu in of_node)
        if positions:
            nodes.append((int(node[1]), positions))
    if count < 2:
        return ()
    return tuple(sorted(nodes))
