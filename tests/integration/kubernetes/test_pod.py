"""The container as a pod of a genuine cluster, beside bare metal, runc and podman in the same blocks."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning import ledger
from provisioning.engines.kubernetes import KUBERNETES, KubernetesEngine
from provisioning.images.image import current
from provisioning.kubernetes import opening
from provisioning.kubernetes.cluster import OWNER, Cluster, Object
from provisioning.kubernetes.layer import PodLayer
from provisioning.nodes import local_node
from scenarios.datasets.resolve import resolve
from suite.errors import CommandError, MeasurementError, RequestError
from suite.interfaces import Node
from suite.job.envelope import GIB
from suite.records.record import TrialRecord
from tests.integration.fleet import fleet
from tests.integration.trials import records_in
from tests.kubernetes_cluster import cluster as fixture
from tests.kubernetes_cluster.layout import REGISTRY
from tests.kubernetes_cluster.registry import serving

pytestmark = [pytest.mark.integration, pytest.mark.thorough]
BENCH = (sys.executable, str(Path(__file__).parents[3] / "cli.py"))
BOOTED_ELSEWHERE = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"')
"""What runs a command, after the name of a file with another boot id, as if it were on another machine."""
KILLS = 3
LOWEST_NODE_PORT = 30000
RUNTIME_CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
SMALL = ("--profile", "smoke", "--steps", "1", "--warmup-steps", "0", "--cpus", "1")


@pytest.fixture(autouse=True)
def kubeconfig(cluster: fixture.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))


@pytest.fixture
def given(cluster: fixture.Cluster) -> dict[str, str]:
    """The options that name the first node."""
    address = {"containerd": cluster.containerd["n1"]} if cluster.containerd else {}
    return {"node": cluster.nodes[0], **address}


@pytest.fixture
def engine(given: dict[str, str]) -> KubernetesEngine:
    return KUBERNETES.configured(given)


@pytest.fixture
def pod(engine: KubernetesEngine) -> Iterator[Node]:
    image = current()
    with local_node((0,), str(image.tree)) as host:
        engine.load(host, image.digest, image.file("oci.tar"))
        with PodLayer(engine, image.digest, GIB).opened(host) as inside:
            yield inside


@pytest.fixture
def lab(kubeconfig: None) -> Iterator[Cluster]:  # noqa: ARG001 (the cluster that is reached)
    """A namespace of the test's own."""
    found = Cluster.connect(namespace="lab")
    found.request("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}})
    yield found
    found.request("DELETE", "/api/v1/namespaces/lab")
    fixture.wait_for("end of the namespace", lambda: "lab" not in names(found.get("/api/v1/namespaces")))


@pytest.fixture
def storage_class(cluster: fixture.Cluster, tmp_path: Path) -> Iterator[str]:
    """A class with a volume, a directory that the first node sees."""
    api, classes, volumes = Cluster.connect(), "/apis/storage.k8s.io/v1/storageclasses", "/api/v1/persistentvolumes"
    affinity = {"key": "kubernetes.io/hostname", "operator": "In", "values": [cluster.nodes[0]]}
    local = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    named = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "by-hand"}}
    api.request("POST", classes, {**named, **local})
    volume = {
        "capacity": {"storage": "20Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "by-hand",
        "local": {"path": str(tmp_path)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [affinity]}]}},
    }
    meta = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "by-hand"}}
    api.request("POST", volumes, {**meta, "spec": volume})
    yield "by-hand"
    for path in (volumes, classes):
        api.request("DELETE", f"{path}/by-hand")


@pytest.fixture
def sets(cluster: fixture.Cluster, tmp_path: Path) -> Iterator[Path]:
    """The directory behind a claim, which the first node sees, with a set in MNIST's format."""
    api, volumes = Cluster.connect(), "/api/v1/persistentvolumes"
    make = [*BENCH, "data", "make", "--format", "mnist", "--images", "60", "--out", str(tmp_path / "sets/mnist")]
    subprocess.run(make, check=True, capture_output=True)
    named = {"storageClassName": "", "accessModes": ["ReadOnlyMany"]}
    affinity = {"key": "kubernetes.io/hostname", "operator": "In", "values": [cluster.nodes[0]]}
    volume = {
        **named,
        "capacity": {"storage": "1Gi"},
        "local": {"path": str(tmp_path / "sets")},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [affinity]}]}},
    }
    meta = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "sets"}}
    api.request("POST", volumes, {**meta, "spec": volume})
    claim = {**named, "volumeName": "sets", "resources": {"requests": {"storage": "1Gi"}}}
    api.create({**meta, "kind": "PersistentVolumeClaim", "spec": claim})
    yield tmp_path / "sets"
    api.delete("v1/persistentvolumeclaims", "sets")
    api.request("DELETE", f"{volumes}/sets")


