"""The machines of an inventory as a plan sees them: what each gives, and what all of them have."""

from typing import Any

import pytest

from commands.run.validate import ablations_of
from provisioning.hindrances import refuse_ablation
from provisioning.remote.discovery import DiscoveredMachine, needed
from provisioning.sites.base import Site
from provisioning.sites.machines import Machines
from scenarios.distributed import Distributed
from suite.errors import RequestError
from suite.inventory import Inventory
from suite.job.envelope import GIB, Envelope
from suite.job.job import CpuCapability
from suite.registries import SCENARIOS
from suite.request.request import RunRequest
from tests.sites import cluster, here, inputs_of, machines

LATE = ("gvisor", "charliecloud", "apptainer")
"""Engines whose containers can join no network that is made after their start."""


def request(**options: Any) -> RunRequest:
    return RunRequest.of({"scenario": "distributed", "memory": "2G", "profile": "smoke", **options})


def discovered(number: int, cpus: tuple[int, ...], capability: CpuCapability = "avx2") -> DiscoveredMachine:
    return DiscoveredMachine(f"n{number}", cpus, 8 * GIB, capability, 0.0)


def made(*found: DiscoveredMachine) -> Machines:
    """Return the site of a joined job on these machines."""
    inventory = Inventory.model_validate({"node": [{"name": each.name, "host": each.name} for each in found]})
    return machines(inventory, *found, joined=True)


def test_every_machine_gives_as_many_cpus_as_the_smallest_has() -> None:
    site = made(discovered(1, (0, 1, 2, 3)), discovered(2, (4, 5)), discovered(3, (0, 1, 2)))
    envelopes = site.envelopes(inputs_of(request()))
    assert [each.cpus for each in envelopes] == [(0, 1), (4, 5), (0, 1)]
    assert {each.memory_bytes for each in envelopes} == {2 * GIB}
    assert {each.threads for each in envelopes} == {2}


def test_what_a_machine_cannot_give_is_refused_with_its_name() -> None:
    with pytest.raises(RequestError, match=r"on n2: --cpus 3: this host allows CPUs 4-5"):
        made(discovered(1, (0, 1, 2, 3)), discovered(2, (4, 5))).envelopes(inputs_of(request(cpus="3")))
    with pytest.raises(RequestError, match=r"on n1: 16\.0 GiB of memory asked for"):
        made(discovered(1, (0,))).envelopes(inputs_of(request(memory="16G")))


def test_machines_need_what_packs_a_data_set_for_their_guests_alone() -> None:
    assert "mke2fs" in needed(("vm",), "qemu", with_data=True)
    assert "mke2fs" not in needed(("vm",), "qemu", with_data=False)
    assert "mke2fs" not in needed(("container",), "qemu", with_data=True)


def test_the_cluster_of_a_plan_names_the_machines_by_rank() -> None:
    found = made(discovered(1, (0, 1)), discovered(2, (0, 1)), discovered(3, (2, 3)))
    distributed = found.part(inputs_of(request(workers=2, ps=1)))["distributed"]
    assert [(each.name, each.address, each.cpus) for each in distributed.machines] == [
        ("n1", "10.0.0.1", (0, 1)),
        ("n2", "10.0.0.2", (0, 1)),
        ("n3", "10.0.0.3", (2, 3)),
    ]
    assert distributed.lab is None
    assert distributed.comm_timeout_s == 60


def test_a_switch_of_the_network_is_refused_where_the_network_is_an_option() -> None:
    with pytest.raises(RequestError, match="--network says how"):
        refuse_ablation("network", here("podman"), "reference", Distributed())
    refuse_ablation("network", cluster(), "reference", Distributed())


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
    with pytest.raises(RequestError, match=said):
        ablations_of(inputs_of(asked), here("podman"), None)


@pytest.mark.parametrize(("site", "scenario"), [(here("podman"), "serve"), (cluster(), "distributed")])
@pytest.mark.parametrize("way", ["cluster-ip", "node-port"])
def test_a_way_through_a_service_is_refused_where_no_service_is(site: Site, scenario: str, way: str) -> None:
    with pytest.raises(RequestError, match=f"--ablate {way} is about a service of a cluster"):
        refuse_ablation(way, site, "reference", SCENARIOS.get(scenario))


def test_machines_of_different_make_are_capped_to_what_all_have() -> None:
    notes: list[str] = []
    envelope = Envelope(cpus=(0,), memory_bytes=GIB, threads=1)
    site = made(discovered(1, (0,), "avx512"), discovered(2, (0,), "avx2"))
    assert site.capability(envelope, notes.append, always=False) == "avx2"
    assert "avx2" in notes[0]
    alike = made(discovered(1, (0,)), discovered(2, (0,)))
    assert alike.capability(envelope, notes.append, always=False) is None
