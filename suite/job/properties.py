"""The properties of a target that an ablation or an injury may change, and their values in the target as it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

DISK_LIMITS = {"bps": "disk_limit_bytes_per_s", "iops": "disk_limit_iops"}
"""The limits of disks: the field of the properties and of an environment, by the unit's name in kernel and engines."""
DISK_STAND_INS = {"tmpfs": "disk:memory", "ramfs": "disk:memory", "zfs": "disk:zfs"}
"""The substitutes that file systems are for a disk: they accept direct I/O, and memory answers it. ZFS does so before
2.3, and its cache is not the page cache that can be emptied."""
SHARED_NETWORK = "shared"
"""The network of a container that has the machine's, since its engine gives it no other."""


class DiskLimit(NamedTuple):
    """The limit of one direction, ``read`` or ``write``, of each disk. ``unit`` is a key of ``DISK_LIMITS``."""

    way: str
    unit: str
    limit: int


@dataclass(frozen=True)
class Properties:
    """The properties of a target. The defaults are the target as it is; a layer reads the properties that it has."""

    pinned: bool = True
    """Whether the CPUs are given by number; otherwise as many of them, any."""
    memory_limited: bool = True
    confined: bool = True
    """Whether the job on bare metal is a user of its own, without capabilities, the machine's devices or processes."""
    disk_limit_bytes_per_s: int | None = None
    """The most that is read from each disk, and as much again written to it; None for no limit."""
    disk_limit_iops: int | None = None
    """The most requests per second that read from each disk, and as many again that write to it."""
    huge_pages: bool = False
    """Whether the job's memory is in transparent huge pages."""
    guest_huge_pages: str | None = None
    """The mode of transparent huge pages in the guest's kernel, in its word; None for that of the node."""
    channels_last: bool = False
    """Whether images and weights lie in memory with their channels last: NHWC, in the recipe's own numbers."""
    lower_isa: bool = False
    """Whether the vector instructions are capped one level lower than in the target as it is."""
    provider: str | None = None
    """The machine provider in place of the run's own."""
    engine: str | None = None
    """The container engine in place of the run's own."""
    oci_runtime: str | None = None
    """The OCI runtime that the engine runs the container by, in place of the run's."""
    seccomp: bool = True
    """Whether the container has the engine's system call filter."""
    host_network: bool = False
    """Whether the container has the network of its node instead of a namespace of its own."""
    bound_tree: bool = False
    """Whether programs and libraries are bound from the image's tree instead of read through the engine's overlay."""
    data_in_layer: bool = False
    """Whether the data set is in a layer of the container's own instead of a bind mount."""
    direct_io: bool = True
    """Whether the VM's disks bypass the page cache of the host."""
    microvm: bool = False
    """Whether the VM is a light one, without PCI: QEMU's machine type ``microvm``."""
    virtiofs: bool = False
    """Whether the VM shares the directory of the data set instead of having a virtual disk that holds it."""
    cpu_share: float = 1.0
    """The share of its CPUs' time that the target may use; below 1 a quota holds it back."""
    service: str | None = None
    """The type of a cluster's service through which a server is asked; None where it is asked at its own address."""
    pod_requests: float = 1.0
    """The share of its limits that a pod requests of its node; below 1 the node may promise the rest to others."""
    link: Mapping[str, str] | None = None
    """Fields of ``suite.job.lab.LabSpec`` in which the links of the lab differ from those of the job."""
    step_injury: Mapping[str, str | int | float] | None = None
    """The load that the worker adds to its own steps on purpose, as ``worker.training.injury.StepInjury`` has it."""

    @property
    def disk_limits(self) -> tuple[DiskLimit, ...]:
        limits = {unit: limit for unit, name in DISK_LIMITS.items() if (limit := getattr(self, name))}
        return tuple(DiskLimit(way, unit, limit) for unit, limit in limits.items() for way in ("read", "write"))


AS_IT_IS = Properties()