def names(listed: Object) -> list[str]:
    return [each["metadata"]["name"] for each in listed["items"]]


def left() -> list[str]:
    """Return the pods of containers that are in the cluster."""
    return names(Cluster.connect().get("/api/v1/pods", labelSelector=OWNER))


def words(given: dict[str, str], out: Path) -> list[str]:
    options = [word for name, value in given.items() for word in (f"--{name}", value)]
    return [*BENCH, "run", "--target", "container", "--engine", "kubernetes", *options, *SMALL, "--out", str(out)]


def measured(asked: list[str], run: Path) -> list[TrialRecord]:
    done = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    return records_in(run)


def on_two(cluster: fixture.Cluster, out: Path) -> list[str]:
    """Return the command of a run whose two instances are pods of two nodes."""
    nodes = cluster.nodes[:2]
    sockets = ["--containerd", ",".join(cluster.containerd[name] for name in nodes)] if cluster.containerd else []
    named = ["--engine", "kubernetes", "--node", ",".join(nodes), *sockets]
    return [*BENCH, "run", "--target", "container", *named, "--out", str(out)]


@pytest.mark.timeout(900)
def test_a_pod_is_measured_beside_the_others_on_the_same_cpus(
    cluster: fixture.Cluster, given: dict[str, str], tmp_path: Path
) -> None:
    asked = [*words(given, tmp_path / "run"), "--target", "bare-metal", "--ablate", "runc", "--ablate", "podman"]
    found = measured([*asked, "--blocks", "2"], tmp_path / "run")
    assert len(found) == 8
    inside = {(each.target, each.ablation): each.environment.target for each in found}
    assert {each.outcome.status for each in found} == {"ok"}
    for seen in inside.values():
        assert seen is not None
        assert (seen.userland_sha256, seen.userland_differences) == (current().digest, [])
        assert tuple(seen.host_cpus or ()) == cluster.cpus[given["node"]]
    seen = inside["container", None]
    assert seen is not None
    assert seen.pod is not None
    assert (seen.pod.quality, seen.pod.node, seen.pod.this_machine) == ("Guaranteed", given["node"], True)
    assert (seen.pod.cpu_manager, seen.pod.changed) == ("static", [])
    assert (seen.seccomp, seen.no_new_privileges, int(seen.effective_capabilities or "f", 16)) == ("filter", True, 0)
    record = next(each for each in found if (each.target, each.ablation) == ("container", None))
    assert {"accepted", "scheduled", "sandbox", "image", "first-instruction"} <= set(record.opening)
    assert record.resources is not None
    assert record.resources.serving is not None
    assert record.resources.serving.cpu_s
    assert left() == []


@pytest.mark.timeout(900)
def test_checkpoints_are_written_to_a_claim_of_the_storage_class(
    given: dict[str, str], storage_class: str, tmp_path: Path
) -> None:
    asked = [*words(given, tmp_path / "one"), "--checkpoint", "fsync", "--checkpoint-every", "1", "--model", "gan"]
    asked += ["--blocks", "1", "--warmup-blocks", "0", "--storage-class"]
    absent = subprocess.run([*asked, "absent"], check=False, capture_output=True, text=True)
    assert absent.returncode == 2
    assert "the cluster has no storage class absent" in absent.stderr
    assert f"choose --storage-class from: {storage_class}" in absent.stderr
    (trained,) = measured([*asked, storage_class], tmp_path / "one")
    assert trained.outcome.status == "ok"
    assert trained.epochs
    assert trained.epochs.checkpoints
    assert trained.epochs.checkpoints.filesystem
    claims = Cluster.connect().get("/api/v1/persistentvolumeclaims")
    assert names(claims) == []


