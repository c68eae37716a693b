"""Pods as targets, alone, in distributed jobs and with GPUs: what is planned, asked of the kubelet, and refused."""

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioning.engines.base import default_engine
from provisioning.engines.kubernetes import KubernetesEngine, _cards_in
from provisioning.gpus import Card
from provisioning.kubernetes.node import ClusterNode
from provisioning.kubernetes.refusals import AwayError
from provisioning.remote.discovery import DiscoveredMachine
from provisioning.sites.cluster import ClusterSite, JoinedPods
from suite.errors import MeasurementError, RequestError
from suite.inventory import Inventory
from suite.job.distributed import instances_of
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import PROFILES
from suite.job.properties import AS_IT_IS
from suite.registries import ENGINES
from suite.request.request import RunRequest
from tests.jobs import plan_of
from tests.provisioning.kubernetes.conftest import Server, server
from tests.sites import cluster, inputs_of, joined_pods, machines, pods

__all__ = ["server"]


def test_each_instance_has_a_node_and_the_cpus_that_it_gives_or_all_have_a_quota() -> None:
    job, envelope = joined_pods((4,), (7,))
    assert [(each.name, each.cpus) for each in job.machines] == [("n1", (4,)), ("n2", (7,))]
    assert (job.network, job.roles, job.lab) == ("pod", ("server", "worker"), None)
    assert envelope.pinning is None
    shares = instances_of(job, envelope)
    assert [each.envelope.cpus for each in shares] == [(4,), (7,)]
    assert {each.envelope.memory_bytes for each in shares} == {2 * GIB}, "each pod has all of it"
    _, envelope = joined_pods((4,), (7,), memory=None, profile="smoke")
    assert envelope.memory_bytes == PROFILES["smoke"].memory_bytes
    job, envelope = joined_pods((4,), None)
    assert envelope.pinning == "quota"
    assert {each.cpus for each in job.machines} == {(0,)}
    job, _ = joined_pods((4,), (7,), network="host")
    assert job.network == "host"


def test_options_with_commas_are_one_for_each_node() -> None:
    site = cluster(node="n1,n2", containerd="/a,/b", context="c")
    engines = JoinedPods(site.choices, beside=site).engines
    assert [engine.settings for engine in engines] == [
        {"node": "n1", "containerd": "/a", "context": "c"},
        {"node": "n2", "containerd": "/b", "context": "c"},
    ]
    assert len(JoinedPods(cluster().choices, beside=site).engines) == 1


CARD = Card("0", "H100", "580.1", "GPU-00000000", (9, 0))
ENVELOPE = Envelope(cpus=(1,), memory_bytes=GIB, threads=1)


def request(**options: Any) -> RunRequest:
    words = {"engine": "kubernetes", "device": "cuda", "target": ("container",), "cpus": "1", "memory": "1G"}
    return RunRequest.of({**words, "isa": "native", **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": ("bare-metal", "container")}, "does not go with --device cuda of other targets"),
        ({"scenario": "shared"}, "does not go with --device cuda of other targets, or of neighbours"),
        ({"devices": 2, "parallel": "ddp"}, "--devices 2: the node n1 has 1 GPUs for its pods"),
    ],
)
def test_gpus_that_pods_cannot_have_are_refused(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "1"}}}
    monkeypatch.setattr(KubernetesEngine, "_node", ClusterNode(live, {}))
    asked = request(**options)
    with pytest.raises(RequestError, match=said) as error:
        cluster(asked.targets.target, node="n1").refuse(inputs_of(asked), {})
    assert error.value.remedy


def test_gpus_are_those_of_the_pods_and_too_old_ones_are_refused_as_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioning.sites.here.examined", pytest.fail)
    ClusterSite.refuse_request(request())
    site = cluster(engines={"container": pods((1,), cards=(replace(CARD, driver="470.1"),))})
    monkeypatch.setattr("provisioning.images.image.Image.cuda", "13.0")
    with pytest.raises(RequestError, match=r"GPU 0: CUDA 13\.0 needs driver 580, not 470\.1"):
        site.part(inputs_of(request()))


