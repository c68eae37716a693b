"""Ablations: properties of a layer that are switched one at a time, in the same blocks as the target that has them.

Each is one switch with one fixed meaning, so that its name alone says what was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from suite.errors import RequestError

_CONTAINERS = ("container", "container-vm")
_VMS = ("vm", "container-vm")
_ALL = ("bare-metal", *_CONTAINERS, "vm")
DISK_LIMIT_BYTES_PER_S = 32 << 20
"""Of ``disk-limit``: for reading, and as much again for writing."""


@dataclass(frozen=True)
class Ablation:
    """One switch: what becomes of the property, and which targets have it."""

    name: str
    summary: str
    targets: tuple[str, ...]
    differs: tuple[str, ...] = ()
    """Columns of the trials in which the switched trial may differ from the one it is held against: what was switched
    itself. All else must still agree."""


ABLATIONS = {
    ablation.name: ablation
    for ablation in (
        Ablation("seccomp", "no system call filter on the container", _CONTAINERS),
        Ablation("network", "the network of the node itself instead of a namespace of the container's", _CONTAINERS),
        Ablation("rootfs", "the image's tree bound in place instead of the engine's overlay over it", _CONTAINERS),
        Ablation("huge-pages", "memory of the job in transparent huge pages", _ALL),
        Ablation(
            "pinning", "CPUs by count (a quota, unpinned vCPUs) instead of by number", _ALL, ("affinity", "seen_cpus")
        ),
        Ablation("isa", "vector instructions capped to the next lower level", _ALL, ("torch_cpu_capability",)),
        # A guest's memory is its limit, also of what runs in it.
        Ablation(
            "memory-limit",
            "no memory limit on the instance: page cache and memory of the machine are anyone's",
            ("bare-metal", "container"),
            ("seen_memory_bytes",),
        ),
        Ablation(
            "disk-limit",
            "at most 32 MiB/s read from each disk and 32 MiB/s written to it, by the control group or by QEMU",
            _ALL,
        ),
        Ablation(
            "virtiofs", "the data set's directory shared with the VM instead of a virtual disk that holds it", _VMS
        ),
        Ablation(
            "data-layer", "the data set in a layer of the container's own instead of a bind mount", ("container",)
        ),
        Ablation("disk-cache", "cache=writeback instead of cache=none for the disks of the VM", _VMS),
    )
}


def arms(target: str, ablations: Sequence[str]) -> tuple[str, ...]:
    """Those of the ablations that the target has, in their order."""
    return tuple(name for name in ablations if target in ABLATIONS[name].targets)


def check(ablations: Sequence[str], targets: Sequence[str]) -> None:
    """Raises RequestError for one that none of the targets has: the run would not hold what was asked for."""
    for name in ablations:
        if not set(targets) & set(ABLATIONS[name].targets):
            raise RequestError(
                f"--ablate {name}: none of {', '.join(targets)} has it",
                remedy=f"add --target {ABLATIONS[name].targets[0]}, or leave it out",
            )