@pytest.mark.timeout(900)
def test_a_pod_of_a_registry_is_run_by_the_runtime_of_its_class(cluster: fixture.Cluster, tmp_path: Path) -> None:
    if not cluster.containerd:
        pytest.skip("the nodes are elsewhere, and know no registry of this test")
    api, classes = Cluster.connect(), "/apis/node.k8s.io/v1/runtimeclasses"
    api.request("POST", classes, {**RUNTIME_CLASS, "metadata": {"name": "other"}, "handler": "other"})
    image = current()
    asked = [*words({"node": "n2", "registry": REGISTRY, "runtime-class": "other"}, tmp_path / "run")]
    try:
        with serving(image.file("oci.tar")) as registry:
            # The nodes' stores outlive a cluster, and with them what an earlier run of this test has pulled.
            names = (f"{REGISTRY}/virtbench:{image.digest[:12]}", f"{REGISTRY}/virtbench@{registry.manifest}")
            fixture.forget_everywhere(*names)
            (record,) = measured([*asked, "--blocks", "1"], tmp_path / "run")
    finally:
        api.request("DELETE", f"{classes}/other")
    assert record.outcome.status == "ok"
    seen = record.environment.target
    assert seen is not None
    assert seen.userland_sha256 == image.digest
    assert seen.pod is not None
    assert (seen.pod.node, seen.pod.runtime_class) == ("n2", "other")
    assert seen.pod.image_id == f"{REGISTRY}/virtbench@{registry.manifest}"
    assert f"/v2/virtbench/manifests/{image.digest[:12]}" in registry.asked


@pytest.mark.timeout(900)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["on-the-node", "on-another-machine"])
def test_a_pod_is_measured_beside_what_ssh_opens_on_its_node(
    cluster: fixture.Cluster, given: dict[str, str], tmp_path: Path, elsewhere: bool
) -> None:
    run, asked = tmp_path / "run", [*words(given, tmp_path / "run"), "--target", "bare-metal", "--ablate", "runc"]
    if elsewhere:
        (tmp_path / "boot_id").write_text("00000000-0000-4000-8000-000000000000\n")
        # The image is on the node already, by the name that a registry of this name would have for it.
        asked = [*BOOTED_ELSEWHERE, str(tmp_path / "boot_id"), *asked, "--registry", "localhost"]
    with fleet(tmp_path, 1) as machines:
        found = measured([*asked, "--inventory", str(machines.inventory())], run)
        (node,) = machines.machines
        assert "Accepted publickey" in (tmp_path / f"log-{node.name}").read_text()
    inside = {(each.target, each.ablation): each.environment.target for each in found}
    opened = {("bare-metal", None): node.name, ("container", None): None, ("container", "runc"): node.name}
    assert {each.outcome.status for each in found} == {"ok"}
    assert {arm: seen.machine for arm, seen in inside.items() if seen} == opened
    for seen in inside.values():
        assert seen is not None
        assert (seen.userland_sha256, seen.userland_differences) == (current().digest, [])
        assert tuple(seen.host_cpus or ()) == cluster.cpus[given["node"]]
    pods = {arm: (seen.pod.node, seen.pod.this_machine) for arm, seen in inside.items() if seen and seen.pod}
    assert pods == {("container", None): (given["node"], not elsewhere)}
    by_ssh = [each for each in found if opened[each.target, each.ablation]]
    assert [(each.conditions, each.resources and each.resources.serving) for each in by_ssh] == [(None, None)] * 2
    assert left() == []


@pytest.mark.timeout(900)
def test_a_pod_reads_the_data_set_of_a_claim_beside_bare_metal_that_reads_its_copy(
    given: dict[str, str], sets: Path, tmp_path: Path
) -> None:
    real = ("--scenario", "real", "--data", "mnist:sets/mnist", "--model", "vae", "--batch", "8")
    run = tmp_path / "run"
    with fleet(tmp_path, 1) as machines:
        inventory = machines.inventory(f'data = "{sets}/mnist"')
        found = measured([*words(given, run), *real, "--target", "bare-metal", "--inventory", str(inventory)], run)
    assert {(each.target, each.outcome.status) for each in found} == {("container", "ok"), ("bare-metal", "ok")}
    digest = resolve(f"mnist:{sets}/mnist", tmp_path)[1].sha256
    assert {each.job.dataset and each.job.dataset.sha256 for each in found} == {digest}
    assert left() == []


