"""The protocol of container engines, and the specification of a container.

The container runs nothing of its own but a sleeper: commands come by the engine's ``exec``, so that an open container
is a node like every other.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from provisioning.cgroup.limits import BlockDevice
from provisioning.engines import clients
from provisioning.gpus import NO_EDITS, Edits
from provisioning.images.image import Image
from provisioning.processes import program_argv, run_apart
from suite.errors import CommandError, MeasurementError, RequestError, option
from suite.interfaces import Node
from suite.job.envelope import most_processes, parse_cpu_list
from suite.job.properties import Properties
from suite.registries import ENGINES
from suite.request.option import OptionGroup

SLEEPER = ("/opt/virtbench/guest/sleeper",)
BOUND = ("/usr", "/opt")
"""The directories of the tree from which a job reads programs and libraries."""
TMPFS = ("/tmp", "/run", "/var/tmp")  # noqa: S108 (inside the container)
REMOVED_WITHIN_S = 120.0


@dataclass(frozen=True)
class ContainerSpec:
    """A container to start: no capabilities, no new privileges, a read-only root, no network, the engine's seccomp.

    Ablations change the last fields, one at a time.
    """

    name: str
    image: str
    """The image's digest; engines with a store of their own know it as ``virtbench:DIGEST12``."""
    tree: str
    """The unpacked tree on the node."""
    cpus: str
    """The CPUs in the notation of the kernel: ``0-1``. With ``by_count`` as many CPUs, any of them."""
    memory_bytes: int | None
    """None for no limit."""
    limits: tuple[tuple[str, int], ...] = ()
    """Hard limits of the node, ``("nofile", 20000)``: an engine's own defaults may exceed what the host may give."""
    gpus: tuple[str, ...] = ()
    edits: Edits = NO_EDITS
    """The devices and mounts that give it the GPUs, for an engine with ``gpus_by_edits``."""
    data: tuple[str, str, bool] | None = None
    """The data volume: its directory on the node, its place in the container, and whether it may be written."""
    seccomp: bool = True
    network: str | None = None
    """The value that ``ContainerEngine.host_network`` returns; None for an empty network of its own."""
    layer: tuple[str, str, str] | None = None
    """The data to copy into a layer of the container's own, in place of ``data``: the directory on the node, the place
    in the container, and a directory on a disk for engines that keep no layers themselves."""
    bound_tree: bool = False
    """Whether the tree's programs and libraries are bound in place of what the engine's overlay shows of them."""
    by_count: bool = False
    cpu_share: float = 1.0
    """The share of the CPUs' time that the container may use."""
    limited_disks: tuple[BlockDevice, ...] = ()
    """The disks of the node to which ``disk_limit_bytes_per_s`` applies."""
    disk_limit_bytes_per_s: int = 0
    """The most that is read from each limited disk, and as much again written to it."""

    @property
    def cpu_count(self) -> int:
        """The number of ``cpus``."""
        return len(parse_cpu_list(self.cpus))

    @property
    def most_processes(self) -> int:
        """The most processes and threads of the container."""
        return most_processes(self.cpu_count)

    @property
    def reference(self) -> str:
        """The image's name in an engine's store."""
        return image_reference(self.image)


def image_reference(digest: str) -> str:
    """Return the image's name in an engine's store."""
    return f"virtbench:{digest[:12]}"


@dataclass(frozen=True)
class GuestStore:
    """A disk that holds the image in an engine's own store: loading it inside an emulated guest would take minutes."""

    file: str
    """The name of the disk beside the image's other packed files."""
    make: Callable[[Image, Callable[[str], None]], object]
    """Makes the disk if it is missing. Raises RequestError or MeasurementError if it cannot."""


@dataclass(frozen=True)
class Allotment:
    """The CPUs that an engine which chooses them itself gives to the containers of a run."""

    cpus: tuple[int, ...] | None
    """The CPUs that a container has to itself; None where it has the time of so many, on any."""
    cpuinfo: str = ""
    """The content of /proc/cpuinfo in one of them."""


