"""The virtual machine layer: a guest of any provider, on any node."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from provisioning import ledger
from provisioning.cgroup.limits import Opened, of_group
from provisioning.lab.tap import Tap
from provisioning.layers.userland import own_environment
from provisioning.machines import virtiofs
from provisioning.machines.base import GuestSpec, MachineProvider
from provisioning.nodes import WrappedNode
from provisioning.volumes import MOUNT
from suite.errors import RequestError
from suite.interfaces import Node, Resize, Shares


@dataclass(frozen=True)
class VmLayer:
    provider: MachineProvider
    spec: GuestSpec

    def plugged(self, tap: Tap) -> "VmLayer":
        return replace(self, spec=replace(self.spec, tap=tap))

    @contextmanager
    def opened(self, node: Node) -> Iterator[Node]:
        if node.userland is None:
            raise RequestError("no image on this node", remedy="run: bench image build")
        volume = self.spec.volume
        shared = self.spec.shared_directory
        elsewhere = ["disk:other-device"] if volume and not volume.same_device else []
        with ExitStack() as stack:
            groups = stack.enter_context(ExitStack())  # is left when the guest has ended
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
                resize=_resizing(groups, node, booted.threads),
                snapshot=booted.snapshot,
            )
            if shared:
                with node.opening.running("mount"):
                    virtiofs.mount(guest)
            yield guest


def _resizing(groups: ExitStack, node: Node, threads: Sequence[int]) -> Resize | None:
    """Return what gives the virtual CPUs a share of their time, in a group that is made when it is first asked for."""
    made: list[Resize] = []

    def resize(shares: Shares) -> None:
        if len(shares.cpus) != len(threads) or shares.memory_share < 1:
            raise RequestError("a guest keeps the CPUs and the memory that it was booted with")
        if not made:
            name = groups.enter_context(ledger.holding("cgroup", ledger.fresh("virtbench")))
            node.run(["cgcreate", "-g", f"cpu:/{name}"])
            node.run(["cgclassify", "-g", f"cpu:/{name}", *map(str, threads)])
            group = of_group(node, name, Opened(len(threads), None), cpuset=False)
            made.append(group)
        made[0](shares)

    if node.local and threads:
        return resize
    return None
