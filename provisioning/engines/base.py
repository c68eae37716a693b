"""The protocol of container engines, and the specification of a container.

The container runs only a sleeper: commands come by the engine's ``exec``, so that an open container is a node.
"""
# ruff: noqa: ARG002 (defaults need few of the arguments)

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, cast

from provisioning.cgroup.limits import BlockDevice
from provisioning.engines import clients
from provisioning.gpus import NO_EDITS, Edits
from provisioning.images.image import Image
from provisioning.paths import state
from provisioning.processes import program_argv, run_apart
from suite.errors import BenchError, CommandError, RequestError, option
from suite.interfaces import COMMAND_WITHIN_S, Node, Note
from suite.job.envelope import most_processes, parse_cpu_list, tmpfs_bytes
from suite.job.properties import DiskLimit, Properties
from suite.registries import ENGINES
from suite.request.option import OptionGroup

SLEEPER = ("/opt/virtbench/guest/sleeper",)
BOUND = ("/usr", "/opt")
"""The directories of the tree from which a job reads programs and libraries."""
TMPFS = ("/tmp", "/run", "/var/tmp")  # noqa: S108 (inside the container)
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class ContainerSpec:
    """A container to start: no capabilities, no new privileges, a read-only root, no network, the engine's seccomp.

    Ablations change the last fields, one at a time.
    """

    name: str
    image: str
    """The image's digest; in an engine's store its name is ``virtbench:DIGEST12``."""
    tree: str
    cpus: str
    """The CPUs in the notation of the kernel: ``0-1``. With ``by_count`` as many CPUs, any of them."""
    memory_bytes: int
    memory_limited: bool = True
    limits: tuple[tuple[str, int], ...] = ()
    """Hard limits of the node, ``("nofile", 20000)``: an engine's own defaults may exceed what the host may give."""
    edits: Edits = NO_EDITS
    """The devices and mounts that give it the GPUs."""
    gpus: int = 0
    """The GPUs of a pod, by their number: a device plugin of its node chooses which."""
    data: tuple[str, str, bool] | None = None
    """The data volume: its directory on the node, its place in the container, and whether it may be written."""
    scratch: tuple[str, str, bool] | None = None
    """The room to write to beside the data, as ``data``."""
    seccomp: bool = True
    network: str | None = None
    """The value that ``ContainerEngine.host_network`` returns; None for an empty network of its own."""
    layer: tuple[str, str, str] | None = None
    """The data to copy into a layer of the container's own, in place of ``data``: the directory on the node, the place
    in the container, and a directory on a disk for engines that keep no layers themselves."""
    bound_tree: bool = False
    """Whether the tree's programs and libraries are bound in place of what the engine's overlay shows of them."""
    by_count: bool = False
    by_affinity: bool = False
    """Whether commands stay on the CPUs by their affinity: the engine's user may set no control group's CPUs."""
    cpu_share: float = 1.0
    pod_requests: float = 1.0
    """The share of its limits that a pod requests."""
    limited_disks: tuple[BlockDevice, ...] = ()
    """The disks of the node to which ``disk_limits`` apply."""
    disk_limits: tuple[DiskLimit, ...] = ()

    @property
    def binds(self) -> list[tuple[str, str, bool]]:
        """Return the mounts of data and of the room to write: source, target, and whether it may be written."""
        return [bind for bind in (self.data, self.scratch) if bind]

    @property
    def cpu_count(self) -> int:
        return len(parse_cpu_list(self.cpus))

    @property
    def tmpfs_bytes(self) -> int:
        return tmpfs_bytes(self.memory_bytes)

    @property
    def most_processes(self) -> int:
        return most_processes(self.cpu_count)


def image_reference(digest: str) -> str:
    return f"virtbench:{digest[:12]}"


@dataclass(frozen=True)
class GuestStore:
    """A disk that holds the image in an engine's own store: loading it inside an emulated guest would take minutes."""

    file: str
    """The name of the disk beside the image's other packed files."""
    make: Callable[[Image, Note], object]
    """Makes the disk if it is missing. Raises RequestError or MeasurementError if it cannot."""