@pytest.mark.timeout(900)
def test_the_ranks_of_a_job_are_pods_of_two_nodes(cluster: fixture.Cluster, tmp_path: Path) -> None:
    run, nodes = tmp_path / "run", cluster.nodes[:2]
    asked = [*on_two(cluster, run), "--scenario", "distributed", "--workers", "1", "--ps", "1", "--ablate", "network"]
    asked += [*SMALL, "--model", "alexnet", "--image-px", "64"]
    found = measured(asked, run)
    assert {each.ablation for each in found} == {None, "network"}
    for record in found:
        assert record.outcome.status == "ok", record.outcome
        assert [rank.role for rank in record.ranks] == ["server", "worker"]
        pods = [rank.environment.pod for rank in record.ranks]
        assert [pod.node if pod else None for pod in pods] == list(nodes)
        assert len({rank.address for rank in record.ranks}) == 2
        assert all(rank.links[0].rate_bits_per_s for rank in record.ranks)
        if cluster.cpus:
            assert [tuple(rank.environment.host_cpus or ()) for rank in record.ranks] == [
                cluster.cpus[name] for name in nodes
            ]
    addresses = {record.ablation: [rank.address for rank in record.ranks] for record in found}
    assert not set(addresses[None]) & set(addresses["network"]), "pods have addresses of their own"
    assert left() == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["all-reduce", "split"])
def test_a_gan_is_trained_in_pods_of_two_nodes(cluster: fixture.Cluster, tmp_path: Path, strategy: str) -> None:
    run, nodes = tmp_path / "run", cluster.nodes[:2]
    asked = [*on_two(cluster, run), "--scenario", "distributed", "--strategy", strategy, "--workers", "2"]
    (record,) = measured([*asked, *SMALL, "--model", "gan", "--image-px", "28"], run)
    assert record.outcome.status == "ok", record.outcome
    pods = [rank.environment.pod for rank in record.ranks]
    assert [pod.node if pod else None for pod in pods] == list(nodes)
    assert all(rank.sent_bytes and rank.sent_bytes <= (rank.interface_sent_bytes or 0) for rank in record.ranks)
    assert left() == []


@pytest.mark.timeout(900)
def test_a_pod_serves_and_one_of_another_node_asks(cluster: fixture.Cluster, tmp_path: Path) -> None:
    run, nodes = tmp_path / "run", cluster.nodes[:2]
    asked = [*on_two(cluster, run), "--scenario", "serve", "--model", "gan", "--profile", "smoke", "--cpus", "1"]
    asked += ["--ablate", "cluster-ip", "--ablate", "node-port"]
    found = measured(asked, run)
    for record in found:
        assert record.outcome.status == "ok", record.outcome
        assert record.metrics["cold-start"].value > 0
        assert [rank.role for rank in record.ranks] == ["server", "client"]
        pods = [rank.environment.pod for rank in record.ranks]
        assert [pod.node if pod else None for pod in pods] == list(nodes)
    asked_at = {record.ablation: record.details["asked_at"] for record in found if record.ablation}
    assert set(asked_at) == {"cluster-ip", "node-port"}
    assert asked_at["cluster-ip"][0] not in {rank.address for record in found for rank in record.ranks}
    assert asked_at["node-port"][1] >= LOWEST_NODE_PORT
    services = Cluster.connect().get("/api/v1/services", labelSelector=OWNER)
    assert names(services) == left() == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cluster", [False], indirect=True, ids=["cpus-shared"])
def test_a_victim_and_its_aggressor_are_pods_of_one_node(given: dict[str, str], tmp_path: Path) -> None:
    asked = [*words(given, tmp_path / "run"), "--scenario", "shared", "--model", "alexnet", "--image-px", "64"]
    asked += ["--aggressor", "cpu", "--cpus", "2"]
    found = measured(asked, tmp_path / "run")
    assert {each.aggressor for each in found} == {None, "cpu"}
    for record in found:
        assert record.outcome.status == "ok", record.outcome
        assert record.environment.target is not None
        assert record.environment.target.pod is not None
        assert record.environment.target.pod.node == given["node"]
    assert left() == []


def test_words_input_and_exit_status_pass_through_the_api_server(pod: Node) -> None:
    given = ["two words", "semi;colon", "$HOME `id`", "quote\"s and 'quotes'", "new\nline", "", "*", "ümlaut"]
    assert pod.run(["printf", "%s\\0", *given]).stdout.removesuffix("\n").split("\0") == [*given, ""]
    content = bytes(range(32, 127)) * 20_000
    assert pod.run(["cat"], stdin=content).stdout.encode() == content + b"\n"
    assert pod.run(["sh", "-c", "echo said; echo why >&2; exit 7"], check=False).returncode == 7
    with pytest.raises(CommandError, match="why"):
        pod.run(["sh", "-c", "echo why >&2; exit 7"])
    assert len(pod.run(["seq", "1000000"]).stdout) == len("\n".join(map(str, range(1, 1_000_001)))) + 1
    assert pod.run(["no-such-program"], check=False).returncode not in (0, None)


