"""GPUs: what a place must be given so that CUDA works in it.

Docker and Podman know by themselves; bare metal and runc follow the Container Device Interface (CDI), whose
specification NVIDIA's own tool writes.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from suite.errors import RequestError
from suite.interfaces import Node


@dataclass(frozen=True)
class Device:
    """A character device: where it lies, and its numbers."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True)
class Edits:
    """Devices, read-only mounts (source, target) and variables that a GPU needs."""

    devices: tuple[Device, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    env: dict[str, str] = field(default_factory=dict)


NO_EDITS = Edits()


def cdi_edits(specification: dict[str, Any], gpus: tuple[str, ...], numbers: Callable[[str], tuple[int, int]]) -> Edits:
    """The edits of a CDI specification for the named GPUs (CDI's ``containerEdits``, of the whole and of each device).

    ``numbers`` gives a device's major and minor. Raises RequestError for a GPU that the specification does not have.
    """
    devices = {device["name"]: device for device in specification.get("devices", [])}
    if missing := [gpu for gpu in gpus if gpu not in devices]:
        known = ", ".join(sorted(devices)) or "none"
        raise RequestError(f"no GPU {', '.join(missing)}", remedy=f"this host has: {known}")
    parts = [specification.get("containerEdits", {}), *(devices[gpu].get("containerEdits", {}) for gpu in gpus)]
    paths = {node["path"]: None for part in parts for node in part.get("deviceNodes", [])}
    mounts = {(m["hostPath"], m["containerPath"]): None for part in parts for m in part.get("mounts", [])}
    env = dict(pair.split("=", 1) for part in parts for pair in part.get("env", []))
    return Edits(tuple(Device(path, *numbers(path)) for path in paths), tuple(mounts), env)


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
