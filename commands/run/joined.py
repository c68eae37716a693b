"""The instances of a joined job: in a lab on this machine, on machines, or as pods on nodes of a cluster."""

import os
from collections.abc import Callable

from provisioning.lab.nat import rules_for
from provisioning.machines.base import get_provider
from provisioning.nodes import local_node
from provisioning.targets import Choices
from suite.errors import RequestError, option
from suite.job.datasets import SYNTHETIC
from suite.job.distributed import DistributedJob, MachineSpec, check_memory, cpus_are_shared
from suite.job.envelope import Envelope, format_cpu_list
from suite.job.lab import LabSpec, parse_lab
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from suite.targets import VMS

COMM_TIMEOUT_S, EMULATED_COMM_TIMEOUT_S = 60, 600


def lab_job(
    request: RunRequest, scenario: PlannedScenario, choices: Choices, targets: tuple[str, ...]
) -> DistributedJob:
    """Return the job's instances on the nodes of a lab. Raises RequestError for a lab that cannot be."""
    if os.geteuid():
        raise RequestError("a lab network needs root: it makes network namespaces", remedy="run bench as root")
    asked, count = request.joining, scenario.instances(request)
    lab = parse_lab(asked.lab) if asked.lab else LabSpec(nodes=max(2, count), rate="1gbit")
    if lab.nodes < count:
        raise RequestError(
            f"{option('lab')} {lab}: {needs(request, scenario, 'node')}",
            remedy=f"write nodes={count}, or ask for fewer",
        )
    if VMS.intersection(targets):
        get_provider(choices.provider).check_lab()
    if "container" in targets:
        choices.container_engine.check_network(asked.network, in_lab=True)
        if asked.network == "bridge":
            with local_node((), None) as node:
                rules_for(node)
    return joined_job(request, scenario, targets, choices.accelerator, network=asked.network, lab=lab)


def joined_job(
    request: RunRequest, scenario: PlannedScenario, targets: tuple[str, ...], accelerator: str, **place: object
) -> DistributedJob:
    """Return the job of the request at its ``place``: fields of ``DistributedJob``, the network and where it stands."""
    workers, servers = scenario.ranks(request)
    # If CPUs are emulated, a step takes minutes.
    emulated = accelerator == "tcg" and VMS.intersection(targets)
    usual_s = EMULATED_COMM_TIMEOUT_S if emulated else COMM_TIMEOUT_S
    asked = {
        "strategy": scenario.strategy(request),
        "workers": workers,
        "servers": servers,
        "comm_timeout_s": request.joining.comm_timeout or usual_s,
    }
    return DistributedJob.model_validate({**asked, **place})


def needs(request: RunRequest, scenario: PlannedScenario, place: str) -> str:
    """Return the words for a refusal: ``3 instances (1 servers, 2 workers) need a node each``."""
    workers, servers = scenario.ranks(request)
    return f"{workers + servers} instances ({servers} servers, {workers} workers) need a {place} each"


def check_instances(distributed: DistributedJob, envelope: Envelope, note: Callable[[str], None]) -> None:
    """Raise RequestError when an instance has too little memory. Each machine gives the envelope whole."""
    count = len(distributed.roles)
    check_memory(envelope, 1 if distributed.machines else count)
    if not distributed.machines and cpus_are_shared(envelope, count):
        note(f"{count} instances share {len(envelope.cpus)} CPUs, on every target alike")


def pod_job(
    request: RunRequest,
    scenario: PlannedScenario,
    choices: Choices,
    targets: tuple[str, ...],
    envelope: Envelope,
    note: Callable[[str], None],
) -> tuple[DistributedJob, Envelope]:
    """Return the job, and the envelope of each of its pods, with the CPUs that the nodes give them.

    Raises RequestError for options that are about this machine, and where the nodes cannot have the pods.
    """
    _refuse_this_machine(request, targets)
    count, asked = scenario.instances(request), choices.engine_options.get("node", "")
    nodes = list(filter(None, asked.split(",")))
    if len(set(nodes)) != count or len(nodes) != count:
        raise RequestError(
            f"{option('node')} {asked}: {needs(request, scenario, 'node')}",
            remedy=f"name {count} different ones, with commas between them",
        )
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
    network, interface = ("host", "the node's") if request.joining.network == "host" else ("pod", "eth0")
    machines = tuple(
        MachineSpec(name=node, address=node, interface=interface, cpus=cpus)
        for node, cpus in zip(nodes, given, strict=True)
    )
    job = joined_job(request, scenario, targets, choices.accelerator, network=network, machines=machines)
    return job, envelope


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
    if request.data.data not in (None, SYNTHETIC):
        raise RequestError(
            f"{option('data')} {request.data.data}: the nodes of a cluster have no data set of this machine",
            remedy="leave it out",
        )
