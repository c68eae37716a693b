"""Sites of a run as tests make them, with fakes for the engine of pods and for what was discovered."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from provisioning.engines.kubernetes import Allotment
from provisioning.gpus import Card
from provisioning.images.image import Image
from provisioning.lab.connectivity import Place
from provisioning.remote.discovery import DiscoveredMachine, Discovery
from provisioning.sites.base import RunInputs, Site
from provisioning.sites.cluster import ClusterSite, JoinedPods
from provisioning.sites.here import Here
from provisioning.sites.machines import JoinedMachines, Machines
from provisioning.targets import Choices
from suite.errors import RequestError
from suite.inventory import Inventory
from suite.job.datasets import Dataset
from suite.request.request import RunRequest
from suite.request.scenario import scenario_of

IMAGE = Image(digest="a" * 64, variant="cpu", recipe_sha256="b" * 64, created_at="2026", base="debian", files={})


def inputs_of(
    request: RunRequest, note: Callable[[str], Any] = lambda _: None, dataset: Dataset | None = None
) -> RunInputs:
    return RunInputs(request, scenario_of(request), IMAGE, dataset, note)


def here(engine: str = "runc", targets: tuple[str, ...] = ("bare-metal", "container"), **choices: Any) -> Here:
    return Here(Choices(IMAGE, engine, "tcg", **choices), targets)


def machines(
    inventory: Inventory,
    *discovered: DiscoveredMachine,
    engine: str = "runc",
    targets: tuple[str, ...] = ("bare-metal",),
    joined: bool = False,
    **choices: Any,
) -> Machines:
    places = tuple(Place(f"10.0.0.{number}", "eth0") for number in range(1, len(discovered) + 1))
    kind = JoinedMachines if joined else Machines
    discovery = Discovery(discovered, engine, places)
    return kind(Choices(IMAGE, engine, "tcg", **choices), targets, inventory=inventory, discovery=discovery)


def cluster(
    targets: tuple[str, ...] = ("container",),
    beside: Site | None = None,
    vm_node: str | None = None,
    engines: dict[str, Any] | None = None,
    joined: tuple[Any, ...] = (),
    **options: str,
) -> ClusterSite:
    """A site of pods; ``engines`` or those of ``joined`` nodes are fakes that take the place of connections."""
    choices = Choices(IMAGE, "kubernetes", "tcg", engine_options=options)
    kind = JoinedPods if joined else ClusterSite
    site = kind(choices, targets, beside=beside or Here(choices, targets), vm_node=vm_node)
    if fakes := [*(engines or {}).values(), *joined]:
        choices.__dict__["container_engine"] = fakes[0]
        site.__dict__["pods"] = engines or {"container": fakes[0]}
        site.__dict__["engines"] = joined
    return site


def pods(
    cpus: tuple[int, ...] | None, cpuinfo: str = "", node: str = "", whole_cpus: int = 8, cards: tuple[Card, ...] = ()
) -> Any:
    """Pods that a kubelet gives these CPUs; None for a quota. ``node`` names one that is not this machine."""

    def check_machine(machine: Any) -> None:
        if node:
            raise RequestError(f"{node} is another machine than {machine.name}")

    return SimpleNamespace(
        allotment=lambda *_: Allotment(cpus, cpuinfo, cards),
        check_machine=check_machine,
        check_sizes=lambda *_: None,
        most_cpus=lambda: whole_cpus,
        guest_store=None,
        site="cluster",
    )


TWO = {"scenario": "distributed", "engine": "kubernetes", "node": "n1,n2", "workers": 1, "target": ("container",)}


def joined_pods(*cpus: tuple[int, ...] | None, **changed: Any) -> Any:
    """Return the job on nodes that give these CPUs, None where they give a quota, and its envelope."""
    usual = {**TWO, "cpus": "1", "memory": "2G", "isa": "native"}
    request = RunRequest.of({name: value for name, value in {**usual, **changed}.items() if value is not None})
    options = {"node": request.value("node")} if request.value("node") else {}
    site, inputs = cluster(request.targets.target, joined=tuple(map(pods, cpus)), **options), inputs_of(request)
    site.refuse(inputs, {})
    part = site.part(inputs)
    return part["distributed"], part["envelope"]
