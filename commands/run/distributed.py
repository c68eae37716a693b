"""The distributed job that a request asks for, in a lab on this machine."""

import os
from collections.abc import Callable

from provisioning.lab.nat import rules_for
from provisioning.nodes import local_node
from provisioning.targets import Choices
from suite.errors import RequestError, option
from suite.job.distributed import DistributedJob, Strategy, check_memory, cpus_are_shared
from suite.job.envelope import Envelope
from suite.job.lab import LabSpec, parse_lab
from suite.job.serving import SERVE
from suite.request.request import RunRequest
from suite.targets import VMS

COMM_TIMEOUT_S, EMULATED_COMM_TIMEOUT_S = 60, 600


def lab_job(request: RunRequest, choices: Choices, targets: tuple[str, ...]) -> DistributedJob:
    """Return the job's instances on the nodes of a lab. Raises RequestError for a lab that cannot be."""
    if os.geteuid():
        raise RequestError("a lab network needs root: it makes network namespaces", remedy="run bench as root")
    asked = request.distributed
    workers, servers = ranks_of(request)
    lab = parse_lab(asked.lab) if asked.lab else LabSpec(nodes=max(2, workers + servers), rate="1gbit")
    if lab.nodes < workers + servers:
        raise RequestError(
            f"{option('lab')} {lab}: {needs(request, 'node')}",
            remedy=f"write nodes={workers + servers}, or ask for fewer",
        )
    if "container" in targets:
        if asked.network == "host":
            choices.container_engine.host_network("/run/netns/lab")  # refused for docker: its daemon lives elsewhere
        if asked.network == "bridge":
            with local_node((), None) as node:
                rules_for(node)
    return joined_job(request, targets, choices.accelerator, network=asked.network, lab=lab)


def joined_job(request: RunRequest, targets: tuple[str, ...], accelerator: str, **place: object) -> DistributedJob:
    """Return the job of the request at its ``place``: fields of ``DistributedJob``, the network and where it stands."""
    workers, servers = ranks_of(request)
    asked = {
        "strategy": strategy_of(request),
        "workers": workers,
        "servers": servers,
        "comm_timeout_s": comm_timeout_s(request, targets, accelerator),
    }
    return DistributedJob.model_validate({**asked, **place})


def comm_timeout_s(request: RunRequest, targets: tuple[str, ...], accelerator: str) -> int:
    """Return the seconds after which a peer is given up: where CPUs are emulated, a step takes minutes."""
    emulated = accelerator == "tcg" and VMS.intersection(targets)
    return request.distributed.comm_timeout or (EMULATED_COMM_TIMEOUT_S if emulated else COMM_TIMEOUT_S)


def strategy_of(request: RunRequest) -> Strategy | None:
    """Return how the workers train together; None where they are clients of a server."""
    return None if request.scenario == SERVE else request.distributed.strategy


def ranks_of(request: RunRequest) -> tuple[int, int]:
    """Return how many workers and servers there are. Raises RequestError for servers where the strategy has none."""
    asked = request.distributed
    if request.scenario == SERVE:
        return 1, 1
    reduces = asked.strategy == "all-reduce"
    if reduces and asked.ps:
        raise RequestError(
            f"{option('ps')} with {option('strategy')} all-reduce, which has no server",
            remedy=f"leave {option('ps')} out",
        )
    return asked.workers or 2, 0 if reduces else asked.ps or 1


def needs(request: RunRequest, place: str) -> str:
    """Return the words for a refusal: ``3 instances (1 servers, 2 workers) need a node each``."""
    workers, servers = ranks_of(request)
    return f"{workers + servers} instances ({servers} servers, {workers} workers) need a {place} each"


def check_instances(distributed: DistributedJob, envelope: Envelope, note: Callable[[str], None]) -> None:
    """Raise RequestError when an instance has too little memory. Each machine gives the envelope whole."""
    count = len(distributed.roles)
    check_memory(envelope, 1 if distributed.machines else count)
    if not distributed.machines and cpus_are_shared(envelope, count):
        note(f"{count} instances share {len(envelope.cpus)} CPUs, on every target alike")
