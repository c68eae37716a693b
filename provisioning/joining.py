"""Join the instances of a job by a network, and check that each reaches the others."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from provisioning.lab import nat as translated
from provisioning.lab import overlay as vxlan
from provisioning.lab.connectivity import End, connectivity
from provisioning.lab.containers import Member
from provisioning.lab.lab import DEVICE
from provisioning.lab.nat import nat
from provisioning.lab.overlay import overlay
from provisioning.layers.container import ContainerLayer
from provisioning.sites.base import RunInputs
from suite.interfaces import Instance, Layer, Note
from suite.job.distributed import DistributedJob, check_memory, cpus_are_shared
from suite.job.envelope import Envelope
from suite.measurable import EMULATED_CPU
from suite.records.record import Link
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from suite.targets import VMS

COMM_TIMEOUT_S = 60
EMULATED_COMM_TIMEOUT_S = 600
BETWEEN_NODES = {"overlay": overlay, "bridge": nat}
"""The functions that make the bridges that containers are plugged into."""
BRIDGES = {"overlay": vxlan.BRIDGE, "bridge": translated.BRIDGE}
RATE_SAMPLE_S = 0.3
UNKNOWN_RATE_BITS_PER_S = 2 * 10**9
"""The assumed rate of links that nobody has limited: a sample takes long enough on 10 Gbit/s, and not on 1 Gbit/s."""
RATE_WITHIN_S = 30


def joined_fields(inputs: RunInputs, targets: Sequence[str], accelerator: str, **place: object) -> DistributedJob:
    """Return the job of the request at its ``place``: fields of ``DistributedJob``, the network and where it stands."""
    request = inputs.request
    scenario = inputs.scenario
    workers, servers = scenario.ranks(request)
    usual_s = COMM_TIMEOUT_S
    if accelerator == "tcg" and VMS.intersection(targets):
        # If CPUs are emulated, a step takes minutes.
        usual_s = EMULATED_COMM_TIMEOUT_S
    fields = {
        "strategy": scenario.strategy(request),
        "workers": workers,
        "servers": servers,
        "comm_timeout_s": request.joining.comm_timeout or usual_s,
        **place,
    }
    return DistributedJob.model_validate(fields)


def needs(request: RunRequest, scenario: PlannedScenario, place: str) -> str:
    """Return the words for a refusal: ``3 instances (1 servers, 2 workers) need a node each``."""
    workers, servers = scenario.ranks(request)
    return f"{workers + servers} instances ({servers} servers, {workers} workers) need a {place} each"


def check_instances(distributed: DistributedJob, envelope: Envelope, note: Note) -> None:
    """Raise RequestError when an instance has too little memory. Each machine gives the envelope whole."""
    count = len(distributed.roles)
    if distributed.machines:
        check_memory(envelope, 1)
    else:
        check_memory(envelope, count, fewer="workers" if distributed.strategy else "")
    if not distributed.machines and cpus_are_shared(envelope, count):
        note(f"{count} instances share {len(envelope.cpus)} CPUs, on every target alike")


def open_containers(
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
    opened = []
    if job.network == "host":
        for layer, lower, namespace in zip(containers, places, namespaces, strict=False):
            local_namespace = namespace if lower.node.local else None
            in_network = replace(layer, network=layer.engine.host_network(local_namespace))
            node = stack.enter_context(in_network.opened(lower.node))
            opened.append(replace(lower, node=node))
        return tuple(opened)
    members = []
    for number, lower in enumerate(places, start=1):
        members.append(Member(number, lower.node, str(lower.address), str(lower.interface)))
    bridges = stack.enter_context(BETWEEN_NODES[job.network](members))
    for layer, lower, bridge in zip(containers, places, bridges, strict=True):
        plugged = replace(layer, plug=bridge)
        node = stack.enter_context(plugged.opened(lower.node))
        container = replace(
            lower,
            node=node,
            address=bridge.address,
            interface=DEVICE,
            node_address=lower.address,
            port=bridge.published[0] if bridge.published else None,
        )
        opened.append(container)
    return tuple(opened)


def linked(instances: Sequence[Instance], job: DistributedJob) -> tuple[Instance, ...]:
    """Return every instance with its links to the others. Raises MeasurementError if one does not reach another."""
    ends = [end_of(f"rank {rank}", instance) for rank, instance in enumerate(instances)]
    limit_bits_per_s = job.lab.rate_bits_per_s if job.lab else None
    rate_bits_per_s = limit_bits_per_s or UNKNOWN_RATE_BITS_PER_S
    emulated = any(EMULATED_CPU in instance.node.substitutes for instance in instances)
    most_share = 1.0
    if job.network == "overlay" and instances[0].node_address:
        most_share = vxlan.MOST_SHARE
    pairs = connectivity(
        ends,
        measure_s=0 if emulated else RATE_WITHIN_S,
        sample_bytes=int(rate_bits_per_s * RATE_SAMPLE_S / 8),
        link_bits_per_s=limit_bits_per_s,
        most_share=most_share,
    )
    links: list[list[Link]] = [[] for _ in ends]
    for pair in pairs:
        link = Link(
            rank=ends.index(pair.target),
            source_address=pair.source_address,
            connect_s=pair.connect_s,
            rate_bits_per_s=pair.rate_bits_per_s,
        )
        links[ends.index(pair.source)].append(link)
    linked_instances = []
    for instance, outgoing in zip(instances, links, strict=True):
        linked_instances.append(replace(instance, links=tuple(outgoing)))
    return tuple(linked_instances)


def end_of(name: str, instance: Instance) -> End:
    """Return the end, named so that messages name the machine and the interface."""
    name = f"{name} ({instance.node.name}, {instance.interface})"
    return End(name, instance.node, str(instance.address), port=instance.port or 0)