def test_the_instances_that_compute_have_gpus_and_the_others_none() -> None:
    training = plan_of(targets=("container",), envelope=ENVELOPE, device="cuda", devices=2)
    (trial,) = training.trials()
    site = cluster(engines={"container": pods((1,))})
    (layer,) = site.layers(trial, ENVELOPE)
    assert getattr(layer, "gpu_count", 0) == 2
    asked = request(scenario="distributed", node="n1,n2,n3", workers=2, ps=1)
    joined = cluster(joined=(pods((1,)), pods((2,)), pods((3,))), node="n1,n2,n3")
    assert list(joined.computing(inputs_of(asked))) == [False, True, True]


def test_the_inside_has_the_cards_and_as_many_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioning.engines.kubernetes.examined", lambda _: ([CARD], None, None))
    inside: Any = None
    assert [card.uuid for card in _cards_in(inside, 1)] == ["GPU-00000000"]
    assert _cards_in(inside, 0) == ()
    with pytest.raises(MeasurementError, match="the pod has 1 GPUs instead of 2") as error:
        _cards_in(inside, 2)
    assert "--runtime-class" in str(error.value.remedy)


def allotted(
    cpus: tuple[int, ...] | None,
    *targets: str,
    note: Callable[[str], None] = print,
    node: str = "",
    elsewhere: bool = False,
) -> Envelope:
    """Return the envelope of targets beside pods of a node that is this machine, or another one."""
    machine = DiscoveredMachine((0,), 2 * GIB, "m1", capability="avx2", clock_offset_s=0.0)
    inventory = Inventory.model_validate({"node": [{"name": "m1", "host": "m1"}]})
    beside = machines(inventory, machine, engine="kubernetes", targets=targets) if elsewhere else None
    site = cluster(targets, beside, engines={"container": pods(cpus, node=node)})
    request = RunRequest.of({"engine": "kubernetes", "cpus": "1", "memory": "1G", "isa": "native"})
    envelope: Envelope = site.part(inputs_of(request, note))["envelope"]
    return envelope


def test_every_target_is_pinned_to_the_cpus_that_the_kubelet_chose_or_has_a_quota() -> None:
    notes: list[str] = []
    found = allotted((1,), "bare-metal", "container", note=notes.append)
    assert (found.cpus, found.pinning, found.node_chosen) == ((1,), None, True)
    assert notes == ["kubernetes gives the CPUs 1: every target is pinned to them"]
    notes.clear()
    found = allotted(None, "bare-metal", "container", note=notes.append)
    assert found.pinning == "quota"
    assert "quota of 1 CPUs" in notes[0]
    usual = next(plan_of(envelope=ENVELOPE).trials())
    assert usual.properties == AS_IT_IS
    assert usual.with_job(envelope=found).properties == replace(AS_IT_IS, pinned=False)


def test_pods_of_another_machine_are_compared_with_pods_or_with_that_machine() -> None:
    with pytest.raises(RequestError, match="n1 is another machine than localhost"):
        allotted((1,), "bare-metal", "container", node="n1")
    assert allotted((1,), "container", node="n1").cpus == (1,)
    assert allotted((1,), "bare-metal", "container", node="n1", elsewhere=True).cpus == (1,)


def test_what_is_not_built_for_pods_is_refused() -> None:
    asked = RunRequest.of({"engine": "kubernetes", "cpus": "0-1"})
    with pytest.raises(RequestError, match="does not go with --cpus 0-1"):
        cluster().refuse(inputs_of(asked), {})


def test_a_cluster_is_never_chosen_where_it_is_not_named() -> None:
    assert default_engine(["kubernetes"]) == default_engine([]) == "runc"
    assert default_engine(ENGINES.names()) == "docker"


def test_the_doctor_says_yes_only_when_the_server_has_answered_within_two_seconds(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node: Any = SimpleNamespace(local=True, name="here")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(RequestError, match="no kubeconfig"):
        KubernetesEngine().version(node)
    server.answers["GET /version"] = 200, {"gitVersion": "v1.30.0"}
    server.kubeconfig(tmp_path / "config", current="here")
    assert KubernetesEngine().version(node) == "v1.30.0 of the server of the context here"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        server.kubeconfig(tmp_path / "config", current="here")
        begin_s = time.monotonic()
        with pytest.raises(AwayError, match="does not answer"):
            KubernetesEngine().version(node)
        assert time.monotonic() - begin_s < 20, "and not after the 30 s of other requests"
