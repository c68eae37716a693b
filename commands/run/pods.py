"""The job whose instances are pods, each on a node of a cluster that the user names: ranks, or server and client."""

from collections.abc import Callable

from commands.run.distributed import joined_job, needs, ranks_of
from provisioning.targets import Choices
from suite.errors import RequestError, option
from suite.job.distributed import JOINED, DistributedJob, MachineSpec
from suite.job.envelope import Envelope, format_cpu_list
from suite.request.request import RunRequest


def are_pods(request: RunRequest, choices: Choices, targets: tuple[str, ...]) -> bool:
    """Return whether the instances of the request's job are pods that are joined by a network."""
    return request.scenario in JOINED and "container" in targets and choices.container_engine.is_cluster


def pod_job(
    request: RunRequest, choices: Choices, targets: tuple[str, ...], envelope: Envelope, note: Callable[[str], None]
) -> tuple[DistributedJob, Envelope]:
    """Return the job, and the envelope of each of its pods, with the CPUs that the nodes give them.

    Raises RequestError for options that are about this machine, and where the nodes cannot have the pods.
    """
    count = sum(ranks_of(request))
    nodes = [name for name in (request.targets.node or "").split(",") if name]
    if len(set(nodes)) != count or len(nodes) != count:
        raise RequestError(
            f"{option('node')} {request.targets.node or ''}: {needs(request, 'node')}",
            remedy=f"name {count} different ones, with commas between them",
        )
    _refuse_this_machine(request, targets)
    found = []
    for node, own in zip(nodes, choices.placed, strict=True):
        note(f"trying which CPUs a pod gets on {node}")
        found.append(own.container_engine.allotment(own.image, len(envelope.cpus), envelope.memory_bytes))
    given = [each.cpus for each in found if each and each.cpus]
    if len(given) < len(nodes):
        note(f"the nodes give no CPUs by number: every pod has a quota of {len(envelope.cpus)} CPUs on any")
        envelope = envelope.model_copy(update={"pinning": "quota"})
        given = [envelope.cpus] * len(nodes)
    else:
        for node, cpus in zip(nodes, given, strict=True):
            note(f"{node} gives the CPUs {format_cpu_list(cpus)}")
    network, interface = ("host", "the node's") if request.distributed.network == "host" else ("pod", "eth0")
    machines = tuple(
        MachineSpec(name=node, address=node, interface=interface, cpus=cpus)
        for node, cpus in zip(nodes, given, strict=True)
    )
    return joined_job(request, targets, choices.accelerator, network=network, machines=machines), envelope


def _refuse_this_machine(request: RunRequest, targets: tuple[str, ...]) -> None:
    if targets != ("container",):
        raise RequestError(
            "the pods of one job are on several nodes of a cluster, which no other target runs on: they are compared "
            f"with pods, such as those with {option('network')} host",
            remedy=f"use {option('target')} container alone",
        )
    given = request.given()
    for name in ("lab", "network"):
        if name in given and given[name] != "host":
            raise RequestError(
                f"{option(name)} {given[name]} is a network on this machine, and pods have the cluster's",
                remedy=f"leave it out, or give {option('network')} host",
            )
    if request.data.data not in (None, "synthetic"):
        raise RequestError(
            f"{option('data')} {request.data.data}: the nodes of a cluster have no data set of this machine",
            remedy="leave it out",
        )
