"""Open the instances of a distributed job, joined as the target joins them.

Each is in a node of a lab network, on a machine of an inventory, or in a pod on a node of a cluster.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from provisioning.images.image import Image
from provisioning.isa import CPUINFO, reports_hypervisor
from provisioning.lab import nat as translated
from provisioning.lab import overlay as vxlan
from provisioning.lab.connectivity import End, await_reached, connectivity, free_port, interface_of, reach
from provisioning.lab.containers import ContainerBridge, Member
from provisioning.lab.lab import LabNode, open_lab
from provisioning.lab.nat import nat
from provisioning.lab.overlay import overlay
from provisioning.lab.tap import join, tap
from provisioning.layers.container import ContainerLayer, Plug
from provisioning.layers.vm import VmLayer
from provisioning.nodes import local_node
from provisioning.remote.content import directory_of, tree_of, volume_on
from provisioning.remote.machine import machine
from provisioning.remote.network import forwarded, joined, routed
from provisioning.volumes import disk_under
from suite.errors import MeasurementError, option
from suite.interfaces import Instance, Layer, Node
from suite.inventory import Inventory, InventoryNode
from suite.job.datasets import Dataset
from suite.job.distributed import DistributedJob, InstancePlan
from suite.records.record import Link

INTERFACE = "eth0"
"""The interface of a container that is plugged into a bridge."""
BETWEEN_NODES = {"overlay": overlay, "bridge": nat}
"""The functions that make the bridges that containers are plugged into."""
BRIDGES = {"overlay": vxlan.BRIDGE, "bridge": translated.BRIDGE}
RATE_SAMPLE_S = 0.3
UNKNOWN_RATE_BITS_PER_S = 2 * 10**9
"""The assumed rate of links that nobody has limited: a sample takes long enough on 10 Gbit/s, and not on 1 Gbit/s."""
RATE_WITHIN_S = 30


@contextmanager
def open_in_lab(
    job: DistributedJob,
    planned: Sequence[InstancePlan],
    stacks: Sequence[Sequence[Layer]],
    image: Image,
    data: str | None,
) -> Iterator[tuple[Instance, ...]]:
    """Open one instance for each of ``planned``, by rank, in a lab.

    ``stacks`` holds the layers of each, from the machine upwards. Raises MeasurementError of kind ``network`` if one
    instance does not reach another.
    """
    if job.lab is None:
        raise MeasurementError(
            "this job was planned for machines", kind="plan", remedy=f"give its {option('inventory')}"
        )
    with ExitStack() as stack:
        lab = stack.enter_context(open_lab(job.lab))
        places = []
        for number, (plan, layers) in enumerate(zip(planned, stacks, strict=True)):
            node = stack.enter_context(local_node(plan.envelope.cpus, str(image.tree), data, image.python))
            places.append(_lower(stack, node, lab.nodes[number], layers))
        instances = _upper(stack, job, places, stacks, [node.namespace for node in lab.nodes])
        yield _linked(instances, job, tunnelled=_tunnelled(job, stacks))


@contextmanager
def open_as_pods(
    job: DistributedJob, planned: Sequence[InstancePlan], stacks: Sequence[Sequence[Layer]], tree: str
) -> Iterator[tuple[Instance, ...]]:
    """Open a pod for each of ``planned``, by rank, in the network of its cluster or of its node.

    Raises MeasurementError of kind ``network`` if one does not reach another.
    """
    with ExitStack() as stack:
        instances = []
        for plan, (layer,) in zip(planned, stacks, strict=True):
            if not isinstance(layer, ContainerLayer):
                raise MeasurementError("this job was planned for pods", kind="plan")
            network = layer.engine.host_network(None) if job.network == "host" else None
            machine = stack.enter_context(local_node(plan.envelope.cpus, tree, None))
            node = stack.enter_context(replace(layer, network=network).opened(machine))
            address = layer.engine.address(node)
            instances.append(Instance(node, address, interface_of(node, address)))
        linked = _linked(instances, job, tunnelled=False)
        server = stacks[0][0]
        if isinstance(server, ContainerLayer) and (way := server.properties.service):
            linked = _behind_service(stack, server, linked, way)
        yield linked


def _behind_service(
    stack: ExitStack, layer: ContainerLayer, instances: Sequence[Instance], way: str
) -> tuple[Instance, ...]:
    """Put a service before the first instance, and wait until all others reach it by that."""
    server, *clients = instances
    port = free_port(server.node, str(server.address))
    address, at = stack.enter_context(layer.engine.served(server.node, port, way))
    end = replace(_end("server", server), port=port)
    await_reached([_end("client", client) for client in clients], end, f"{address}:{at}")
    return (replace(server, port=port, service=(address, at)), *clients)


@contextmanager
def open_on_machines(
    job: DistributedJob,
    inventory: Inventory,
    stacks: Sequence[Sequence[Layer]],
    image: Image,
    dataset: Dataset | None,
) -> Iterator[tuple[Instance, ...]]:
    """Open one instance on each machine of an inventory; the machines hold the image and the data set.

    Whether they reach each other is checked before anything is made on them, so that a message names the machines and
    not containers.
    """
    with ExitStack() as stack:
        machines = [
            replace(
                stack.enter_context(on_machine(planned, spec.cpus, image, dataset)),
                address=spec.address,
                interface=spec.interface,
            )
            for planned, spec in zip(inventory.nodes, job.machines, strict=True)
        ]
        _check_ways(machines)
        first = [
            _with_data(layers[0], machine.node, planned, dataset)
            for layers, machine, planned in zip(stacks, machines, inventory.nodes, strict=True)
        ]
        places = _on_machines(stack, machines, first)
        if job.network in BRIDGES and isinstance(stacks[0][0], ContainerLayer):
            for machine in machines:
                stack.enter_context(forwarded(machine.node, [BRIDGES[job.network]]))
        instances = _upper(stack, job, places, stacks, [None] * len(places))
        port = instances[0].port or free_port(instances[0].node, str(instances[0].address))
        master = replace(instances[0], port=port)
        yield _linked((master, *instances[1:]), job, tunnelled=_tunnelled(job, stacks))


@contextmanager
def on_machine(
    planned: InventoryNode, cpus: tuple[int, ...], image: Image, dataset: Dataset | None
) -> Iterator[Instance]:
    """Open a machine of an inventory, which holds the image and the data set, for a target with these CPUs."""
    with machine(planned, tree_of(planned, image)) as node:
        node.cpus = cpus
        node.data = directory_of(planned, dataset) if dataset else None
        disk = disk_under(node, tree_of(planned, image))
        node.facts = {**node.facts, "host_cpus": list(cpus), "machine_disk": disk}
        if planned.is_vm:
            node.facts["accelerator"] = None  # unknown of a machine that the suite has not booted
        elif planned.virtual and reports_hypervisor(node.run(["cat", str(CPUINFO)]).stdout):
            node.substitutes = ("machine:virtual",)
        yield Instance(node, clock_offset_s=node.agent.clock_offset_s())


def _with_data(layer: Layer, machine: Node, planned: InventoryNode, dataset: Dataset | None) -> Layer:
    """Return the layer with what it needs of the data: a VM gets a disk, all else reads the machine's directory."""
    if dataset and isinstance(layer, VmLayer):
        return replace(layer, spec=replace(layer.spec, volume=volume_on(machine, planned, dataset)))
    return layer


