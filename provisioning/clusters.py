"""Opening a cluster: an instance of the target in each node of a lab network, joined as the target joins them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from provisioning.lab.connectivity import End, connectivity
from provisioning.lab.containers import host_network
from provisioning.lab.lab import LabNode, open_lab
from provisioning.lab.overlay import Member, overlay
from provisioning.lab.tap import join, tap
from provisioning.layers.container import ContainerLayer, Plug
from provisioning.layers.vm import VmLayer
from provisioning.nodes import local_node
from suite.cluster import Cluster, InstancePlan
from suite.interfaces import Instance, Layer, Node

INTERFACE = "eth0"
"""In a container that is plugged into a bridge."""


@contextmanager
def open_cluster(
    cluster: Cluster, planned: Sequence[InstancePlan], stacks: Sequence[Sequence[Layer]], tree: str, data: str | None
) -> Iterator[tuple[Instance, ...]]:
    """One instance for each of ``planned``, by rank; ``stacks`` holds the layers of each, from the machine upwards.

    Raises MeasurementError of kind ``network`` when one of them does not reach another.
    """
    with ExitStack() as stack:
        lab = stack.enter_context(open_lab(cluster.lab))
        places = []
        for number, (plan, layers) in enumerate(zip(planned, stacks, strict=True)):
            machine = stack.enter_context(local_node(plan.envelope.cpus, tree, data))
            places.append(_lower(stack, machine, lab.nodes[number], layers))
        instances = _upper(stack, cluster, places, stacks, [node.namespace for node in lab.nodes])
        connectivity([End(f"rank {rank}", each.node, str(each.address)) for rank, each in enumerate(instances)])
        yield instances


def _lower(stack: ExitStack, machine: Node, lab_node: LabNode, layers: Sequence[Layer]) -> Instance:
    """What containers are started on: the node of the lab, or a guest in it. Bare metal and VMs are whole with that."""
    first = layers[0]
    if isinstance(first, VmLayer):
        plugged = stack.enter_context(tap(lab_node, machine))
        guest = stack.enter_context(replace(first, plugged=plugged).opened(lab_node.node(machine)))
        return Instance(guest, plugged.address, join(guest, plugged))
    node = lab_node.node(machine)
    if not isinstance(first, ContainerLayer):
        node = stack.enter_context(first.opened(node))  # type: ignore[assignment]
    return Instance(node, lab_node.address, lab_node.device)


def _upper(
    stack: ExitStack,
    cluster: Cluster,
    places: Sequence[Instance],
    stacks: Sequence[Sequence[Layer]],
    namespaces: Sequence[str],
) -> tuple[Instance, ...]:
    """The containers of those targets that have them, on the network that the plan gives them."""
    containers = [layers[-1] for layers in stacks if isinstance(layers[-1], ContainerLayer)]
    if not containers:
        return tuple(places)
    if cluster.network == "host":
        opened = []
        for layer, place, namespace in zip(containers, places, namespaces, strict=False):
            given = host_network(layer.engine.name, namespace if place.node.local else None)
            node = stack.enter_context(replace(layer, network=given).opened(place.node))
            opened.append(replace(place, node=node))
        return tuple(opened)
    members = [
        Member(number, place.node, str(place.address), str(place.interface))
        for number, place in enumerate(places, start=1)
    ]
    bridges = stack.enter_context(overlay(members))
    opened = []
    for layer, place, bridge in zip(containers, places, bridges, strict=True):
        plug = Plug(bridge, bridge.address())
        node = stack.enter_context(replace(layer, plug=plug).opened(place.node))
        opened.append(Instance(node, plug.address, INTERFACE))
    return tuple(opened)
