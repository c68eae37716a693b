"""Bare metal and other containers beside pods: on this machine, or on the node that the inventory names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from provisioning.engines.kubernetes import KubernetesEngine
from provisioning.kubernetes import owned
from provisioning.kubernetes.node import ClusterNode
from provisioning.metrics.accounting import HostAccount, NoAccount, open_account
from provisioning.remote.discovery import DiscoveredMachine, Discovery
from provisioning.sites.base import site_of
from provisioning.sites.cluster import ClusterSite
from suite.errors import RequestError
from suite.interfaces import Completed, Instance
from suite.inventory import Inventory
from suite.job.envelope import GIB, Envelope
from suite.plan import Trial
from suite.process_identity import boot_id
from suite.request.request import RunRequest
from tests.jobs import plan_of
from tests.sites import cluster, inputs_of, machines

PODS = {"engine": "kubernetes", "node": "n1", "target": ("bare-metal", "container"), "memory": "1G"}
ENVELOPE = Envelope(cpus=(3,), memory_bytes=GIB, threads=1)
N1 = Inventory.model_validate({"node": [{"name": "m1", "host": "root@m1"}]})


BOTH = ("bare-metal", "container")


def site(inventory: Inventory | None = N1) -> ClusterSite:
    beside = machines(inventory, targets=BOTH) if inventory else None
    return cluster(BOTH, beside, node="n1")


@pytest.fixture
def booted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the boot of the node that the pods run on."""

    def make(boot: str) -> None:
        status = {"nodeInfo": {"bootID": boot}, "allocatable": {"cpu": "2"}}
        live = {"metadata": {"name": "n1"}, "status": status}
        monkeypatch.setattr(KubernetesEngine, "_node", ClusterNode(live, {}))

    return make


def place(name: str, boot: str = "") -> Any:
    """A machine that ssh reaches, or this one, which has its own boot."""
    local = not boot
    return SimpleNamespace(name=name, local=local, run=lambda *_, **__: Completed(0, f"{boot or boot_id()}\n", ""))


def test_only_the_machine_that_is_the_node_is_compared_with_its_pods(
    booted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = site().choices.container_engine
    booted("1-2-3")
    engine.check_machine(place("m1", "1-2-3"))
    for machine, name in ((place("m1", "4-5-6"), "m1 of the inventory"), (place("localhost"), "this machine")):
        with pytest.raises(RequestError, match=f"{name} is not the node n1 of the cluster") as error:
            engine.check_machine(machine)
        assert "--inventory" in str(error.value.remedy)
    booted(boot_id())
    engine.check_machine(place("localhost"))
    monkeypatch.setenv(owned.NODE, "n1")  # bench itself is in a pod of the node, and not on its bare metal
    with pytest.raises(RequestError, match="this machine is not the node n1"):
        engine.check_machine(place("localhost"))


@pytest.mark.parametrize(
    ("changed", "hosts", "said"),
    [
        ({"target": ("bare-metal", "container", "vm")}, [""], "lists no machine for vm"),
        ({}, ["", ""], "lists m0 and m1 for bare-metal"),
        ({}, ['targets = ["bare-metal"]'], "lists no machine for container"),
        ({"engine": None, "node": None, "target": ("vm",)}, [""], "lists no machine for vm"),
    ],
)
def test_what_no_machine_beside_pods_carries_is_refused(
    changed: dict[str, Any], hosts: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(
        "".join(f'[[node]]\nname = "m{n}"\nhost = "m{n}.invalid"\n{more}\n' for n, more in enumerate(hosts))
    )
    asked = RunRequest.of(PODS).changed(**changed)
    monkeypatch.setattr(KubernetesEngine, "version", lambda *_: "v1.30")
    inputs = inputs_of(asked.changed(inventory=path))
    with pytest.raises(RequestError, match=said) as error:
        site_of(inputs.request).resolve(inputs)
    assert error.value.remedy


def test_the_machine_gives_no_more_cpus_than_pods_of_its_node_can_have(
    booted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    booted("1-2-3")
    found = DiscoveredMachine("m1", (0, 1, 2, 3), 8 * GIB, "avx2", 0.0)
    calls: list[Any] = []

    def discover(*given: Any) -> Discovery:
        calls.extend(given)
        return Discovery((found,), "kubernetes")

    monkeypatch.setattr("provisioning.sites.machines.discover", discover)
    monkeypatch.setattr("provisioning.sites.machines.read_inventory", lambda _: N1)
    monkeypatch.setattr("provisioning.doctor.examine", pytest.fail)
    monkeypatch.setattr(KubernetesEngine, "version", lambda *_: "v1.30")
    monkeypatch.setattr(KubernetesEngine, "on_vm", lambda self, _: self)
    notes: list[str] = []
    named = {"target": (*BOTH, "container-vm"), "node": "container=n1,container-vm=n2", "inventory": Path("hosts.toml")}
    request = RunRequest.of({**PODS, **named})
    resolved: Any = site_of(request).resolve(inputs_of(request, notes.append))
    assert (resolved.choices.engine_options, resolved.vm_node, notes) == ({"node": "n1"}, "n2", ["kubernetes v1.30"])
    assert [each.cpus for each in resolved.envelopes(inputs_of(request))] == [(0, 1)]
    assert resolved.targets == named["target"]
    assert resolved.capability(ENVELOPE, print, always=True) == "avx2"
    _, _, targets, network, check = calls
    assert (network, targets) == (None, ("bare-metal",))
    with pytest.raises(RequestError, match="m2 of the inventory is not the node n1"):
        check(place("m2", "4-5-6"))
    with pytest.raises(RequestError, match="on m1: --cpus 3"):
        resolved.envelopes(inputs_of(request.changed(cpus="3")))


def trials() -> dict[tuple[str, str | None], Trial]:
    plan = plan_of(targets=("bare-metal", "container"), ablations=("runc", "podman", "seccomp"), envelope=ENVELOPE)
    return {(each.target, each.ablation): each for each in plan.trials()}


def test_the_machine_is_sent_the_tree_and_loaded_for_the_engines_that_run_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    @contextmanager
    def machine(planned: Any) -> Iterator[Any]:
        yield SimpleNamespace(name=planned.name, planned=planned)

    def engine(name: str) -> Any:
        return SimpleNamespace(name=name, load=lambda node, *_: events.append(f"{name} loads on {node.name}"))

    monkeypatch.setattr("provisioning.sites.machines.machine", machine)
    monkeypatch.setattr("provisioning.sites.here.get_engine", engine)
    monkeypatch.setattr(
        "provisioning.sites.machines.sync_image", lambda node, *_: events.append(f"sync to {node.name}")
    )
    site().prepare(plan_of(targets=BOTH, ablations=("runc", "seccomp"), envelope=ENVELOPE), print)
    assert events == ["sync to m1", "runc loads on m1"]


def test_of_another_machine_this_one_accounts_for_nothing() -> None:
    trial = trials()["bare-metal", None]

    def account(**facts: object) -> object:
        return open_account(trial, [Instance(cast("Any", SimpleNamespace(facts=facts)))])

    assert isinstance(account(machine="m1"), NoAccount)
    assert isinstance(account(), HostAccount)
