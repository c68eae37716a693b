"""Pods as targets, alone, in distributed jobs, with GPUs and beside others: what is planned, asked and refused."""

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from provisioning.batch.patience import AwayError
from provisioning.engines.base import default_engine
from provisioning.engines.kubernetes import KUBERNETES, KubernetesEngine, _cards_in
from provisioning.gpus import Card
from provisioning.kubernetes import claims, owned
from provisioning.kubernetes.claims import ClaimedData
from provisioning.kubernetes.cluster import Cluster
from provisioning.kubernetes.execution import PodNode
from provisioning.kubernetes.node import ClusterNode
from provisioning.metrics.accounting import HostAccount, NoAccount, open_account
from provisioning.nodes import local_node
from provisioning.remote.discovery import DiscoveredMachine, Discovery
from provisioning.sites.base import site_of
from provisioning.sites.cluster import ClusterSite, JoinedPods
from provisioning.sites.here import Here
from scenarios.datasets.resolve import resolve
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Completed, Instance, Note
from suite.inventory import Inventory
from suite.job.datasets import Dataset
from suite.job.distributed import instances_of
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import PROFILES
from suite.job.properties import AS_IT_IS
from suite.process_identity import boot_id
from suite.registries import ENGINES
from suite.request.request import RunRequest
from tests.extensions.conftest import REPOSITORY
from tests.jobs import plan_of
from tests.provisioning.conftest import raises
from tests.provisioning.kubernetes.conftest import Server, cluster, server
from tests.scenarios.pictures import folder
from tests.sites import IMAGE, inputs_of, joined_pods, machines, pods
from tests.sites import cluster as site_of_pods

__all__ = ["cluster", "server"]


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
    site = site_of_pods(node="n1,n2", containerd="/a,/b", context="c")
    settings = [engine.settings for engine in JoinedPods(site.choices, beside=site).engines]
    assert settings == [{"node": f"n{n}", "containerd": path, "context": "c"} for n, path in ((1, "/a"), (2, "/b"))]
    assert len(JoinedPods(site_of_pods().choices, beside=site).engines) == 1


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
    with raises(RequestError, said):
        site_of_pods(asked.targets.target, node="n1").refuse(inputs_of(asked), {})


def test_gpus_are_those_of_the_pods_and_too_old_ones_are_refused_as_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioning.sites.here.examined", pytest.fail)
    ClusterSite.refuse_request(request())
    site = site_of_pods(engines={"container": pods((1,), cards=(replace(CARD, driver="470.1"),))})
    monkeypatch.setattr("provisioning.images.image.Image.cuda", "13.0")
    with pytest.raises(RequestError, match=r"GPU 0: CUDA 13\.0 needs driver 580, not 470\.1"):
        site.part(inputs_of(request()))


def test_the_instances_that_compute_have_gpus_and_the_others_none() -> None:
    (trial,) = plan_of(targets=("container",), envelope=ENVELOPE, device="cuda", devices=2).trials()
    (layer,) = site_of_pods(engines={"container": pods((1,))}).layers(trial, ENVELOPE)
    assert getattr(layer, "gpu_count", 0) == 2
    asked = request(scenario="distributed", node="n1,n2,n3", workers=2, ps=1)
    joined = site_of_pods(joined=(pods((1,)), pods((2,)), pods((3,))), node="n1,n2,n3")
    assert list(joined.computing(inputs_of(asked))) == [False, True, True]


def test_the_inside_has_the_cards_and_as_many_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioning.engines.kubernetes.examined", lambda _: ([CARD], None, None))
    inside: Any = None
    assert [card.uuid for card in _cards_in(inside, 1)] == ["GPU-00000000"]
    assert _cards_in(inside, 0) == ()
    with raises(MeasurementError, "the pod has 1 GPUs instead of 2", "--runtime-class"):
        _cards_in(inside, 2)


