"""Gives an instance that is open more or less of the CPUs that it was opened with."""

from dataclasses import dataclass

from provisioning.cgroup.limits import PERIOD_US, quota_us, version
from suite.errors import RequestError
from suite.interfaces import Node, Resize, Shares
from suite.job.envelope import format_cpu_list


@dataclass(frozen=True)
class Opened:
    """The limits that an instance was opened with. ``cpu_share`` is 1 for one that has no quota but its CPUs."""

    cpu_count: int
    memory_bytes: int | None
    cpu_share: float = 1.0
    pinned: bool = True

    def quota_us(self, shares: Shares) -> int:
        """Return the CPU time of a period; -1 for none, of an instance that is held by its CPUs alone."""
        share = self.cpu_share * shares.cpu_share
        return -1 if self.pinned and share == 1 else quota_us(self.cpu_count, share)

    def memory(self, shares: Shares) -> int | None:
        """Return the bytes of memory; None without a limit. Raises RequestError for a share of no limit."""
        if self.memory_bytes is None and shares.memory_share < 1:
            raise RequestError("there is no limit of memory to be changed")
        return None if self.memory_bytes is None else round(self.memory_bytes * shares.memory_share)


def of_group(node: Node, name: str, opened: Opened, *, cpuset: bool = True) -> Resize:
    """Return what resizes a control group of the node; one without ``cpuset`` keeps its CPUs."""
    second = version(node) == 2

    def resize(shares: Shares) -> None:
        quota, memory = opened.quota_us(shares), opened.memory(shares)
        most = f"cpu.max={'max' if quota < 0 else quota} {PERIOD_US}" if second else f"cpu.cfs_quota_us={quota}"
        words = [most, *([f"cpuset.cpus={format_cpu_list(shares.cpus)}"] if cpuset else [])]
        if memory is not None:
            words += [f"memory.max={memory}" if second else f"memory.limit_in_bytes={memory}"]
        node.run(["cgset", *(word for setting in words for word in ("-r", setting)), name])

    return resize