class ContainerEngine(Protocol):
    """One way to run a container on a node. Inherit from it to get its defaults.

    A new engine must have ``name``, ``rootfs`` and ``commands_are_children``, and implement ``version``, ``exec_argv``
    and ``removal``. All others have a default, which most engines keep.
    """

    name: str
    rootfs: str
    """How the tree becomes the container's root: ``overlay`` or ``directory``."""
    commands_are_children: bool
    """Whether a command in the container descends from the client that starts it, not from a shim or a daemon."""
    options: type[OptionGroup] | None = None
    """The options of a run that only this engine has; ``suite.registries.ENGINES`` names those of the suite's own."""
    site: str = ""
    """The site whose nodes alone start its containers; empty for an engine of any node."""
    by_default: bool = True
    """Whether it is taken if no engine is named and it is the first that works."""
    in_guests: bool = True
    """Whether the suite's image has it, for the containers in virtual machines."""
    network: str = "none"
    """The default network of a container: by default an empty namespace."""
    takes_gpus: bool = True
    guest_store: GuestStore | None = None
    """The disk that a guest needs in which the engine is to run; None if the image's tree is enough."""
    runtime: str | None = None
    """The OCI runtime that runs its containers in place of its usual one."""
    late_networks: str | None = None
    """Why a container cannot join a network that is made after its start; None if it can."""
    no_snapshot: str = "CRIU saves what descends from a container's first process, and the server is started next to it"
    """Why a server in its container cannot be saved and resumed."""
    says_gone: tuple[str, ...] = ()
    """Messages, in lower case, with which ``removal`` may fail for a container that is gone."""

    def version(self, node: Node) -> str:
        """Return the version of the engine, and of ``runtime``. In a guest of the suite's its daemon is started first.

        Raises BenchError, with a remedy, if it could not run a container on the node.
        """

    def exec_argv(self, spec: ContainerSpec) -> list[str]:
        """Return the words that start a command in the container; none where ``entered`` returns a node in it."""

    def removal(self, name: str) -> list[list[str]]:
        """Return the commands that kill the container and remove it; none where the ledger does."""

    def configured(self, given: Mapping[str, str]) -> "ContainerEngine":
        """Return the engine with the values of its options by name."""
        return self

    def run_by(self, runtime: str) -> Self:
        """Return the engine with another OCI runtime. Raises RequestError for one that has no choice of them."""
        remedy = f"use {option('engine')} docker or podman; pods have {option('runtime_class')}"
        raise RequestError(f"{self.name} takes no OCI runtime, such as {runtime}", remedy=remedy)

    def hindrance(self, properties: Properties) -> str | None:
        """Return why containers cannot have these properties; None if they can."""
        if properties.pod_requests < 1:
            return "pods alone have requests"
        return None

    def check_machine(self, node: Node) -> None:
        """Raise RequestError if the engine's containers run on another machine than this node."""
        return

    def answer(self, node: Node, argv: Sequence[str], remedy: str, denied: str = "") -> str:
        """Return what the engine's program prints. Raises BenchError if it does not work on the node.

        ``denied`` is the remedy where permission is missing, if it is another.
        """
        ended = node.run(argv, check=False, timeout_s=60.0)
        if ended.returncode:
            last = ended.complaint()
            if denied and "permission denied" in ended.stderr.lower():
                remedy = denied
            raise BenchError(f"{self.name} does not work on {node.name}: {last[:200]}", remedy=remedy)
        return (ended.stdout or ended.stderr).strip()

    def load(self, host: Node, digest: str, archive: Path) -> None:
        """Load the image, once, from the packed ``archive`` on this machine into the engine's store, if it has one."""
        return

    def check(self, node: Node, digest: str) -> None:
        """Raise MeasurementError of kind ``image`` if the engine has to load the image and has not."""
        return

    def layers_at(self, node: Node) -> str:
        """Return the directory, on the node, that holds the containers' own layers: by default one of the suite's."""
        return str(state("scratch"))

    def host_network(self, namespace: str | None) -> str:
        """Return the value of ``ContainerSpec.network`` that gives a container the network of its node.

        ``namespace`` is the path of a lab node's network namespace; None if the node is a whole machine. Raises
        RequestError if the engine cannot start a container in the network of a lab node, as ``check_network`` says.
        """
        self.check_network("host", in_lab=namespace is not None)
        return "host"

    def check_network(self, network: str, *, in_lab: bool) -> None:
        """Raise RequestError if containers cannot be joined by this network, in a lab or on machines."""
        if self.late_networks and (in_lab or network != "host"):
            remedy = f"use {option('engine')} podman or runc"
            raise RequestError(f"{option('network')} {network}: {self.name} {self.late_networks}", remedy=remedy)

    def platform(self, node: Node) -> str | None:
        """Return what answers the containers' system calls in place of the node's kernel; None if nothing does."""
        return None

    def pins_by_affinity(self, node: Node) -> bool:
        """Return whether the engine's user may not set the CPUs of control groups on the node."""
        return False

    def seccomp_sha256(self, node: Node, tree: str) -> str | None:
        """Return the digest of the seccomp profile's file; None for a profile inside the engine's program."""
        return None

    def begin(self, node: Node, spec: ContainerSpec) -> None:
        """Create and start the container with its sleeper.

        All of it counts as the container's opening, but for the time in which ``node.opening`` is paused. Nothing is
        started by an engine whose commands each start a container.
        """
        return

    def entered(self, node: Node, spec: ContainerSpec) -> Node:
        """Return the node on which the words of ``exec_argv`` run: for most engines the one below."""
        return node

    def main_pid(self, node: Node, name: str) -> int | None:
        """Return the process id, on the node, of the container's first process; None if it has none there."""
        return None

    def update_argv(self, name: str, cpus: str, quota_us: int, memory_bytes: int | None) -> list[str]:
        """Return the command that gives an open container these CPUs, this quota of a period (-1: none) and memory.

        Without ``memory_bytes`` it keeps its memory. Empty if the engine has no such command.
        """
        return []

    def remove(self, node: Node, name: str) -> None:
        """Kill and remove the container; harmless if it is not there."""
        self._remove(name, lambda argv: node.run(argv, check=False))

    def remove_local(self, name: str) -> None:
        """Kill and remove the container on this machine, without an open node: the ledger calls this."""
        self._remove(name, lambda argv: run_apart(argv, COMMAND_WITHIN_S))

    def names_here(self) -> list[str]:
        """Return the names of the containers of this engine on this machine, of whichever home; none if unknown."""
        return []

    def _remove(self, name: str, run: Callable[[list[str]], Any]) -> None:
        for argv in self.removal(name):
            ended = run(argv)
            message = ended.stderr.lower()
            gone = any(words in message for words in self.says_gone)
            if ended.returncode and not gone:
                raise CommandError(argv, ended.returncode, ended.stderr)


def digest_of(node: Node, path: str) -> str | None:
    """Return the digest of a file of the node; None if it cannot be read."""
    line = node.run(["sha256sum", "--", path], check=False).stdout
    return line.partition(" ")[0] or None


def is_root(node: Node) -> bool:
    return node.run(["id", "-u"]).stdout.strip() == "0"


def end_starting(name: str, program: str, mark: str, *, stays: bool = False) -> list[str]:
    """Return the command that ends clients which still start the container, on any node; see ``clients.end``."""
    words = [name, program.rpartition("/")[2], mark]
    if stays:
        words.append("stays")
    return program_argv(clients, *words)


def get_engine(name: str) -> ContainerEngine:
    """Return the engine. Raises RequestError for a name that is unknown, or that fails to load."""
    return cast("ContainerEngine", ENGINES.get(name))


def default_engine(usable: Collection[str]) -> str:
    """Return the first engine of the registry that is usable; the last of the suite's own if none is."""
    # With none on this machine one is still needed for its guests, whose image has them all; the last needs no daemon.
    local = [name for name in ENGINES.own if get_engine(name).by_default]
    candidates = (name for name in ENGINES if name in usable)
    preferred = (name for name in candidates if get_engine(name).by_default)
    return next(preferred, local[-1])
