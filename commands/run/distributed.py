"""The cluster of a distributed run, as its options ask for it: on machines of an inventory, or in a lab on this one."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from suite.errors import RequestError
from suite.job.distributed import Cluster, check_memory, cpus_are_shared
from suite.job.envelope import Envelope
from suite.job.lab import LabSpec, parse_lab
from suite.plan import VMS

if TYPE_CHECKING:
    from commands.run.inventory import Fleet
    from provisioning.targets import Choices

Options = dict[str, Any]
Note = Callable[[str], None]
LEAST_INSTANCE_BYTES = 640 << 20
"""A worker with torch in it takes some 450 MiB, and a guest's kernel has its share."""
COMM_TIMEOUT_S, EMULATED_COMM_TIMEOUT_S = 60, 600


def fleet_in(options: Options) -> "Fleet | None":
    """The machines of the run, when it has an inventory: ``ready`` has put them there."""
    return options.get("fleet")


def cluster_of(options: Options, choices: "Choices", targets: tuple[str, ...]) -> Cluster | None:
    """The cluster of a distributed run. Raises RequestError for one that cannot be."""
    given = [name for name in ("workers", "servers", "lab", "comm_timeout") if options[name] is not None]
    if options["scenario"] != "distributed":
        if given:
            words = {"servers": "ps", "comm_timeout": "comm-timeout"}
            raise RequestError(
                f"--{words.get(given[0], given[0])} is about several instances", remedy="use --scenario distributed"
            )
        return None
    workers, servers = ranks_of(options)
    if fleet := fleet_in(options):
        return fleet.cluster(options, workers, servers)
    return _in_a_lab(options, choices, targets, workers, servers)


def _in_a_lab(options: Options, choices: "Choices", targets: tuple[str, ...], workers: int, servers: int) -> Cluster:
    if os.geteuid():
        raise RequestError("a lab network needs root: it makes network namespaces", remedy="run bench as root")
    lab = parse_lab(options["lab"]) if options["lab"] else LabSpec(nodes=max(2, workers + servers), rate="1gbit")
    if lab.nodes < workers + servers:
        raise RequestError(
            f"--lab {lab}: {workers + servers} instances ({servers} servers, {workers} workers) need a node each",
            remedy=f"write nodes={workers + servers}, or ask for fewer",
        )
    if "container" in targets:
        _check_network(options["network"], choices.engine)
    return Cluster(
        strategy=options["strategy"],
        workers=workers,
        servers=servers,
        network=options["network"],
        lab=lab,
        comm_timeout_s=comm_timeout_s(options, targets, choices.accelerator),
    )


def _check_network(network: str, engine: str) -> None:
    """Raises RequestError for a network that containers of the engine cannot have in a lab on this machine."""
    from provisioning.engines.base import get_engine
    from provisioning.lab.nat import rules_for
    from provisioning.nodes import local_node

    if network == "host":
        get_engine(engine).host_network("/run/netns/lab")  # refused for docker, whose daemon lives elsewhere
    if network == "bridge":
        with local_node((), None) as node:
            rules_for(node)


def comm_timeout_s(options: Options, targets: tuple[str, ...], accelerator: str) -> int:
    """The user's, or what peers may need: where CPUs are emulated a step takes minutes."""
    emulated = accelerator == "tcg" and VMS.intersection(targets)
    return options["comm_timeout"] or (EMULATED_COMM_TIMEOUT_S if emulated else COMM_TIMEOUT_S)


def ranks_of(options: Options) -> tuple[int, int]:
    """Workers and servers."""
    reduces = options["strategy"] == "all-reduce"
    if reduces and options["servers"]:
        raise RequestError("--ps with --strategy all-reduce, which has no server", remedy="leave --ps out")
    return options["workers"] or 2, 0 if reduces else options["servers"] or 1


def check_instances(cluster: Cluster, envelope: Envelope, note: Note) -> None:
    """Raises RequestError when an instance has too little memory; each machine gives the envelope whole."""
    count = len(cluster.roles)
    check_memory(envelope, 1 if cluster.machines else count, LEAST_INSTANCE_BYTES)
    if not cluster.machines and cpus_are_shared(envelope, count):
        note(f"{count} instances share {len(envelope.cpus)} CPUs, on every target alike")
