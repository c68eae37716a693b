"""Why the properties of a target cannot be switched in a run, as an ablation or an injury switches them."""

from collections.abc import Iterator

from provisioning.cgroup import limits as cgroups
from provisioning.sites.base import Site
from provisioning.targets import Choices, is_limited
from suite.errors import BenchError, RequestError, option
from suite.interfaces import Node
from suite.job.ablations import properties_of, typed, written
from suite.job.properties import AS_IT_IS, DISK_LIMITS, Properties
from suite.request.traits import Traits


def refuse_ablation(name: str, site: Site, recipe: str, scenario: Traits) -> None:
    """Raise RequestError for an ablation that changes a property which cannot be switched in this run."""
    properties = properties_of(name)
    choices = site.choices
    _refuse_with_scenario(name, properties, site, scenario)
    hindrance = choices.provider_of(properties).hindrance(properties, choices.image)
    if hindrance:
        raise RequestError(f"{typed(name)}: {hindrance[0]}", remedy=hindrance[1])
    if properties == AS_IT_IS:
        remedy = f"write it as {option('ablate')} {written(name)}"
        raise RequestError(f"{typed(name)} changes nothing without a value", remedy=remedy)
    reason = next(hindrances(properties, site, recipe), None)
    if reason:
        remedy = f"leave out {typed(name)}, or change the other option"
        raise RequestError(f"{typed(name)}: {reason}", remedy=remedy)


def refuse_snapshots(site: Site) -> None:
    """Raise RequestError if a target starts no server from a snapshot, with the reason of each that does not."""
    targets: dict[str, list[str]] = {}
    for target in site.targets:
        reason = site.choices.no_snapshot_of(target)
        if reason:
            targets.setdefault(reason, []).append(target)
    if not targets:
        return
    reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in targets.items())
    cold, warm = (f"{option('cache')} {state}" for state in ("cold", "warm"))
    remedy = f"use {option('target')} vm, or measure how the command starts: once with {cold}, and once with {warm}"
    raise RequestError(f"{option('from_snapshot')} cannot be had ({reasons})", remedy=remedy)


def _refuse_with_scenario(name: str, properties: Properties, site: Site, scenario: Traits) -> None:
    if (properties.virtiofs or properties.data_in_layer) and not scenario.needs_data:
        raise RequestError(f"{typed(name)} is about where a data set lies", remedy=f"use {option('scenario')} real")
    if properties.channels_last and not scenario.trains:
        raise RequestError(
            f"{typed(name)} is about the images of a training",
            remedy=f"use {option('scenario')} synthetic, or leave it out",
        )
    refusal = site.refuse_switch(properties, scenario)
    if refusal:
        raise RequestError(f"{typed(name)}{refusal[0]}", remedy=refusal[1])


def hindrances(properties: Properties, site: Site, recipe: str) -> Iterator[str]:
    """Yield why these properties cannot be had, or would be the same if they were switched."""
    engine = site.choices.container_engine
    yield from _hindrances_of_engine(properties, site)
    if properties.bound_tree and engine.rootfs == "directory":
        yield f"{engine.name} runs the tree in place already"
    yield from _hindrances_of_machines(properties, site)
    if (properties.huge_pages or properties.channels_last) and recipe == "tuned":
        yield "the tuned recipe has them already"
    limits = ("pinned", "memory_limited", "confined", "cpu_share", *DISK_LIMITS.values())
    limited = any(getattr(properties, name) != getattr(AS_IT_IS, name) for name in limits)
    if limited and not is_limited(local=site.local):
        yield "without root nothing is limited that could be"
    if properties.disk_limits:
        yield from _hindrances_of_disks(site)


def _hindrances_of_machines(properties: Properties, site: Site) -> Iterator[str]:
    choices = site.choices
    if not site.local and properties.data_in_layer:
        yield "data is laid into layers on this machine only"
    if choices.gpus and properties.engine and not choices.engine_of(properties).takes_gpus:
        yield f"{properties.engine} takes no GPUs"
    of_guests = properties.provider or properties.virtiofs or properties.microvm or not properties.direct_io
    if not site.boots_guests and of_guests:
        yield "the suite boots no virtual machine"


def _hindrances_of_disks(site: Site) -> Iterator[str]:
    if not site.local:
        yield "disks are limited on this machine only"
    elif not cgroups.disks_can_be_limited():
        yield "the kernel's block I/O controller is not there"
    else:
        try:
            cgroups.disks_under((str(site.choices.image.tree),))
        except RequestError as error:
            yield error.message


def _hindrances_of_engine(properties: Properties, site: Site) -> Iterator[str]:
    choices = site.choices
    engine = site.choices.container_engine
    reason = engine.hindrance(properties)
    if reason:
        yield reason
    if properties.engine == engine.name:
        yield "it is the engine of the run already"
    elif properties.provider == choices.provider:
        yield "it is the machine provider of the run already"
    elif properties.oci_runtime and properties.oci_runtime == engine.runtime:
        yield "it is the OCI runtime of the run already"
    elif properties.engine or properties.oci_runtime or properties.provider:
        try:
            with site.nodes() as nodes:
                for node in nodes:
                    engine.check_machine(node)
                    _check_switched(properties, choices, node)
        except BenchError as error:
            yield error.with_remedy


def _check_switched(properties: Properties, choices: Choices, node: Node) -> None:
    """Raise BenchError unless the provider or the engine that takes over works on the node, and runs there."""
    if properties.provider:
        choices.provider_of(properties).version(node)
        return
    engine = choices.engine_of(properties)
    engine.version(node)
    engine.check_machine(node)
