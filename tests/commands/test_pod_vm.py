"""The target container-vm as a pod: which node is taken for the virtual machine, and what is planned of both."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.validity import fact_differences
from analysis.load.records import Facts
from commands.run.forecast import Forecast
from commands.run.validate import refuse_ignored
from provisioning.engines.kubernetes import KUBERNETES, Allotment, KubernetesEngine
from provisioning.kubernetes.cluster import Cluster
from provisioning.kubernetes.execution import PodNode, kernel_inside
from provisioning.kubernetes.layer import PodLayer
from provisioning.nodes import local_node
from provisioning.sites.base import site_of
from suite.errors import RequestError
from suite.job.envelope import GIB, Envelope
from suite.process_identity import boot_id
from suite.records.course import envelope_differences
from suite.records.differences import INSIDE, facts
from suite.records.environment import Environment
from suite.request.request import RunRequest
from tests.commands.conftest import SMALL, Bench, Machine, ended_well, refused
from tests.jobs import plan_of
from tests.provisioning.kubernetes.conftest import Server, server
from tests.sites import cluster

__all__ = ["server"]
NODES = "container=n1,container-vm=n2"
ENVELOPE = Envelope(cpus=(1,), memory_bytes=GIB, threads=1)
BOTH = ("--target", "container", "--target", "container-vm", "--engine", "kubernetes")
GUEST, METAL = "flags\t\t: fpu avx2 fma hypervisor\n", "flags\t\t: fpu avx2 fma my_hypervisors\n"
MANY = GUEST.replace("avx2", "avx2 avx512f avx512bw avx512dq avx512vl")


def node(name: str, boot: str) -> dict[str, Any]:
    info = {"bootID": boot, "kubeletVersion": "v1", "containerRuntimeVersion": "containerd://1"}
    return {"metadata": {"name": name}, "status": {"nodeInfo": info, "allocatable": {"cpu": "2"}}}


@pytest.fixture
def nodes(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A cluster of two nodes that have booted apart."""
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "config", current="here"))
    server.answers["GET /api/v1/nodes"] = 200, {"items": [node("n1", "b1"), node("n2", "b2")]}
    server.answers["GET /version"] = 200, {"gitVersion": "v1.30.0"}
    return server


# ---- what is asked for


def test_the_suite_boots_no_machine_for_it() -> None:
    def booted(engine: str | None) -> frozenset[str]:
        request = RunRequest.of({"target": ("container", "container-vm", "vm"), "engine": engine})
        return site_of(request).boots(request)

    assert booted("kubernetes") == {"vm"}
    assert booted("runc") == booted(None) == {"vm", "container-vm"}
    words = {"engine": "kubernetes", "target": ("container", "container-vm"), "node": NODES}
    refuse_ignored(RunRequest.of(words))
    with pytest.raises(RequestError, match="--accel would change nothing: no target has a virtual machine that"):
        refuse_ignored(RunRequest.of({**words, "accel": "tcg"}))


# ---- which nodes are taken


def engine(*, virtual: bool = False) -> KubernetesEngine:
    return replace(KUBERNETES.configured({"node": "n2" if virtual else "n1"}), virtual=virtual)


