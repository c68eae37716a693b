"""What an engine does, and what a container is told.

The container runs nothing of its own but a sleeper: commands come by the engine's ``exec``, so that a container that is
open is a node like every other.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from provisioning.disks import BlockDevice
from provisioning.gpu.access import NO_EDITS, Edits
from provisioning.nodes import Host
from suite.interfaces import Node
from suite.job.envelope import parse_cpu_list

SLEEPER = ("/opt/virtbench/guest/sleeper",)
BOUND = ("/usr", "/opt")
"""Of the tree: what a job reads programs and libraries from."""
TMPFS = ("/tmp", "/run", "/var/tmp")  # noqa: S108 (inside the container)


@dataclass(frozen=True)
class ContainerSpec:
    """A container to be. No capabilities, no new privileges, a read-only root, no network, the engine's own seccomp.

    The last fields switch one of these off, each as an ablation.
    """

    name: str
    image: str
    """The image's digest; engines with a store of their own know it as ``virtbench:DIGEST12``."""
    tree: str
    """The unpacked tree on the node."""
    cpus: str
    """In the notation of the kernel: ``0-1``. With ``by_count`` as many CPUs, any of them."""
    memory_bytes: int | None
    """None: no limit."""
    limits: tuple[tuple[str, int], ...] = ()
    """Hard limits of the node, ``("nofile", 20000)``: an engine's own defaults may exceed what the host may give."""
    gpus: tuple[str, ...] = ()
    edits: Edits = NO_EDITS
    data: tuple[str, str, bool] | None = None
    """The data volume: where it lies on the node, where in the container, and whether it may be written."""
    seccomp: bool = True
    network: str | None = None
    """Another than an empty one of its own: what ``provisioning.lab.containers.host_network`` says for the engine."""
    layer: tuple[str, str, str] | None = None
    """In place of ``data``, what is copied into a layer of the container's own: from where on the node, to where in
    the container, and a directory on a disk for engines that keep no layers themselves."""
    bound_tree: bool = False
    """Whether the tree's programs and libraries are bound in place of what the engine's overlay shows of them."""
    by_count: bool = False
    limited_disks: tuple[BlockDevice, ...] = ()
    """Of the node: read from and written to at ``DISK_LIMIT_BYTES_PER_S`` at most."""

    @property
    def cpu_count(self) -> int:
        return len(parse_cpu_list(self.cpus))

    @property
    def reference(self) -> str:
        return image_reference(self.image)


def image_reference(digest: str) -> str:
    """The image's name in an engine's store."""
    return f"virtbench:{digest[:12]}"


class ContainerEngine(Protocol):
    """One way to run a container on a node."""

    name: str
    rootfs: str
    """``overlay`` or ``directory``: how the tree becomes the container's root."""
    commands_are_children: bool
    """Whether a command in the container descends from the client that starts it; else from a shim or a daemon."""

    def version(self, node: Node) -> str:
        """Of the engine that would run the container. Raises BenchError, with a remedy, when it would not."""

    def load(self, host: Host, digest: str, archive: Path) -> None:
        """Make the image known to the engine, once. ``archive`` is the packed image, on this machine."""

    def check(self, node: Node, digest: str) -> None:
        """Raises MeasurementError of kind ``image`` where the engine does not know the image."""

    def layers_at(self, node: Node) -> str:
        """The directory, on the node, in which its containers' own layers come to lie."""

    def begin(self, node: Node, spec: ContainerSpec) -> None:
        """Create and start the container with its sleeper."""

    def exec_argv(self, spec: ContainerSpec) -> list[str]:
        """The words that start a command in it."""

    def main_pid(self, node: Node, name: str) -> int:
        """The container's first process, in the node's own numbers."""

    def removal(self, name: str) -> list[list[str]]:
        """The commands that kill it and remove it with all that belongs to it."""

    def remove(self, node: Node, name: str) -> None:
        """Kill and remove it; harmless when it is not there."""

    def remove_local(self, name: str) -> None:
        """The same on this machine, from the ledger."""