def allotted(
    cpus: tuple[int, ...] | None, *targets: str, note: Note = print, node: str = "", elsewhere: bool = False
) -> Envelope:
    """Return the envelope of targets beside pods of a node that is this machine, or another one."""
    machine = DiscoveredMachine((0,), 2 * GIB, "m1", capability="avx2", clock_offset_s=0.0)
    inventory = Inventory.model_validate({"node": [{"name": "m1", "host": "m1"}]})
    beside = machines(inventory, machine, engine="kubernetes", targets=targets) if elsewhere else None
    site = site_of_pods(targets, beside, engines={"container": pods(cpus, node=node)})
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
        site_of_pods().refuse(inputs_of(asked), {})


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


# ---- bare metal and other containers beside pods, here or on a machine of the inventory, and data sets of claims


BOTH = ("bare-metal", "container")
PODS = {"engine": "kubernetes", "node": "n1", "target": BOTH, "memory": "1G"}


@pytest.fixture
def booted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the boot of the node that the pods run on."""

    def make(boot: str) -> None:
        status = {"nodeInfo": {"bootID": boot}, "allocatable": {"cpu": "2"}}
        monkeypatch.setattr(KubernetesEngine, "_node", ClusterNode({"metadata": {"name": "n1"}, "status": status}, {}))

    return make


def place(name: str, boot: str = "") -> Any:
    """A machine that ssh reaches, or this one, which has its own boot."""
    return SimpleNamespace(name=name, local=not boot, run=lambda *_, **__: Completed(0, f"{boot or boot_id()}\n", ""))


def test_only_the_machine_that_is_the_node_is_compared_with_its_pods(
    booted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = site_of_pods(node="n1").choices.container_engine
    booted("1-2-3")
    engine.check_machine(place("m1", "1-2-3"))
    for machine, name in ((place("m1", "4-5-6"), "m1 of the inventory"), (place("localhost"), "this machine")):
        with raises(RequestError, f"{name} is not the node n1 of the cluster", "--inventory"):
            engine.check_machine(machine)
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
    with raises(RequestError, said):
        site_of(inputs.request).resolve(inputs)


def test_the_machine_gives_no_more_cpus_than_pods_of_its_node_can_have(
    booted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    booted("1-2-3")
    found = DiscoveredMachine((0, 1, 2, 3), 8 * GIB, "m1", capability="avx2", clock_offset_s=0.0)
    calls: list[Any] = []

    def discover(*given: Any) -> Discovery:
        calls.extend(given)
        return Discovery((found,), "kubernetes")

    monkeypatch.setattr("provisioning.sites.machines.discover", discover)
    listed = Inventory.model_validate({"node": [{"name": "m1", "host": "root@m1"}]})
    monkeypatch.setattr("provisioning.sites.machines.read_inventory", lambda _: listed)
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
    assert resolved.capability(OF_ONE_CPU, print, always=True) == "avx2"
    _, _, targets, network, check = calls
    assert (network, targets) == (None, ("bare-metal",))
    with pytest.raises(RequestError, match="m2 of the inventory is not the node n1"):
        check(place("m2", "4-5-6"))
    with pytest.raises(RequestError, match="on m1: --cpus 3"):
        resolved.envelopes(inputs_of(request.changed(cpus="3")))


def test_of_another_machine_this_one_accounts_for_nothing() -> None:
    (trial,) = plan_of(targets=("bare-metal",), envelope=OF_ONE_CPU).trials()

    def account(**facts: object) -> object:
        return open_account(trial, [Instance(cast("Any", SimpleNamespace(facts=facts)))])

    assert isinstance(account(machine="m1"), NoAccount)
    assert isinstance(account(), HostAccount)


OF_ONE_CPU = Envelope(cpus=(0,), memory_bytes=GIB, threads=1)
WORDS = {"scenario": "real", "engine": "kubernetes", "target": ("container",), "memory": "1G", "cpus": "1"}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return folder(tmp_path / "pets", 4)


@pytest.fixture
def pod(cluster: Cluster, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PodNode]:
    """A pod whose commands run here, and in which the claim is the directory of pictures."""
    monkeypatch.setattr(claims, "MOUNT", str(pictures))
    monkeypatch.setattr(claims, "IMAGE_PYTHON", (sys.executable, str(REPOSITORY)))
    with local_node((0,), None) as host:
        yield PodNode(parent=host, wrap=list, name="p", userland="/", cpus=(0,), local=False, cluster=cluster, pod="p")


def test_a_pod_identifies_the_data_set_as_this_machine_does_if_the_claim_holds_it(pod: PodNode, pictures: Path) -> None:
    here = resolve(f"imagefolder:{pictures}", pictures)[1]
    claimed, dataset = ClaimedData("imagefolder", "sets", "pets").identified(pod, None)
    assert dataset == here.model_copy(update={"directory": ""})
    assert claimed.path == "pets"
    with raises(RequestError, "the claim sets does not hold it in /pets: ", "copy the data set to the claim"):
        ClaimedData("mnist", "sets", "pets").identified(pod, None)
    with pytest.raises(RequestError, match="no kind of data set of another package"):
        ClaimedData("theirs", "sets", "pets").identified(pod, None)


def test_a_claim_that_is_not_there_is_refused_before_a_pod_waits_for_it(cluster: Cluster, server: Server) -> None:
    server.answers["POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"] = 200, {"status": {"allowed": True}}
    engine = KUBERNETES.configured({"claim": "mnist:sets:digits"})
    engine.__dict__["_cluster"] = cluster
    with pytest.raises(RequestError, match="there is no claim sets in the namespace lab"):
        engine.data_set(IMAGE, GIB, None)


def test_a_job_has_the_data_set_and_the_stored_request_the_claim(
    pod: PodNode, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KubernetesEngine, "version", lambda *_: "v1.30")
    monkeypatch.setattr(KubernetesEngine, "tried", lambda *_: nullcontext(pod))
    monkeypatch.setattr(Cluster, "demand", lambda *_: None)
    monkeypatch.setattr(Cluster, "get", lambda *_: {})
    monkeypatch.setattr(KubernetesEngine, "_cluster", pod.cluster)
    usual = site_of_pods()
    request = RunRequest.of({**WORDS, "data": "imagefolder:sets/pets"})
    monkeypatch.setattr(Here, "with_guests", lambda *_: usual)
    site = ClusterSite.resolve(inputs_of(request))
    digest = resolve(f"imagefolder:{pictures}", pictures)[1].sha256
    assert site.data
    assert site.data.sha256 == digest
    assert site.stored(request).data.data == "imagefolder:sets/pets"
    (trial,) = plan_of(targets=("container",), dataset=site.data, envelope=OF_ONE_CPU).trials()
    (layer,) = site.layers(trial, OF_ONE_CPU)
    with local_node((0,), "/tree") as host:
        spec = layer.specification(host, "/tree")  # type: ignore[attr-defined]
    assert spec.data == ("", "/mnt/data", False)


def test_no_disk_of_a_guest_is_packed_for_a_pod_on_a_virtual_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioning.sites.here.prepare_disk", pytest.fail)
    monkeypatch.setattr("provisioning.sites.cluster.load", lambda *_: None)
    both = ("container", "container-vm")
    dataset = Dataset(kind="mnist", sha256="ab" * 32, images=60, size_bytes=4000)
    site = site_of_pods(both, vm_node="n2", engines=dict.fromkeys(both, pods((1,))))
    site.prepare(plan_of(targets=both, dataset=dataset, envelope=OF_ONE_CPU), print)


def test_bare_metal_beside_reads_the_copy_of_a_machine_that_is_listed_and_none_here() -> None:
    site = site_of_pods(BOTH, engines={"container": pods((1,))})
    with raises(RequestError, "bare-metal on this machine cannot read a claim", "--inventory"):
        site.refuse(inputs_of(RunRequest.of({**WORDS, "target": BOTH, "data": "mnist:sets/digits"})), {})
