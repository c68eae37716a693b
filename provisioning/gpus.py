"""GPUs: what this machine has, and what a target must be given so that CUDA works in it.

Docker and Podman give GPUs by options of their own; bare metal and runc follow the Container Device Interface (CDI),
whose specification NVIDIA's own tool writes.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioning.cgroup.counters import read
from suite.errors import RequestError
from suite.interfaces import Node

DEVICES = Path("/sys/bus/pci/devices")
NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")

Found = tuple[str, str, str | None, str | None]
"""The name, the evidence, and for a refusal its reason and remedy, as in ``doctor.Check``."""


@dataclass(frozen=True)
class DeviceNode:
    """A character device: its path and its numbers."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True)
class Edits:
    """Devices, read-only mounts (source, target) and variables that a GPU needs."""

    devices: tuple[DeviceNode, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    env: dict[str, str] = field(default_factory=dict)


NO_EDITS = Edits()


def cdi_edits(specification: dict[str, Any], gpus: tuple[str, ...], numbers: Callable[[str], tuple[int, int]]) -> Edits:
    """Return the edits of a CDI specification for the named GPUs: ``containerEdits`` of the whole and of each device.

    ``numbers`` gives a device's major and minor. Raises RequestError for a GPU that the specification does not have.
    """
    devices = {device["name"]: device for device in specification.get("devices", [])}
    if missing := [gpu for gpu in gpus if gpu not in devices]:
        available = ", ".join(sorted(devices)) or "none"
        raise RequestError(f"no GPU {', '.join(missing)}", remedy=f"this host has: {available}")
    parts = [specification.get("containerEdits", {}), *(devices[gpu].get("containerEdits", {}) for gpu in gpus)]
    paths = {node["path"]: None for part in parts for node in part.get("deviceNodes", [])}
    mounts = {(m["hostPath"], m["containerPath"]): None for part in parts for m in part.get("mounts", [])}
    env = dict(pair.split("=", 1) for part in parts for pair in part.get("env", []))
    return Edits(tuple(DeviceNode(path, *numbers(path)) for path in paths), tuple(mounts), env)


def edits_for(node: Node, gpus: tuple[str, ...]) -> Edits:
    """Ask NVIDIA's own tool on the node. Raises RequestError when it is not there or the GPU is not."""
    if not gpus:
        return NO_EDITS
    answer = node.run(["nvidia-ctk", "--quiet", "cdi", "generate", "--format=json"], check=False)
    if answer.returncode:
        raise RequestError(
            "GPUs were asked for, and nvidia-ctk cannot describe them",
            remedy="install the NVIDIA driver and the NVIDIA container toolkit, then see: bench doctor",
        )

    def numbers(path: str) -> tuple[int, int]:
        major, minor = node.run(["stat", "--format=%t %T", "--", path]).stdout.split()
        return int(major, 16), int(minor, 16)

    return cdi_edits(json.loads(answer.stdout), gpus, numbers)


def gpu_checks() -> Iterator[Found]:
    """Yield what NVML says and, for each GPU on the bus, whether a VM could have it."""
    yield _nvml()
    for device in sorted(DEVICES.glob("*")):
        if read(device / "vendor") == NVIDIA and read(device / "class")[:6] in DISPLAY_CLASSES:
            yield passthrough(device)


def _nvml() -> Found:
    # Here and not above: it takes longer to import than what else this module is imported for takes.
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return "nvml", "asked", f"no NVIDIA driver answers: {error}", "none is needed unless you ask for GPUs"
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        count = pynvml.nvmlDeviceGetCount()
        names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    finally:
        pynvml.nvmlShutdown()
    return "nvml", f"driver {driver}: {', '.join(names) or 'no GPU'}", None, None


def passthrough(device: Path) -> Found:
    """Return whether a VM could have the device by VFIO: an IOMMU group without strangers, and the driver vfio-pci."""
    name = f"passthrough {device.name}"
    link = device / "driver"
    driver = link.resolve().name if link.exists() else "none"
    group = device / "iommu_group"
    if not group.exists():
        remedy = "switch the IOMMU on in the firmware and the kernel (intel_iommu=on or amd_iommu=on)"
        return name, f"driver {driver}", "it is in no IOMMU group", remedy
    members = sorted(path.name for path in (group / "devices").glob("*"))
    evidence = f"driver {driver}, IOMMU group {group.resolve().name}: {', '.join(members)}"
    # Functions of the same card (its audio, its USB) go with it; bridges are not handed over.
    card = device.name.rpartition(".")[0]
    foreign = [member for member in members if not member.startswith(card)]
    strangers = [member for member in foreign if not read(group / "devices" / member / "class").startswith("0x0604")]
    if strangers:
        return name, evidence, f"shares its IOMMU group with {', '.join(strangers)}", "use another slot"
    if driver != "vfio-pci":
        remedy = f"bind it: driverctl set-override {device.name} vfio-pci"
        return name, evidence, f"its driver is {driver}", remedy
    return name, evidence, None, None
