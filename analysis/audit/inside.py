"""The inside of a target held against its job: the engine, virtual machine, machine and network that the job names."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.audit.findings import Finding, Kind
from analysis.load.records import Facts
from suite.job.ablations import known_properties
from suite.job.job import Job
from suite.job.properties import SHARED_NETWORK, Properties
from suite.targets import CONTAINERS, VMS, OwnMachine

INSIDE = Kind("inside")
_HOST = "host"
_UNNAMED = "unnamed"
"""A hypervisor that shows as a flag of the CPU alone; see ``worker.environment``."""
Inside = dict[str, Any]
"""The facts of the host, the target, a rank or an aggressor."""


def inside(trials: pd.DataFrame) -> Iterator[Finding]:
    """Yield the records of which an instance was not in what their jobs and ablations have."""
    arms = trials[["target", "ablation"]].astype(object).where(trials[["target", "ablation"]].notna(), None)
    problems: dict[tuple[object, ...], tuple[str, ...]] = {}
    for path, facts, job, *arm in zip(
        trials["path"], trials["facts"], trials["job"], arms["target"], arms["ablation"], strict=True
    ):
        key = (facts, job, *arm)
        if key not in problems:
            problems[key] = tuple(_problems(facts, job.job, *arm))
        for problem in problems[key]:
            yield INSIDE.at(path, problem)


def _problems(recorded: Facts, job: Job, target: str, ablation: str | None) -> Iterator[str]:
    properties = known_properties(ablation)
    if properties is None:
        return
    by_place = _facts_by_place(recorded)
    machine = job.machine_of(target)
    for owner, facts in by_place.items():
        if owner == _HOST:
            continue
        for problem in (
            *_engine(facts, job, target, properties),
            *(_runtime(facts, job, properties) if target in CONTAINERS else ()),
            *(_listed(facts, machine) if machine else _machine(facts, job, owner)),
            *(_virtual(facts, job) if target in VMS and not machine else ()),
            *(_real(facts, by_place.get(_HOST, {})) if target not in VMS else ()),
        ):
            yield f"{owner}: {problem}" if owner else problem


def _facts_by_place(recorded: Facts) -> dict[str, Inside]:
    by_place: dict[str, Inside] = {"": {}}  # an inside of which nothing is known is one, too
    for path, value in recorded.by_path.items():
        owner, _, name = path.rpartition("/")
        if name in _COMPARED:
            by_place.setdefault(owner, {})[name] = value
    return by_place


_COMPARED = (
    *("container_engine.name", "container_engine.network", "container_engine.runtime", "container_engine.kernel"),
    *("container_engine.platform", "accelerator", "hypervisor", "machine", "pod.node"),
)


def _engine(facts: Inside, job: Job, target: str, properties: Properties) -> Iterator[str]:
    engine = facts.get("container_engine.name")
    network = facts.get("container_engine.network")
    planned = (properties.engine or job.layers.engine) if target in CONTAINERS else None
    if engine != planned and (planned or target not in CONTAINERS):
        yield f"it was in {engine or 'no container'}, and its job has {planned or 'no container'}"
    elif engine and not job.of_pods:
        yield from _network(network, job, properties)
    if "pod.node" in facts and not job.of_pods:
        yield f"it was a pod on {facts['pod.node']}, and its job has no cluster"


def _runtime(facts: Inside, job: Job, properties: Properties) -> Iterator[str]:
    usual = "the usual one"
    runtime = facts.get("container_engine.runtime")
    kernel = facts.get("container_engine.kernel")
    due = properties.oci_runtime or (None if properties.engine else job.layers.oci_runtime)
    if runtime != due:
        yield f"its OCI runtime was {runtime or usual}, and that of its job is {due or usual}"
    if kernel and not (due or job.layers.runtime_class or "container_engine.platform" in facts):
        yield f"its kernel was that of a {kernel}, and its job names no runtime"


def _network(network: object, job: Job, properties: Properties) -> Iterator[str]:
    due = "host"
    if not properties.host_network:
        due = job.distributed.network if job.distributed else "none"
    if (network, due) == (SHARED_NETWORK, "none"):
        return
    # Bridges and overlays are made of networks that engines name as they like.
    kinds = ("host",) if due != "none" else ("host", "none")
    if any((network == kind) != (due == kind) for kind in kinds):
        yield f"its network was {network}, and that of its job is {due}"


def _listed(facts: Inside, machine: OwnMachine) -> Iterator[str]:
    name = facts.get("machine")
    if name != machine.name:
        yield f"it was on {name or 'this machine'}, and its target is listed on {machine.name}"
    contradiction = machine.contradiction(hypervisor="hypervisor" in facts)
    if contradiction:
        yield contradiction


def _machine(facts: Inside, job: Job, owner: str) -> Iterator[str]:
    machine = facts.get("machine")
    if machine is None or job.of_pods:
        return  # the machine of an inventory that is a cluster's node is named beside the ratio
    planned = []
    if job.distributed:
        planned = [entry.name for entry in job.distributed.machines]
    rank = owner.removeprefix("rank ")
    if machine not in planned or (rank.isdigit() and planned[int(rank)] != machine):
        yield f"it was on the machine {machine}, and its job was not to be there"


def _virtual(facts: Inside, job: Job) -> Iterator[str]:
    accelerator = facts.get("accelerator")
    planned = job.layers.accelerator
    if job.of_pods and "pod.node" in facts:
        return  # a node that is a virtual machine attests it otherwise
    if accelerator in (None, "none") or (planned and accelerator != planned):
        yield f"its virtual machine ran under {accelerator}, and that of its job under {planned}"
    if "hypervisor" not in facts:
        yield "no hypervisor is seen inside of its virtual machine"


def _real(facts: Inside, host: Inside) -> Iterator[str]:
    if facts.get("accelerator", "none") != "none":
        yield f"it was in a virtual machine under {facts['accelerator']}, and its target has none"
    if facts.keys() & {"machine", "pod.node", "container_engine.kernel"}:
        return
    seen_inside = facts.get("hypervisor")
    outside = host.get("hypervisor")
    if seen_inside != outside and not (outside and seen_inside == _UNNAMED):
        yield f"it saw the hypervisor {seen_inside or 'of nobody'}, and its host {outside or 'has none'}"
