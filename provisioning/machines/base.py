"""The protocol of machine providers, and the specification of a guest."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from provisioning.images.image import Image
from provisioning.lab.tap import Tap
from provisioning.machines import accelerator
from provisioning.machines.accelerator import Accelerator
from provisioning.volumes import Volume
from suite.interfaces import Node, Note, Snapshot
from suite.job.envelope import Envelope
from suite.job.job import CpuCapability
from suite.job.properties import AS_IT_IS, Properties
from suite.registries import MACHINES

DEFAULT_PROVIDER = "qemu"


@dataclass(frozen=True)
class GuestSpec:
    """A guest to boot from the image, with the envelope's CPUs and memory."""

    image: Image
    accelerator: Accelerator
    envelope: Envelope
    store: str | None = None
    """The packed file of the image that becomes a disk with the store of a container engine in the guest."""
    volume: Volume | None = None
    """Its disk becomes one of the guest's; without a disk its directory is shared by virtiofs."""
    tap: Tap | None = None
    """The tap of the guest's second network card; the node must be in the namespace that has it."""
    properties: Properties = AS_IT_IS

    @property
    def shared_directory(self) -> Path | None:
        """The directory that the guest is given by virtiofs; None if there is none."""
        if self.volume and not self.volume.disk:
            return self.volume.directory
        return None


@dataclass(frozen=True)
class Guest:
    """A guest that is booted and takes commands."""

    wrap: Callable[[Sequence[str]], list[str]]
    """Returns the command that, run on the node below, runs the given one in the guest."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """The facts that the inside cannot see, such as the accelerator, as fields of ``records.Environment``."""
    substitutes: tuple[str, ...] = ()
    """The substitutes for what the node lacks, such as ``accelerator:tcg``."""
    userland: str = "/run/virtbench/rootfs"
    """The image's tree in the guest, for containers in it."""
    threads: tuple[int, ...] = ()
    """The threads of its virtual CPUs on the node below, where they are known."""
    snapshot: Snapshot | None = None
    """Saves the guest and loads it again; None if it cannot be saved."""


class MachineProvider(Protocol):
    name: str
    tools: Mapping[str, str]
    """The programs that it needs on the machine that runs guests, and the Debian packages that have them."""
    local_tools: Mapping[str, str]
    """The further programs that it needs on this machine, wherever the guests run."""
    no_snapshot: str = "it saves no guest"
    """Why a server in its guest cannot be saved and resumed; empty if it can."""
    most_cpus: int | None = None
    """The most virtual CPUs of a guest; None if there is no limit."""

    def version(self, node: Node) -> str:
        """Return the version of the hypervisor. Raises BenchError, with a remedy, if it cannot run on the node."""

    def check_machine(self, node: Node) -> None:  # noqa: ARG002 (some have a check)
        """Raise BenchError, with a remedy, unless the hypervisor makes the machine of a guest, without starting it."""
        return

    def choose_accelerator(self, requested: str) -> tuple[Accelerator, str]:
        """Return the accelerator of guests on this machine, and one line on why.

        ``requested`` is ``auto``, ``kvm`` or ``tcg``. Raises RequestError for one that cannot be had.
        """
        return accelerator.choose(requested)

    def choose_common_accelerator(self, nodes: Sequence[Node], requested: str, image: Image, note: Note) -> Accelerator:
        """Return one accelerator for guests on all of these machines. Raises RequestError as above."""
        return accelerator.choose_common(nodes, requested, image, note)

    def guest_capability(self, node: Node, accelerator: Accelerator, level: CpuCapability) -> CpuCapability:
        """Return the vector instructions of a guest on a machine whose own are ``level``, without booting one."""

    def hindrance(self, properties: Properties, image: Image) -> tuple[str, str] | None:  # noqa: ARG002 (some have)
        """Return why no guest of the image can have these properties on this machine, and the remedy; None if one can.

        Asked for ``virtiofs``, ``microvm`` and ``direct_io``, before anything is started.
        """
        return None

    def check_lab(self) -> None:
        """Raise RequestError if no guest of it can be on the nodes of a lab."""
        return

    def remove_local(self, name: str) -> None:  # noqa: ARG002 (some have)
        """Remove a machine that the ledger holds as ``machine``, without an open node: the ledger calls this."""
        return

    def booted(self, node: Node, spec: GuestSpec) -> AbstractContextManager[Guest]:
        """Boot the guest on the node and wait until it takes commands; at the end nothing of it is left.

        All of it counts as the guest's opening, but for the time in which ``node.opening`` is paused.
        Raises MeasurementError with the guest's console if it does not boot, or fails while it is in use.
        """


def get_provider(name: str) -> MachineProvider:
    """Return the provider. Raises RequestError for a name that is unknown, or that fails to load."""
    return cast("MachineProvider", MACHINES.get(name))
