"""The envelope: the CPUs, memory and threads that every target of a run gets alike."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from suite.errors import RequestError, option
from suite.part import Part

MIB = 1 << 20
GIB = 1 << 30
MOST_CPUS = 8192  # what a Linux kernel can be built for
MEMORY_NOT_LIMITED = "memory:not-limited"
"""The substitute of a target that may use more memory than its envelope has: without root nothing limits it."""


class Envelope(Part):
    """The share of a host that a target has. ``cpus`` are host CPU numbers, pinned; a guest sees them as 0..n-1."""

    cpus: Annotated[tuple[int, ...], Field(min_length=1)]
    memory_bytes: Annotated[int, Field(gt=0)]
    threads: Annotated[int, Field(gt=0)]
    pinning: Literal["quota"] | None = None
    """``quota`` where every target has the time of so many CPUs, on any of them; None where they are pinned."""
    node_cpus: tuple[int, ...] | None = None
    """The CPUs of container-vm where its virtual machine is a node of a cluster, in that node's own numbers."""
    node_chosen: bool = False
    """Whether a node of a cluster has chosen which CPUs they are: on another node the same plan has others."""

    @property
    def of_cluster(self) -> bool:
        """Whether the nodes of a cluster give the CPUs to pods, by number or as a quota."""
        return self.node_chosen or self.pinning is not None

    @property
    def tmpfs_bytes(self) -> int:
        return tmpfs_bytes(self.memory_bytes)

    def of_target(self, target: str) -> "Envelope":
        cpus = self.node_cpus if target == "container-vm" else None
        return self.model_copy(update={"cpus": cpus or self.cpus, "node_cpus": None})

    def planned(self) -> "Envelope":
        """Return the envelope with CPUs that a node has chosen counted from 0: how many they are is planned."""
        if not self.node_chosen:
            return self
        cpus = None
        if self.node_cpus:
            cpus = tuple(range(len(self.node_cpus)))
        numbered = tuple(range(len(self.cpus)))
        return self.model_copy(update={"cpus": numbered, "node_cpus": cpus})


def most_processes(cpus: int) -> int:
    """Return the most processes and threads of any target with so many CPUs: no job needs them, a fork bomb does."""
    return 1024 + 64 * cpus


def tmpfs_bytes(memory_bytes: int) -> int:
    """Return the size of each file system in memory, such as /dev/shm and /tmp: half, as Linux gives a machine."""
    return memory_bytes // 2 // MIB * MIB


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list in the kernel's notation: ``"0-2,5"`` is ``(0, 1, 2, 5)``. Raises RequestError."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if not _is_cpu(first) or (dash and not (_is_cpu(last) and int(first) <= int(last))):
            raise RequestError(f"{text!r} is not a list of CPUs", remedy="write it as 0-3 or 0,2,4")
        cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))


def parse_kernel_cpus(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list that the kernel writes; it may be empty, for which older kernels write ``(null)``."""
    try:
        return parse_cpu_list(text)
    except RequestError:
        return ()


def _is_cpu(word: str) -> bool:
    # The length first: 0-99999999999 must not become a set of that size.
    return word.isascii() and word.isdigit() and len(word) < 6 and int(word) < MOST_CPUS


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return a list of CPUs in the kernel's notation: ``(0, 1, 2, 5)`` is ``"0-2,5"``."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_cpu_changes(text: str) -> dict[int, int]:
    """Return the number of CPUs from each step on: ``"0=1,10=2"`` is ``{0: 1, 10: 2}``. Raises RequestError."""
    changes: dict[int, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})=(\d{1,4})\s*", part)
        last = max(changes, default=-1)
        if not match or int(match[1]) <= last or not int(match[2]):
            raise RequestError(
                f"{text!r} is not a list of STEP=CPUS in the order of steps", remedy="write it as 0=1,10=2"
            )
        changes[int(match[1])] = int(match[2])
    return changes


def parse_bytes(text: str) -> int:
    """Return the bytes of ``"512M"``, ``"4G"``, ``"4GiB"`` (powers of 1024) or a plain number. Raises RequestError."""
    units = {
        "": 1,
        "K": 1 << 10,
        "M": 1 << 20,
        "G": 1 << 30,
        "T": 1 << 40,
    }
    body = text.strip().upper().removesuffix("IB").removesuffix("B")
    number, unit = (body[:-1], body[-1]) if body[-1:] in units and body else (body, "")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    value *= units[unit]
    if not 1 <= value < float("inf"):
        raise RequestError(f"{text!r} is not an amount of memory", remedy="write it as 512M or 4G")
    return int(value)


def plan_envelope(
    cpus: str | None,
    memory_bytes: int,
    threads: int | None,
    *,
    host_cpus: Iterable[int],
    host_memory_bytes: int,
    offline: Collection[int] = (),
    isolated: Collection[int] = (),
) -> Envelope:
    """Return the envelope that a user asks for. Raises RequestError, with the arithmetic, for what the host has not.

    ``cpus`` is None (all allowed ones), a count such as ``"2"``, or a list such as ``"0,2"`` or ``"0-1"``.
    """
    chosen = _chosen_cpus(cpus, tuple(sorted(host_cpus)), {"offline": offline, "isolated": isolated})
    unbalanced = set(isolated).intersection(chosen)
    if unbalanced and len(chosen) > 1:
        raise RequestError(
            f"{option('cpus')} {format_cpu_list(chosen)}: CPUs {format_cpu_list(unbalanced)} are isolated (isolcpus): "
            "the kernel keeps all threads of a job on the CPU where they start",
            remedy=f"use others with {option('cpus')}, or one alone; a cpuset partition (cpuset.cpus.partition: "
            "root) keeps other programs away and shares the load",
        )
    if memory_bytes > host_memory_bytes:
        raise RequestError(
            f"{memory_bytes / GIB:.1f} GiB of memory asked for, the host has {host_memory_bytes / GIB:.1f} GiB",
            remedy=f"lower {option('memory')}",
        )
    if threads is not None and not 0 < threads <= len(chosen):
        raise RequestError(f"{option('threads')} {threads} on {len(chosen)} CPUs", remedy=f"ask for 1 to {len(chosen)}")
    return Envelope(cpus=tuple(chosen), memory_bytes=memory_bytes, threads=threads or len(chosen))


def _chosen_cpus(cpus: str | None, allowed: Sequence[int], states: Mapping[str, Collection[int]]) -> Sequence[int]:
    """Return the CPUs that are asked for; ``states`` has the reasons for those that are not allowed."""
    have = f"this host allows CPUs {format_cpu_list(allowed)} ({len(allowed)})"
    if cpus is None:
        return allowed
    if cpus.isascii() and cpus.strip().isdigit():
        count = int(cpus)
        if not 0 < count <= len(allowed):
            raise RequestError(f"{option('cpus')} {count}: {have}", remedy=f"ask for 1 to {len(allowed)}")
        return allowed[:count]
    chosen = parse_cpu_list(cpus)
    missing = set(chosen) - set(allowed)
    if missing:
        lacking = lacking_cpus(missing, states)
        raise RequestError(f"{option('cpus')} {cpus}: {lacking}; {have}", remedy="choose among them")
    return chosen


def lacking_cpus(missing: Collection[int], states: Mapping[str, Collection[int]]) -> str:
    """Return such as ``"no CPU 2-3 (3 offline)"``, for CPUs that are not allowed and those in these states."""
    lacking = f"no CPU {format_cpu_list(missing)}"
    for state, numbers in states.items():
        found = set(missing).intersection(numbers)
        if found:
            lacking += f" ({format_cpu_list(found)} {state})"
    return lacking
