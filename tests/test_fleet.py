"""The machines of an inventory as a plan sees them: what each gives, and what all of them have."""

from typing import Any, cast

import pytest

from commands.run.inventory import InventoryMachines, envelopes_of
from commands.run.validate import ablations_of
from provisioning.hindrances import refuse_ablation
from provisioning.images.image import Image
from provisioning.remote.discovery import DiscoveredMachine, Discovery, Wanted
from provisioning.remote.network import Place
from provisioning.targets import Choices
from scenarios.distributed import Distributed
from suite.errors import RequestError
from suite.inventory import Inventory
from suite.job.envelope import GIB
from suite.job.job import CpuCapability
from suite.registries import SCENARIOS
from suite.request.request import RunRequest

LATE = ("gvisor", "charliecloud", "apptainer")
"""Engines whose containers can join no network that is made after their start."""


def request(**options: Any) -> RunRequest:
    return RunRequest.of({"scenario": "distributed", "memory": "2G", "profile": "smoke", **options})


def discovered(number: int, cpus: tuple[int, ...], capability: CpuCapability = "avx2") -> DiscoveredMachine:
    return DiscoveredMachine(f"n{number}", cpus, 8 * GIB, capability, 0.0)


def made(*machines: DiscoveredMachine, **options: object) -> InventoryMachines:
    """Return what ``machines_of`` makes of a discovery."""
    nodes = [{"name": each.name, "host": each.name} for each in machines]
    places = tuple(Place(f"10.0.0.{number}", "eth0") for number in range(1, len(machines) + 1))
    discovery = Discovery(machines, "runc", places)
    envelopes = envelopes_of(request(**options), discovery)
    return InventoryMachines(Inventory.model_validate({"node": nodes}), discovery, ("bare-metal",), envelopes)


def test_every_machine_gives_as_many_cpus_as_the_smallest_has() -> None:
    found = made(discovered(1, (0, 1, 2, 3)), discovered(2, (4, 5)), discovered(3, (0, 1, 2)))
    assert [each.cpus for each in found.envelopes] == [(0, 1), (4, 5), (0, 1)]
    assert {each.memory_bytes for each in found.envelopes} == {2 * GIB}
    assert {each.threads for each in found.envelopes} == {2}


def test_what_a_machine_cannot_give_is_refused_with_its_name() -> None:
    with pytest.raises(RequestError, match=r"on n2: --cpus 3: this host allows CPUs 4-5"):
        made(discovered(1, (0, 1, 2, 3)), discovered(2, (4, 5)), cpus="3")
    with pytest.raises(RequestError, match=r"on n1: 16\.0 GiB of memory asked for"):
        made(discovered(1, (0,)), memory="16G")


def test_machines_need_what_packs_a_data_set_for_their_guests_alone() -> None:
    image = cast("Image", None)
    assert "mke2fs" in Wanted(("vm",), image, with_data=True).programs
    assert "mke2fs" not in Wanted(("vm",), image).programs
    assert "mke2fs" not in Wanted(("container",), image, with_data=True).programs


def test_the_cluster_of_a_plan_names_the_machines_by_rank() -> None:
    found = made(discovered(1, (0, 1)), discovered(2, (0, 1)), discovered(3, (2, 3)))
    distributed = found.distributed_job(request(workers=2, ps=1), Distributed())
    assert [(each.name, each.address, each.cpus) for each in distributed.machines] == [
        ("n1", "10.0.0.1", (0, 1)),
        ("n2", "10.0.0.2", (0, 1)),
        ("n3", "10.0.0.3", (2, 3)),
    ]
    assert distributed.lab is None
    assert distributed.comm_timeout_s == 60


def test_a_switch_of_the_network_is_refused_where_the_network_is_an_option() -> None:
    image = cast("Image", None)
    with pytest.raises(RequestError, match="--network says how"):
        refuse_ablation("network", Choices(image, "podman", "tcg"), "reference", Distributed())
    refuse_ablation("network", Choices(image, "kubernetes", "tcg"), "reference", Distributed())


@pytest.mark.parametrize(
    ("network", "other", "said"),
    [
        ("host", "docker", "docker cannot start"),
        *((network, name, f"--network {network}: {name}") for network in ("host", "overlay") for name in LATE),
    ],
)
def test_another_engine_must_join_the_network_of_the_lab_too(
    monkeypatch: pytest.MonkeyPatch, network: str, other: str, said: str
) -> None:
    monkeypatch.setattr("commands.run.validate.refuse_ablation", lambda *_: None)
    asked = request(network=network, ablate=(other,))
    choices = Choices(cast("Image", None), "podman", "tcg")
    with pytest.raises(RequestError, match=said):
        ablations_of(asked, Distributed(), ("container",), choices, None, lambda _: None)


@pytest.mark.parametrize(("engine", "scenario"), [("podman", "serve"), ("kubernetes", "distributed")])
@pytest.mark.parametrize("way", ["cluster-ip", "node-port"])
def test_a_way_through_a_service_is_refused_where_no_service_is(engine: str, scenario: str, way: str) -> None:
    with pytest.raises(RequestError, match=f"--ablate {way} is about a service of a cluster"):
        refuse_ablation(way, Choices(cast("Image", None), engine, "tcg"), "reference", SCENARIOS.get(scenario))


def test_machines_of_different_make_are_capped_to_what_all_have() -> None:
    notes: list[str] = []
    assert (
        made(discovered(1, (0,), "avx512"), discovered(2, (0,), "avx2")).capability(notes.append, always=False)
        == "avx2"
    )
    assert "avx2" in notes[0]
    assert made(discovered(1, (0,)), discovered(2, (0,))).capability(notes.append, always=False) is None
