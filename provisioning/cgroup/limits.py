"""Control groups of bare metal: the envelope enforced by the kernel, on version 1 and version 2.

Containers get theirs from their engine. The programs are libcgroup's, which know both versions and run on any node.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioning.cgroup import removal as group_removal
from provisioning.processes import program_argv
from suite.errors import RequestError
from suite.interfaces import Node, Resize, Shares
from suite.job.envelope import Envelope, format_cpu_list, most_processes
from suite.job.properties import AS_IT_IS, Properties

CONTROLLERS = {1: "cpuset,cpu,memory,pids,cpuacct", 2: "cpuset,cpu,memory,pids"}
"""The controllers by version. Version 2 accounts for CPU time in every group, version 1 where it is asked to."""
DISK_CONTROLLERS = {1: "blkio", 2: "io"}
ROOT = group_removal.ROOT
PERIOD_US = 100_000
BLOCK_DEVICES = Path("/sys/dev/block")


@dataclass(frozen=True)
class BlockDevice:
    """``path`` below /dev is what engines take, ``number`` (``254:0``) what control groups take."""

    path: str
    number: str


def quota_us(cpu_count: int, share: float = 1.0) -> int:
    return round(cpu_count * share * PERIOD_US)


def version(node: Node) -> int:
    """Return which version governs memory on the node, 1 or 2 (a hybrid host governs it by version 1)."""
    kind = node.run(["stat", "--file-system", "--format=%T", "/sys/fs/cgroup"]).stdout.strip()
    return 2 if kind == "cgroup2fs" else 1


def create(
    node: Node,
    name: str,
    envelope: Envelope,
    properties: Properties = AS_IT_IS,
    limited_disks: Sequence[BlockDevice] = (),
) -> list[str]:
    """Make the group and return the words that start a command in it. Raises CommandError if the node refuses.

    A group that is not pinned gets as many CPUs by a quota, on any that are free. ``limited_disks`` are those that the
    disk limits of the properties apply to.
    """
    governing = version(node)
    controllers = [CONTROLLERS[governing], *([DISK_CONTROLLERS[governing]] if limited_disks else [])]
    group = f"{','.join(controllers)}:/{name}"
    if properties.pinned:
        cpus = format_cpu_list(envelope.cpus)
    else:
        cpus = _listed(node, "cpu/online")
    # Not all nodes that are online: those without memory are refused on version 1.
    settings = [("cpuset.cpus", cpus), ("cpuset.mems", _listed(node, "node/has_memory"))]
    settings += [("pids.max", str(most_processes(len(envelope.cpus))))]
    if not properties.pinned or properties.cpu_share < 1:
        quota = str(quota_us(len(envelope.cpus), properties.cpu_share))
        first = [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", quota)]
        settings += {1: first, 2: [("cpu.max", f"{quota} {PERIOD_US}")]}[governing]
    if properties.memory_limited:
        most = str(envelope.memory_bytes)
        second = [("memory.max", most), ("memory.swap.max", "0")]
        settings += {1: [("memory.limit_in_bytes", most)], 2: second}[governing]
    limits = properties.disk_limits
    for disk in limited_disks:
        first = [(f"blkio.throttle.{way}_{unit}_device", f"{disk.number} {limit}") for way, unit, limit in limits]
        most = " ".join(f"{way[0]}{unit}={limit}" for way, unit, limit in limits)
        settings += {1: first, 2: [("io.max", f"{disk.number} {most}")]}[governing]
    node.run(["cgcreate", "-g", group])
    for key, value in settings:
        # A kernel without swap accounting has no swap limit to set, and no swap to limit.
        node.run(["cgset", "-r", f"{key}={value}", name], check=key != "memory.swap.max")
    return ["cgexec", "-g", group]


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
        if self.pinned and share == 1:
            return -1
        return quota_us(self.cpu_count, share)

    def memory(self, shares: Shares) -> int | None:
        """Return the bytes of memory; None without a limit. Raises RequestError for a share of no limit."""
        if self.memory_bytes is None and shares.memory_share < 1:
            raise RequestError("there is no limit of memory to be changed")
        if self.memory_bytes is None:
            return None
        return round(self.memory_bytes * shares.memory_share)


def of_group(node: Node, name: str, opened: Opened, *, cpuset: bool = True) -> Resize:
    """Return what resizes a control group of the node; one without ``cpuset`` keeps its CPUs."""
    second = version(node) == 2

    def resize(shares: Shares) -> None:
        quota = opened.quota_us(shares)
        memory = opened.memory(shares)
        if second:
            settings = [f"cpu.max={'max' if quota < 0 else quota} {PERIOD_US}"]
        else:
            settings = [f"cpu.cfs_quota_us={quota}"]
        if cpuset:
            settings.append(f"cpuset.cpus={format_cpu_list(shares.cpus)}")
        if memory is not None:
            file = "memory.max" if second else "memory.limit_in_bytes"
            settings.append(f"{file}={memory}")
        argv = ["cgset"]
        for setting in settings:
            argv += ["-r", setting]
        node.run([*argv, name])

    return resize


def remove_argv(name: str) -> list[str]:
    return program_argv(group_removal, name)


def disks_can_be_limited() -> bool:
    """Return whether the block I/O controller of the version that governs this machine is there."""
    version_2 = ROOT / "cgroup.controllers"
    if version_2.exists():
        return DISK_CONTROLLERS[2] in version_2.read_text().split()
    return (ROOT / DISK_CONTROLLERS[1]).is_dir()


def _listed(node: Node, kind: str) -> str:
    """Return the CPUs or the memory nodes of this kind that the node has, as the kernel writes them."""
    return node.run(["cat", f"/sys/devices/system/{kind}"], check=False).stdout.strip() or "0"


def disks_under(paths: Iterable[str | None]) -> tuple[BlockDevice, ...]:
    """Return each disk of these places once, in order. Raises RequestError for a file system without a disk."""
    return tuple(dict.fromkeys(_disk_under(path) for path in paths if path))


def _disk_under(path: str) -> BlockDevice:
    try:
        device = Path(path).stat().st_dev
        entry = BLOCK_DEVICES / f"{os.major(device)}:{os.minor(device)}"
        # A partition's directory lies in that of its disk, which alone can be limited.
        disk = entry.resolve().parent if (entry / "partition").exists() else entry
        number = (disk / "dev").read_text().strip()
        lines = (disk / "uevent").read_text().splitlines()
        variables = dict(line.split("=", 1) for line in lines)
        return BlockDevice(f"/dev/{variables['DEVNAME']}", number)
    except (OSError, KeyError, ValueError) as error:
        raise RequestError(
            f"{path} lies on a file system without a disk of its own (an overlay, btrfs, a network's)",
            remedy="set VIRTBENCH_HOME to a directory on ext4 or XFS",
        ) from error