def test_a_node_is_taken_for_the_virtual_machine_unless_it_has_the_kernel_of_the_other(nodes: Server) -> None:
    found = engine().on_vm("n2")
    assert (found.virtual, found.most_cpus(), found._node.name) == (True, 2, "n2")
    assert found._node.facts()["boot_id"] == "b2"
    nodes.answers["GET /api/v1/nodes"] = 200, {"items": [node("n1", "b1"), node("n2", "b1")]}
    with pytest.raises(RequestError, match="--node: n1 of container and n2 of container-vm run under one kernel"):
        engine().on_vm("n2")
    with pytest.raises(RequestError, match="--node n3: the cluster has no such node"):
        engine().on_vm("n3")


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (("b2", METAL), "--node n2: the CPU that its pods see reports no hypervisor"),
        (("b2", "Features : fp asimd\n"), "reports no hypervisor"),
        (("b9", GUEST), "--node n2: its pods have kernels of their own"),
        (("", ""), "have kernels of their own"),
    ],
)
def test_a_node_is_taken_that_its_pods_attest_and_no_other(
    kernel: tuple[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioning.engines.kubernetes.kernel_inside", lambda _: kernel)
    inside: Any = None
    with pytest.raises(RequestError, match=why) as caught:
        engine(virtual=True)._attested(inside)
    assert caught.value.remedy
    assert engine()._attested(inside) == kernel[1], "nothing is claimed of the node of container"
    monkeypatch.setattr("provisioning.engines.kubernetes.kernel_inside", lambda _: ("b2", GUEST))
    assert engine(virtual=True)._attested(inside) == GUEST


def test_the_kernel_is_read_in_the_pod(server: Server, tmp_path: Path) -> None:
    cluster = Cluster.connect("here", config=server.kubeconfig(tmp_path / "config"))
    with local_node((0,), None) as host:
        pod = PodNode(
            parent=host, wrap=list, name="pod", userland="/", cpus=(0,), local=False, cluster=cluster, pod="p"
        )
        boot, cpuinfo = kernel_inside(pod)
    assert boot == boot_id()
    assert "processor" in cpuinfo


# ---- what is planned


@pytest.mark.usefixtures("nodes")
def test_the_stack_is_a_container_on_its_node_and_no_machine_of_the_suite() -> None:
    site = cluster(("container", "container-vm"), vm_node="n2", node="n1")
    trials = {each.target: each for each in plan_of(targets=site.targets, envelope=ENVELOPE).trials()}
    (layer,) = site.layers(trials["container-vm"], ENVELOPE)
    assert isinstance(layer, PodLayer)
    assert layer.engine is site.pods["container-vm"], "its connection is kept from trial to trial"
    (other,) = site.layers(trials["container"], ENVELOPE)
    assert isinstance(other, PodLayer)
    assert other.engine is site.choices.container_engine
    assert site.fields(ENVELOPE, None)["layers"].accelerator is None
    assert cluster(node="n1").fields(ENVELOPE, None)["layers"].accelerator == "tcg"


def test_each_target_is_held_to_the_cpus_of_its_own_node() -> None:
    envelope = Envelope(cpus=(1,), memory_bytes=GIB, threads=1, node_cpus=(5,))
    plan = plan_of(envelope=envelope, targets=("container", "container-vm"))
    trials = {trial.target: trial for trial in plan.trials()}
    assert {name: trial.envelope.cpus for name, trial in trials.items()} == {"container": (1,), "container-vm": (5,)}
    trial = trials["container-vm"]
    seen = Environment(cpus=[5], host_cpus=[5], threads=1, memory_bytes=GIB)
    assert envelope_differences(trial, trial.envelope, seen) == []
    assert envelope_differences(trial, trial.envelope, replace(seen, host_cpus=[1]))


def planned(bench: Bench, *words: str) -> Forecast:
    result = ended_well(bench("run", *SMALL, *BOTH, "--node", NODES, "--cpus", "1", "--dry-run", "--json", *words))
    return Forecast.model_validate_json(result.stdout)


@pytest.fixture
def given(nodes: Server, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> dict[bool, Allotment]:
    """What the kubelets give, by whether the node is the virtual machine; this machine can boot none."""
    nodes.answers["GET /api/v1/nodes"] = 200, {"items": [node("n1", boot_id()), node("n2", "b2")]}
    machine.usable |= {"vm": False, "container-vm": False}
    monkeypatch.setattr("provisioning.machines.accelerator.choose", None)
    found = {False: Allotment((0,), MANY), True: Allotment((7,), GUEST)}
    monkeypatch.setattr(KubernetesEngine, "allotment", lambda self, *_: found[self.virtual])
    return found


def test_a_machine_without_virtual_machines_runs_it_beside_bare_metal_by_numbers_or_a_quota(
    bench: Bench, given: dict[bool, Allotment]
) -> None:
    plan = planned(bench, "--target", "bare-metal").plan
    assert given[True].cpus == plan.job.envelope.node_cpus == (7,)
    assert (plan.targets, plan.job.envelope.cpus) == (("container", "container-vm", "bare-metal"), (0,))
    assert plan.job.layers.accelerator is None
    assert plan.job.cpu_capability == "avx2", "the node of container has more than the virtual machine"
    assert plan.request is not None
    assert plan.request.given()["node"] == NODES
    given[True] = Allotment(None, MANY)
    envelope = planned(bench).plan.job.envelope
    assert (envelope.pinning, envelope.node_cpus) == ("quota", None)


@pytest.mark.usefixtures("given")
def test_nodes_elsewhere_leave_no_bare_metal(bench: Bench, nodes: Server) -> None:
    nodes.answers["GET /api/v1/nodes"] = 200, {"items": [node("n1", "b1"), node("n2", "b2")]}
    assert planned(bench).plan.targets == ("container", "container-vm")
    words = ("run", *SMALL, *BOTH, "--target", "bare-metal", "--node", NODES, "--cpus", "1")
    refused(bench(*words), "nothing on it can be compared with its pods")


@pytest.mark.usefixtures("given")
def test_what_a_pod_of_another_machine_cannot_be_given_is_refused(bench: Bench, nodes: Server) -> None:
    words = ("run", *SMALL, *BOTH, "--cpus", "1")
    refused(bench(*words), "are compared with those of container")
    named = (*words, "--node", NODES)
    refused(
        bench(*named, "--scenario", "shared", "--aggressor", "disk"), "cannot reach this machine's data or scratch disk"
    )
    refused(bench(*named, "--scenario", "serve"), "which no other target runs on")
    small = node("n2", "b2")
    small["status"]["allocatable"]["cpu"] = "1900m"
    nodes.answers["GET /api/v1/nodes"] = 200, {"items": [node("n1", boot_id()), small]}
    refused(bench(*named, "--dry-run", "--cpus", "2"), "--cpus 2: the node n2 has 1 whole CPUs for its pods")
    refused(bench(*named, "--dry-run", "--cpus", "64"), "--cpus 64: the node n1 has 2 whole CPUs for its pods")


# ---- what is compared


VIRTUAL = {"node": "n2", "virtual": True}


@pytest.mark.parametrize(
    ("one", "other", "differing"),
    [
        (VIRTUAL, None, {"pod.node": "node of the cluster n2 against none"}),
        (VIRTUAL, {"node": "n1"}, {"pod.node": "node of the cluster n2 against n1"}),
        (VIRTUAL, VIRTUAL, {"host_cpus": "host CPUs pinned to 5 against 1"}),
        ({"node": "n1"}, None, {"host_cpus": "host CPUs pinned to 5 against 1"}),
    ],
)
def test_the_virtual_machine_is_named_and_numbers_its_own_cpus(
    one: dict[str, Any], other: dict[str, Any] | None, differing: dict[str, str]
) -> None:
    beside = {"host_cpus": [1], **({"pod": other} if other else {})}
    tables = [Facts(facts(side, INSIDE)) for side in ({"host_cpus": [5], "pod": one}, beside)]
    assert {found.name: found.text for found in fact_differences(*tables)} == differing
