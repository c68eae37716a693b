"""Control groups of bare metal: the envelope enforced by the kernel, on version 1 and version 2.

Containers get theirs from their engine. The programs are libcgroup's, which know both versions and run on any node.
"""

import subprocess
from pathlib import Path

from suite.envelope import Envelope, format_cpu_list
from suite.interfaces import Node

CONTROLLERS = "cpuset,memory"
V1_ROOT = Path("/sys/fs/cgroup")


def version(node: Node) -> int:
    """1 or 2: which version governs memory on the node (a hybrid host governs it by version 1)."""
    kind = node.run(["stat", "--file-system", "--format=%T", "/sys/fs/cgroup"]).stdout.strip()
    return 2 if kind == "cgroup2fs" else 1


def create(node: Node, name: str, envelope: Envelope) -> list[str]:
    """Make the group; returns the words that start a command in it. Raises CommandError when the node refuses."""
    group = f"{CONTROLLERS}:/{name}"
    memory = str(envelope.memory_bytes)
    settings = {"cpuset.cpus": format_cpu_list(envelope.cpus), "cpuset.mems": _memory_nodes(node)}
    if version(node) == 2:
        settings |= {"memory.max": memory, "memory.swap.max": "0"}
    else:
        settings |= {"memory.limit_in_bytes": memory}
    node.run(["cgcreate", "-g", group])
    for key, value in settings.items():
        # A kernel without swap accounting has no swap limit to set, and no swap to limit.
        node.run(["cgset", "-r", f"{key}={value}", name], check=key != "memory.swap.max")
    return ["cgexec", "-g", group]


def remove(name: str) -> None:
    """Remove the group on this machine; harmless when it is not there. Its processes have ended by then."""
    found = [path for root in (V1_ROOT, *V1_ROOT.glob("*/")) if (path := root / name).is_dir()]
    if found:
        subprocess.run(["cgdelete", "-g", f"{CONTROLLERS}:/{name}"], check=False, capture_output=True, timeout=30)
    for path in found:
        if path.is_dir():
            path.rmdir()


def _memory_nodes(node: Node) -> str:
    return node.run(["cat", "/sys/devices/system/node/online"], check=False).stdout.strip() or "0"