def _check_ways(machines: Sequence[Instance]) -> None:
    """Raise MeasurementError if a machine does not reach another, or does through another interface."""
    ends = [_end(machine.node.name, machine) for machine in machines]
    for pair in reach(ends):
        source = next(end for end in ends if end.name == pair.source)
        if pair.source_address != source.address:
            raise MeasurementError(
                f"{pair.source} reaches {pair.target} from {pair.source_address}, through another interface",
                kind="network",
                remedy="write the interface that leads there in the inventory: ip route get " + pair.address,
            )


def _on_machines(stack: ExitStack, machines: Sequence[Instance], first: Sequence[Layer]) -> Sequence[Instance]:
    """Return what containers are started on: the machines, or guests of them. Bare metal and VMs are then complete."""
    guests = [layer for layer in first if isinstance(layer, VmLayer)]
    if guests:
        taps = stack.enter_context(routed(machines))
        return [
            joined(machine, stack.enter_context(layer.plugged(tap).opened(machine.node)), tap)
            for machine, layer, tap in zip(machines, guests, taps, strict=True)
        ]
    if isinstance(first[0], ContainerLayer):
        return machines
    return [
        replace(machine, node=stack.enter_context(layer.opened(machine.node)))
        for machine, layer in zip(machines, first, strict=True)
    ]