def test_a_command_that_is_killed_does_not_run_on(pod: Node) -> None:
    process = pod.start(["sh", "-c", "echo begun; sleep 1000"])
    assert next(process.lines(30)) == "begun"
    assert process.running()
    process.kill()
    assert not process.running()
    assert list(process.lines(10)) == []
    assert "sleep\0001000" not in pod.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).stdout
    with pytest.raises(CommandError, match="outlived its time limit"):
        pod.run(["sleep", "1000"], timeout_s=1.0)


def test_the_root_is_read_only_and_nothing_of_the_cluster_is_inside(pod: Node) -> None:
    assert pod.run(["touch", "/x"], check=False).returncode != 0
    assert pod.run(["ls", "/var/run/secrets"], check=False).returncode != 0
    # The address of the API server is given to every pod; to the job, whose environment is replaced, it is not.
    services = [line for line in pod.run(["env"]).stdout.splitlines() if "_SERVICE_HOST=" in line]
    assert [line for line in services if not line.startswith("KUBERNETES_")] == []
    assert pod.run(["touch", "/tmp/x", "/dev/shm/x"], check=False).returncode == 0


def test_a_job_that_wants_too_much_memory_is_killed(pod: Node) -> None:
    hungry = f"x = bytearray({GIB + (1 << 28)}); print(len(x))"
    assert pod.run(["python3", "-c", hungry], check=False).returncode == 128 + signal.SIGKILL


def test_a_pod_that_is_deleted_under_its_job_fails_with_the_reason(pod: Node) -> None:
    process = pod.start(["sh", "-c", "echo begun; sleep 1000"])
    assert next(process.lines(30)) == "begun"
    cluster = Cluster.connect()
    (name,) = left()
    cluster.request("DELETE", cluster.path("pods", name), query={"gracePeriodSeconds": 0})
    with pytest.raises(MeasurementError, match="deleted") as error:
        process.wait(60)
    assert error.value.kind == "evicted"
    process.kill()  # gives its output back, too


def opened(engine: KubernetesEngine, digest: str, memory_bytes: int = GIB) -> None:
    with local_node((0,), str(current().tree)) as host, PodLayer(engine, digest, memory_bytes).opened(host):
        pass


def test_what_keeps_a_pod_from_starting_is_told_and_nothing_is_left(
    engine: KubernetesEngine, given: dict[str, str], lab: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "SCHEDULED_WITHIN_S", 3.0)
    with pytest.raises(MeasurementError, match="Insufficient memory") as error:
        opened(engine, current().digest, 1 << 50)
    assert error.value.kind == "unschedulable"
    with pytest.raises(MeasurementError, match="ErrImageNeverPull") as error:
        opened(engine, "0" * 64)
    assert error.value.kind == "image"
    with pytest.raises(MeasurementError, match=r"does not have this runtime class: .*RuntimeClass") as error:
        opened(KUBERNETES.configured({**given, "runtime_class": "kata"}), current().digest)
    assert error.value.kind == "runtime-class"
    with pytest.raises(MeasurementError, match="the namespace is missing: namespaces") as error:
        opened(KUBERNETES.configured({**given, "namespace": "nowhere"}), current().digest)
    assert "kubectl create namespace" in str(error.value.remedy)
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
    lab.create({"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    fixture.wait_for("quota", lambda: "hard" in lab.get(lab.path("resourcequotas", "q")).get("status", {}))
    with pytest.raises(MeasurementError, match="exceeded quota") as error:
        opened(KUBERNETES.configured({**given, "namespace": "lab"}), current().digest)
    assert error.value.kind == "quota"
    with pytest.raises(RequestError, match="no such node"):
        opened(KUBERNETES.configured({**given, "node": "n9"}), current().digest)
    assert left() == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", ["synthetic", "distributed", "serve"])
def test_after_kill_nine_clean_removes_what_was_left(
    scenario: str, cluster: fixture.Cluster, given: dict[str, str], tmp_path: Path
) -> None:
    chance = random.Random(f"{scenario}/18")
    kinds = {
        "synthetic": [*words(given, tmp_path / "run"), "--steps", "100000"],
        "distributed": [*on_two(cluster, tmp_path / "run"), "--scenario", "distributed", "--workers", "1", *SMALL],
        "serve": [*on_two(cluster, tmp_path / "run"), "--scenario", "serve", "--model", "gan", "--cpus", "1"],
    }
    for _ in range(KILLS):
        running = subprocess.Popen(
            kinds[scenario], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        fixture.wait_for("pod", lambda: bool(left()))
        time.sleep(chance.uniform(0, 8))
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        ledger.clean()
        assert left() == []
