"""Control groups of bare metal: the envelope enforced by the kernel, on version 1 and version 2.

Containers get theirs from their engine. The programs are libcgroup's, which know both versions and run on any node.
"""

from pathlib import Path

from provisioning import group_removal
from suite.envelope import Envelope, format_cpu_list
from suite.interfaces import Node

CONTROLLERS = {1: "cpuset,cpu,memory,cpuacct", 2: "cpuset,cpu,memory"}
"""By version. Version 2 accounts for CPU time in every group, and version 1 where it is asked to."""
ROOT = group_removal.ROOT
PERIOD_US = 100_000


def version(node: Node) -> int:
    """1 or 2: which version governs memory on the node (a hybrid host governs it by version 1)."""
    kind = node.run(["stat", "--file-system", "--format=%T", "/sys/fs/cgroup"]).stdout.strip()
    return 2 if kind == "cgroup2fs" else 1


def create(node: Node, name: str, envelope: Envelope, *, pinned: bool = True) -> list[str]:
    """Make the group; returns the words that start a command in it. Raises CommandError when the node refuses.

    Without ``pinned`` it gets as many CPUs, by a quota, on any that are free.
    """
    governing = version(node)
    group = f"{CONTROLLERS[governing]}:/{name}"
    memory = str(envelope.memory_bytes)
    cpus = format_cpu_list(envelope.cpus) if pinned else _online(node, "cpu")
    settings = {"cpuset.cpus": cpus, "cpuset.mems": _online(node, "node")}
    if not pinned:
        settings |= _quota(governing, len(envelope.cpus))
    if governing == 2:
        settings |= {"memory.max": memory, "memory.swap.max": "0"}
    else:
        settings |= {"memory.limit_in_bytes": memory}
    node.run(["cgcreate", "-g", group])
    for key, value in settings.items():
        # A kernel without swap accounting has no swap limit to set, and no swap to limit.
        node.run(["cgset", "-r", f"{key}={value}", name], check=key != "memory.swap.max")
    return ["cgexec", "-g", group]


def remove_argv(name: str) -> list[str]:
    """The command that does on any machine what ``remove`` does on this one."""
    return ["python3", "-I", "-c", Path(group_removal.__file__).read_text(), name]


def remove(name: str) -> None:
    """Kill what is in the group on this machine and remove it; see ``group_removal``."""
    group_removal.remove(name, ROOT)


def _quota(governing: int, cpus: int) -> dict[str, str]:
    quota = str(cpus * PERIOD_US)
    if governing == 2:
        return {"cpu.max": f"{quota} {PERIOD_US}"}
    return {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota}


def _online(node: Node, what: str) -> str:
    """The CPUs or the nodes of memory that the node has, as the kernel writes them."""
    return node.run(["cat", f"/sys/devices/system/{what}/online"], check=False).stdout.strip() or "0"