class ContainerEngine(Protocol):
    """One way to run a container on a node. Inherit from it to get its defaults."""

    name: str
    options: type[OptionGroup] | None = None
    """The options of a run that this engine alone knows."""
    is_cluster: bool = False
    """Whether its containers are pods that a cluster places, not this machine; such an engine must be named."""
    rootfs: str
    """The way in which the tree becomes the container's root: ``overlay`` or ``directory``."""
    commands_are_children: bool
    """Whether a command in the container descends from the client that starts it, not from a shim or a daemon."""
    network: str = "none"
    """The network of a container that is told of none: an empty one of its own."""
    gpus_by_edits: bool = False
    """Whether it takes GPUs as devices and mounts (``ContainerSpec.edits``) and not by an option of its own."""
    guest_store: GuestStore | None = None
    """The disk that a guest needs in which the engine is to run; None if the image's tree is enough."""
    says_gone: tuple[str, ...] = ()
    """The messages, in lower case, with which ``removal`` fails for a container that is gone, if it does."""

    def configured(self, given: Mapping[str, str]) -> "ContainerEngine":  # noqa: ARG002 (engines with options do)
        """Return the engine with those of its options that were given."""
        return self

    def on_vm(self, node: str) -> "ContainerEngine":
        """Return the engine for containers on a node that is a virtual machine, as the containers themselves attest.

        Raises RequestError for a node of the same kernel as this engine's own.
        """
        raise RequestError(f"{self.name} has no node {node}", remedy=f"use {option('engine')} kubernetes")

    def hindrance(self, properties: Properties) -> str | None:  # noqa: ARG002 (engines that lack one do)
        """Return why containers cannot have these properties; None where they can."""
        return None

    def most_cpus(self) -> int | None:
        """Return how many CPUs a container can have; None where it is this machine that decides."""
        return None

    def check_cpus(self, count: int) -> None:  # noqa: ARG002 (engines that decide it do)
        """Raise RequestError where the engine's containers cannot have so many CPUs."""
        return

    def check_machine(self, node: Node) -> None:  # noqa: ARG002 (engines whose containers may be elsewhere do)
        """Raise RequestError where the node is another machine than the one that the engine's containers run on."""
        return

    def allotment(
        self,
        image: Image,  # noqa: ARG002 (see above)
        cpus: int,  # noqa: ARG002
        memory_bytes: int,  # noqa: ARG002
        count: int = 1,  # noqa: ARG002
    ) -> Allotment | None:
        """Try which CPUs ``count`` containers get that are open at once; None for an engine that gives what it is told.

        ``cpus`` and ``memory_bytes`` are those of each.

        Raises BenchError where it cannot run one.
        """
        return None

    def version(self, node: Node) -> str:
        """Return the version of the engine, started first where nobody else starts it: in a guest of the suite's.

        Raises BenchError, with a remedy, if it could not run a container on the node.
        """

    def load(self, host: Node, digest: str, archive: Path) -> None:  # noqa: ARG002 (engines with a store do)
        """Make the image known to the engine, once; do nothing for an engine that runs the tree where it is.

        ``archive`` is the packed image, on this machine.
        """
        return

    def check(self, node: Node, digest: str) -> None:  # noqa: ARG002 (engines with a store do)
        """Raise MeasurementError of kind ``image`` if the engine has not loaded the image, and needs to."""
        return

    def layers_at(self, node: Node) -> str:
        """Return the directory, on the node, that holds the containers' own layers."""

    def host_network(self, namespace: str | None) -> str:
        """Return what gives a container the network of its node, for ``ContainerSpec.network``.

        ``namespace`` is the path of a lab node's network namespace, and None if the node is a whole machine. Raises
        RequestError if the engine cannot start a container in the network of a lab node.
        """

    def seccomp_sha256(self, node: Node, tree: str) -> str | None:  # noqa: ARG002 (engines without an own profile do)
        """Return the digest of the seccomp profile that the suite gives its containers; None if the engine has one."""
        return None

    def begin(self, node: Node, spec: ContainerSpec) -> None:
        """Create and start the container with its sleeper.

        All of it counts as the container's opening, but for the time in which ``node.opening`` is paused.
        """

    def exec_argv(self, spec: ContainerSpec) -> list[str]:
        """Return the words that start a command in the container."""

    def entered(self, node: Node, spec: ContainerSpec) -> Node:  # noqa: ARG002 (engines without a command line do)
        """Return the node on which the words of ``exec_argv`` are said: for most engines the one below."""
        return node

    def address(self, node: Node) -> str:
        """Return the address of an opened container in the network that its engine has given it.

        Raises MeasurementError for an engine whose containers the suite joins itself.
        """
        raise MeasurementError(
            f"the containers of {self.name} have no address of their own on {node.name}", kind="plan"
        )

    def served(
        self,
        node: Node,
        port: int,
        way: str,  # noqa: ARG002 (engines that have services do)
    ) -> AbstractContextManager[tuple[str, int]]:
        """Put a service before a port of an opened container; see ``Properties.service`` for ``way``.

        Yields the address and the port to which its clients connect. Raises MeasurementError for an engine that has no
        services.
        """
        raise MeasurementError(f"{self.name} has no services to put before port {port} of {node.name}", kind="plan")

    def main_pid(self, node: Node, name: str) -> int | None:
        """Return the process id, on the node, of the container's first process; None if it is on another machine."""

    def entry(self, name: str) -> tuple[str, str]:
        """Return the kind and the text of the container's entry in the ledger of this machine."""
        return "container", f"{self.name}:{name}"

    def await_end(self, name: str) -> None:  # noqa: ARG002 (engines that only say that it is gone do)
        """Return when nothing of a removed container runs on this machine any more."""
        return

    def removal(self, name: str) -> list[list[str]]:
        """Return the commands that kill the container and remove it with all that belongs to it."""

    def remove(self, node: Node, name: str) -> None:
        """Kill and remove the container; harmless if it is not there."""
        self._remove(name, lambda argv: node.run(argv, check=False))

    def remove_local(self, name: str) -> None:
        """Kill and remove the container on this machine, where no node is open: the ledger calls this."""
        self._remove(name, lambda argv: run_apart(argv, REMOVED_WITHIN_S))

    def _remove(self, name: str, run: Callable[[list[str]], Any]) -> None:
        for argv in self.removal(name):
            ended = run(argv)
            if ended.returncode and not any(words in ended.stderr.lower() for words in self.says_gone):
                raise CommandError(argv, ended.returncode, ended.stderr)


def end_starting(name: str) -> list[str]:
    """Return the command that ends what still starts the container, on any node; see ``clients``."""
    return program_argv(clients, name)


def get_engine(name: str) -> ContainerEngine:
    """Return the engine. Raises RequestError for a name that is unknown, or that fails to load."""
    found: ContainerEngine = ENGINES.get(name)
    return found


def default_engine(usable: Collection[str]) -> str:
    """Return the first engine of the registry that is usable; the last of the suite's own if none is."""
    # With none on this machine one is still needed for its guests, whose image has them all; the last needs no daemon.
    own = [name for name in ENGINES.own if not get_engine(name).is_cluster]
    return next((name for name in ENGINES if name in usable and not get_engine(name).is_cluster), own[-1])
