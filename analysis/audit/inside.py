"""The inside of a target held against its job: the engine, virtual machine, machine and network that the job names."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pandas as pd

from analysis.audit.findings import AGAIN, Finding, Kind
from analysis.load.records import Text
from suite.job.ablations import known_properties
from suite.job.job import Job
from suite.job.properties import Properties
from suite.targets import CONTAINERS, VMS

INSIDE = Kind("inside", "refused", AGAIN)
_HOST, _POD = "host", "kubernetes"
_UNNAMED = "unnamed"
"""A hypervisor that shows as a flag of the CPU alone; see ``worker.environment``."""
Facts = Mapping[str, Any]


def inside(trials: pd.DataFrame, jobs: Mapping[Text, Job]) -> Iterator[Finding]:
    """Yield the records of which an instance was not in what their jobs and ablations say."""
    arms = trials[["target", "ablation"]].astype(object).where(trials[["target", "ablation"]].notna(), None)
    known: dict[tuple[object, ...], tuple[str, ...]] = {}
    for path, facts, job, *arm in zip(
        trials["path"], trials["facts"], trials["job"], arms["target"], arms["ablation"], strict=True
    ):
        key = (facts, job, *arm)
        if key not in known:
            known[key] = tuple(_problems(facts.text, jobs[job], *arm))
        yield from (INSIDE.at(path, problem) for problem in known[key])


def _problems(facts: str, job: Job, target: str, ablation: str | None) -> Iterator[str]:
    if (properties := known_properties(ablation)) is None:
        return
    places = _places(facts)
    for place, found in places.items():
        if place == _HOST:
            continue
        where = f"{place}: " if place else ""
        for problem in (
            *_engine(found, job, target, properties),
            *_machine(found, job, place),
            *(_virtual(found, job) if target in VMS else _real(found, places.get(_HOST, {}))),
        ):
            yield where + problem


@lru_cache(maxsize=1000)
def _places(text: str) -> Mapping[str, Facts]:
    """Return the facts of the host, the target, and each rank and aggressor, by the name of the place."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for line in text.splitlines():
        key, _, value = line.partition("=")
        place, _, name = key.rpartition("/")
        if name in _COMPARED:
            found[place][name] = json.loads(value)
    found[""]  # an inside of which nothing is known is one, too
    return dict(found)


_COMPARED = ("container_engine.name", "container_engine.network", "accelerator", "hypervisor", "machine", "pod.node")


def _engine(found: Facts, job: Job, target: str, properties: Properties) -> Iterator[str]:
    own, network = found.get("container_engine.name"), found.get("container_engine.network")
    planned = (properties.engine or job.layers.engine) if target in CONTAINERS else None
    if own != planned and (planned or target not in CONTAINERS):
        yield f"it was in {own or 'no container'}, and its job has {planned or 'no container'}"
    elif own and own != _POD:
        asked = job.distributed.network if job.distributed else "none"
        asked = "host" if properties.host_network else asked
        if (network == "host") != (asked == "host") or (asked == "none" and network != "none"):
            yield f"its network was {network}, and that of its job is {asked}"
    if "pod.node" in found and _POD not in (job.layers.engine, properties.engine):
        yield f"it was a pod on {found['pod.node']}, and its job has no cluster"


def _machine(found: Facts, job: Job, place: str) -> Iterator[str]:
    own = found.get("machine")
    if own is None or job.layers.engine == _POD:
        return  # the machine of an inventory that is a cluster's node is named beside the ratio
    machines = job.distributed.machines if job.distributed else ()
    rank = place.removeprefix("rank ")
    if own not in [one.name for one in machines] or (rank.isdigit() and machines[int(rank)].name != own):
        yield f"it was on the machine {own}, and its job was not to be there"


def _virtual(found: Facts, job: Job) -> Iterator[str]:
    own, planned = found.get("accelerator"), job.layers.accelerator
    if job.layers.engine == _POD and "pod.node" in found:
        return  # a node that is a virtual machine attests it otherwise
    if own in (None, "none") or (planned and own != planned):
        yield f"its virtual machine ran under {own}, and that of its job under {planned}"
    if "hypervisor" not in found:
        yield "no hypervisor is seen inside of its virtual machine"


def _real(found: Facts, host: Facts) -> Iterator[str]:
    if found.get("accelerator", "none") != "none":
        yield f"it was in a virtual machine under {found['accelerator']}, and its target has none"
    own, outside = found.get("hypervisor"), host.get("hypervisor")
    elsewhere = "machine" in found or "pod.node" in found
    if not elsewhere and own != outside and not (outside and own == _UNNAMED):
        yield f"it saw the hypervisor {own or 'of nobody'}, and its host {outside or 'has none'}"
