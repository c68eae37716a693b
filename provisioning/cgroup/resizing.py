"""Gives an instance that is open more or less of the CPUs that it was opened with."""

from collections.abc import Sequence

from provisioning.cgroup.limits import PERIOD_US, version
from suite.interfaces import Node, Resize
from suite.job.envelope import format_cpu_list


def quota_us(cpus: Sequence[int], share: float) -> int:
    """Return the CPU time of a period for a share of the CPUs; all of it holds back nothing that is pinned to them."""
    return round(len(cpus) * share * PERIOD_US)


def of_group(node: Node, name: str, *, pinned: bool = True) -> Resize:
    """Return what resizes a control group of the node; one that is not ``pinned`` keeps its CPUs."""
    second = version(node) == 2

    def resize(cpus: Sequence[int], share: float) -> None:
        quota = quota_us(node.cpus, share)
        most = f"cpu.max={quota} {PERIOD_US}" if second else f"cpu.cfs_quota_us={quota}"
        words = [most, *([f"cpuset.cpus={format_cpu_list(cpus)}"] if pinned else [])]
        node.run(["cgset", *(word for setting in words for word in ("-r", setting)), name])

    return resize