def _lower(stack: ExitStack, machine: Node, lab_node: LabNode, layers: Sequence[Layer]) -> Instance:
    """Return what a container is started on: the lab node, or a guest in it. Bare metal and VMs are then complete."""
    first = layers[0]
    if isinstance(first, VmLayer):
        plugged = stack.enter_context(tap(lab_node, machine))
        guest = stack.enter_context(first.plugged(plugged).opened(lab_node.node(machine)))
        return Instance(guest, plugged.address, join(guest, plugged))
    node: Node = lab_node.node(machine)
    if not isinstance(first, ContainerLayer):
        node = stack.enter_context(first.opened(node))
    return Instance(node, lab_node.address, lab_node.device)


def _upper(
    stack: ExitStack,
    job: DistributedJob,
    places: Sequence[Instance],
    stacks: Sequence[Sequence[Layer]],
    namespaces: Sequence[str | None],
) -> tuple[Instance, ...]:
    """Open the containers of the targets that have them, on the network that the plan gives them."""
    containers = [layers[-1] for layers in stacks if isinstance(layers[-1], ContainerLayer)]
    if not containers:
        return tuple(places)
    if job.network == "host":
        opened = []
        for layer, lower, namespace in zip(containers, places, namespaces, strict=False):
            network = layer.engine.host_network(namespace if lower.node.local else None)
            node = stack.enter_context(replace(layer, network=network).opened(lower.node))
            opened.append(replace(lower, node=node))
        return tuple(opened)
    members = [
        Member(number, lower.node, str(lower.address), str(lower.interface))
        for number, lower in enumerate(places, start=1)
    ]
    bridges = stack.enter_context(BETWEEN_NODES[job.network](members))
    return tuple(
        _plugged(stack, layer, lower, bridge) for layer, lower, bridge in zip(containers, places, bridges, strict=True)
    )


def _plugged(stack: ExitStack, layer: ContainerLayer, lower: Instance, bridge: ContainerBridge) -> Instance:
    plug = Plug(bridge, bridge.address)
    node = stack.enter_context(replace(layer, plug=plug).opened(lower.node))
    return replace(
        lower,
        node=node,
        address=plug.address,
        interface=INTERFACE,
        node_address=lower.address,
        port=bridge.published[0] if bridge.published else None,
    )


def _tunnelled(job: DistributedJob, stacks: Sequence[Sequence[Layer]]) -> bool:
    return job.network == "overlay" and isinstance(stacks[0][-1], ContainerLayer)


def _linked(instances: Sequence[Instance], job: DistributedJob, *, tunnelled: bool) -> tuple[Instance, ...]:
    """Return every instance with its links to the others. Raises MeasurementError if one does not reach another."""
    ends = [_end(f"rank {rank}", instance) for rank, instance in enumerate(instances)]
    link = job.lab.rate_bits_per_s if job.lab else None
    emulated = any("accelerator:tcg" in instance.node.substitutes for instance in instances)
    pairs = connectivity(
        ends,
        measure_s=0 if emulated else RATE_WITHIN_S,
        sample_bytes=int((link or UNKNOWN_RATE_BITS_PER_S) * RATE_SAMPLE_S / 8),
        link_bits_per_s=link,
        most_share=vxlan.MOST_SHARE if tunnelled else 1.0,
    )
    ranks = {end.name: rank for rank, end in enumerate(ends)}
    return tuple(
        replace(
            instance,
            links=tuple(
                Link(rank=ranks[pair.target], **pair.model_dump(exclude={"source", "target", "address"}))
                for pair in pairs
                if pair.source == end.name
            ),
        )
        for instance, end in zip(instances, ends, strict=True)
    )


def _end(name: str, instance: Instance) -> End:
    """Return the end, named so that messages name the machine and the interface."""
    name = f"{name} ({instance.node.name}, {instance.interface})"
    return End(name, instance.node, str(instance.address), port=instance.port or 0)
