"""The virtual machine layer: a guest of any provider, on any node."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from provisioning.lab.tap import Tap
from provisioning.layers.userland import own_environment
from provisioning.machines import virtiofs
from provisioning.machines.base import GuestSpec, MachineProvider
from provisioning.nodes import WrappedNode
from provisioning.volumes import MOUNT
from suite.errors import RequestError
from suite.interfaces import Node


@dataclass(frozen=True)
class VmLayer:
    """A guest with the envelope's CPUs and memory."""

    provider: MachineProvider
    spec: GuestSpec

    def plugged(self, tap: Tap) -> "VmLayer":
        return replace(self, spec=replace(self.spec, tap=tap))

    @contextmanager
    def opened(self, node: Node) -> Iterator[Node]:
        if node.userland is None:
            raise RequestError("no image on this node", remedy="run: bench image build")
        volume, shared = self.spec.volume, self.spec.shared_directory
        elsewhere = ["disk:other-device"] if volume and not volume.same_device else []
        with ExitStack() as stack:
            with node.opening.running("boot"):
                booted = stack.enter_context(self.provider.booted(node, self.spec))
            guest = WrappedNode(
                parent=node,
                wrap=booted.wrap,
                name="vm" if node.local else f"{node.name}/vm",
                userland=booted.userland,
                cpus=tuple(range(len(self.spec.envelope.cpus))),
                facts=booted.facts,
                data=MOUNT if volume else None,
                backing=own_environment(node, self.spec.envelope.cpus) if shared else None,
                substitutes=(*booted.substitutes, *elsewhere),
            )
            if shared:
                with node.opening.running("mount"):
                    virtiofs.mount(guest)
            yield guest
