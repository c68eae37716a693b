"""The container as a pod of a genuine cluster, beside bare metal, runc and podman in the same blocks."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning import ledger
from provisioning.engines.kubernetes import KUBERNETES, KubernetesEngine
from provisioning.images.image import current
from provisioning.kubernetes import opening
from provisioning.kubernetes.cluster import OWNER, Cluster
from provisioning.kubernetes.layer import PodLayer
from provisioning.nodes import local_node
from scenarios.datasets.resolve import resolve
from suite.errors import CommandError, MeasurementError, RequestError
from suite.interfaces import Node
from suite.job.envelope import GIB
from tests.integration.bench import BENCH, inside, measured, records_in, refusal, some
from tests.integration.kubernetes.conftest import names
from tests.integration.machine import check_commands
from tests.integration.ssh_machines import fleet
from tests.kubernetes_cluster import cluster as fixture
from tests.kubernetes_cluster.layout import REGISTRY
from tests.kubernetes_cluster.registry import serving

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(900)]
BOOTED_ELSEWHERE = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"')
"""What runs a command, after the name of a file with another boot id, as if it were on another machine."""
KILLS = 3
LOWEST_NODE_PORT = 30000
RUNTIME_CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
SMALL = ("--profile", "smoke", "--steps", "1", "--warmup-steps", "0", "--cpus", "1")


@pytest.fixture
def given(cluster: fixture.Cluster) -> dict[str, str]:
    """The options that name the first node."""
    return {"node": cluster.nodes[0], **({"containerd": cluster.containerd["n1"]} if cluster.containerd else {})}


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
def lab(api: Cluster) -> Iterator[Cluster]:
    """A namespace of the test's own."""
    api.request("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}})
    yield Cluster.connect(namespace="lab")
    api.request("DELETE", "/api/v1/namespaces/lab")
    fixture.wait_for("end of the namespace", lambda: "lab" not in names(api.get("/api/v1/namespaces")))


def left() -> list[str]:
    """Return the pods of containers that are in the cluster."""
    return names(Cluster.connect().get("/api/v1/pods", labelSelector=OWNER))


@pytest.fixture(autouse=True)
def nothing_left(api: Cluster) -> Iterator[None]:  # noqa: ARG001 (the cluster that is asked)
    yield
    assert left() == []


def words(given: dict[str, str]) -> tuple[str, ...]:
    options = [word for name, value in given.items() for word in (f"--{name}", value)]
    return ("--target", "container", "--engine", "kubernetes", *options, *SMALL)


def on_two(cluster: fixture.Cluster) -> tuple[str, ...]:
    """Return the options of a run whose two instances are pods of two nodes."""
    nodes = cluster.nodes[:2]
    sockets = ["--containerd", ",".join(cluster.containerd[name] for name in nodes)] if cluster.containerd else []
    return ("--target", "container", "--engine", "kubernetes", "--node", ",".join(nodes), *sockets)


def test_a_pod_is_measured_beside_the_others_on_the_same_cpus(
    cluster: fixture.Cluster, given: dict[str, str], tmp_path: Path
) -> None:
    asked = ("--target", "bare-metal", "--ablate", "runc", "--ablate", "podman", "--blocks", "2")
    found = measured(tmp_path / "run", *words(given), *asked, timeout_s=800)
    assert len(found) == 8
    assert {each.outcome.status for each in found} == {"ok"}
    for seen in map(inside, found):
        assert (seen.userland_sha256, seen.userland_differences) == (current().digest, [])
        assert tuple(seen.host_cpus or ()) == cluster.cpus[given["node"]]
    record = next(each for each in found if (each.target, each.ablation) == ("container", None))
    seen, pod = inside(record), some(inside(record).pod)
    assert (pod.quality, pod.node, pod.this_machine) == ("Guaranteed", given["node"], True)
    assert (pod.cpu_manager, pod.changed) == ("static", [])
    assert (seen.seccomp, seen.no_new_privileges, int(seen.effective_capabilities or "f", 16)) == ("filter", True, 0)
    assert {"accepted", "scheduled", "sandbox", "image", "first-instruction"} <= set(record.opening or ())
    assert some(some(record.resources).serving).cpu_s


def test_a_pod_of_smaller_requests_is_measured_beside_a_guaranteed_one(given: dict[str, str], tmp_path: Path) -> None:
    found = measured(tmp_path / "run", *words(given), "--ablate", "pod-requests", "--blocks", "1", timeout_s=800)
    assert {each.outcome.status for each in found} == {"ok"}
    pods = {each.ablation: some(inside(each).pod) for each in found}
    assert {name: (pod.quality, pod.changed) for name, pod in pods.items()} == {
        None: ("Guaranteed", []),
        "pod-requests": ("Burstable", []),
    }
    (burstable,) = measured(tmp_path / "all", *words(given), "--pod-requests", "50%", timeout_s=800)
    assert (some(inside(burstable).pod).quality, burstable.job.layers.pod_requests) == ("Burstable", "50%")


def test_checkpoints_are_written_to_a_claim_of_the_storage_class(
    api: Cluster, given: dict[str, str], storage_class: str, tmp_path: Path
) -> None:
    asked = [*words(given), "--checkpoint", "fsync", "--checkpoint-every", "1", "--model", "gan"]
    asked += ["--blocks", "1", "--warmup-blocks", "0", "--storage-class"]
    absent = refusal("run", *asked, "absent")
    assert "the cluster has no storage class absent" in absent
    assert f"choose --storage-class from: {storage_class}" in absent
    (trained,) = measured(tmp_path / "one", *asked, storage_class, timeout_s=800)
    assert trained.outcome.status == "ok"
    assert some(some(trained.epochs).checkpoints).filesystem
    assert names(api.get("/api/v1/persistentvolumeclaims")) == []


def test_a_pod_of_a_registry_is_run_by_the_runtime_of_its_class(
    api: Cluster, cluster: fixture.Cluster, tmp_path: Path
) -> None:
    if not cluster.containerd:
        pytest.skip("the nodes are elsewhere, and know no registry of this test")
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    api.request("POST", classes, {**RUNTIME_CLASS, "metadata": {"name": "other"}, "handler": "other"})
    image = current()
    asked = words({"node": "n2", "registry": REGISTRY, "runtime-class": "other"})
    try:
        with serving(image.file("oci.tar")) as registry:
            # The nodes' stores outlive a cluster, and with them what an earlier run of this test has pulled.
            stored = (f"{REGISTRY}/virtbench:{image.digest[:12]}", f"{REGISTRY}/virtbench@{registry.manifest}")
            fixture.forget_everywhere(*stored)
            (record,) = measured(tmp_path / "run", *asked, "--blocks", "1", timeout_s=800)
    finally:
        api.request("DELETE", f"{classes}/other")
    assert record.outcome.status == "ok"
    pod = some(inside(record).pod)
    assert inside(record).userland_sha256 == image.digest
    assert (pod.node, pod.runtime_class) == ("n2", "other")
    assert pod.image_id == f"{REGISTRY}/virtbench@{registry.manifest}"
    assert f"/v2/virtbench/manifests/{image.digest[:12]}" in registry.asked


@pytest.mark.parametrize("elsewhere", [False, True], ids=["on-the-node", "on-another-machine"])
def test_a_pod_is_measured_beside_what_ssh_opens_on_its_node(
    cluster: fixture.Cluster, given: dict[str, str], tmp_path: Path, elsewhere: bool
) -> None:
    run, asked = tmp_path / "run", [BENCH, "run", *words(given), "--target", "bare-metal", "--ablate", "runc"]
    if elsewhere:
        (tmp_path / "boot_id").write_text("00000000-0000-4000-8000-000000000000\n")
        # The image is on the node already, by the name that a registry of this name would have for it.
        asked = [*BOOTED_ELSEWHERE, str(tmp_path / "boot_id"), *asked, "--registry", "localhost"]
    with fleet(tmp_path, 1) as machines:
        asked += ["--inventory", str(machines.inventory()), "--out", str(run)]
        done = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stderr[-3000:]
        (node,) = machines.machines
        assert "Accepted publickey" in (tmp_path / f"log-{node.name}").read_text()
    found = records_in(run)
    arms = {(each.target, each.ablation): inside(each) for each in found}
    opened = {("bare-metal", None): node.name, ("container", None): None, ("container", "runc"): node.name}
    assert {each.outcome.status for each in found} == {"ok"}
    assert {arm: seen.machine for arm, seen in arms.items()} == opened
    for seen in arms.values():
        assert (seen.userland_sha256, seen.userland_differences) == (current().digest, [])
        assert tuple(seen.host_cpus or ()) == cluster.cpus[given["node"]]
    pods = {arm: (seen.pod.node, seen.pod.this_machine) for arm, seen in arms.items() if seen.pod}
    assert pods == {("container", None): (given["node"], not elsewhere)}
    by_ssh = [each for each in found if opened[each.target, each.ablation]]
    assert [(each.conditions, each.resources and each.resources.serving) for each in by_ssh] == [(None, None)] * 2


def test_a_pod_reads_the_data_set_of_a_claim_beside_bare_metal_that_reads_its_copy(
    given: dict[str, str], sets: Path, tmp_path: Path
) -> None:
    real = ("--scenario", "real", "--data", "mnist:sets/mnist", "--model", "vae", "--batch", "8")
    with fleet(tmp_path, 1) as machines:
        asked = ("--target", "bare-metal", "--inventory", str(machines.inventory(f'data = "{sets}/mnist"')))
        found = measured(tmp_path / "run", *words(given), *real, *asked, timeout_s=800)
    assert {(each.target, each.outcome.status) for each in found} == {("container", "ok"), ("bare-metal", "ok")}
    digest = resolve(f"mnist:{sets}/mnist", tmp_path)[1].sha256
    assert {each.job.dataset and each.job.dataset.sha256 for each in found} == {digest}


def test_the_ranks_of_a_job_are_pods_of_two_nodes(cluster: fixture.Cluster, tmp_path: Path) -> None:
    asked = ("--scenario", "distributed", "--workers", "1", "--ps", "1", "--ablate", "network")
    small = (*SMALL, "--model", "alexnet", "--image-px", "64")
    found = measured(tmp_path / "run", *on_two(cluster), *asked, *small, timeout_s=800)
    assert {each.ablation for each in found} == {None, "network"}
    for record in found:
        assert record.outcome.status == "ok", record.outcome
        assert [rank.role for rank in record.ranks] == ["server", "worker"]
        assert [some(rank.environment.pod).node for rank in record.ranks] == list(cluster.nodes[:2])
        assert len({rank.address for rank in record.ranks}) == 2
        assert all(rank.links[0].rate_bits_per_s for rank in record.ranks)
        cpus = [tuple(rank.environment.host_cpus or ()) for rank in record.ranks]
        assert not cluster.cpus or cpus == [cluster.cpus[name] for name in cluster.nodes[:2]]
    addresses = {record.ablation: [rank.address for rank in record.ranks] for record in found}
    assert not set(addresses[None]) & set(addresses["network"]), "pods have addresses of their own"


@pytest.mark.parametrize("strategy", ["all-reduce", "split"])
def test_a_gan_is_trained_in_pods_of_two_nodes(cluster: fixture.Cluster, tmp_path: Path, strategy: str) -> None:
    asked = ("--scenario", "distributed", "--strategy", strategy, "--workers", "2")
    small = (*SMALL, "--model", "gan", "--image-px", "28")
    (record,) = measured(tmp_path / "run", *on_two(cluster), *asked, *small, timeout_s=800)
    assert record.outcome.status == "ok", record.outcome
    assert [some(rank.environment.pod).node for rank in record.ranks] == list(cluster.nodes[:2])
    assert all(rank.sent_bytes and rank.sent_bytes <= (rank.interface_sent_bytes or 0) for rank in record.ranks)


def test_a_pod_serves_and_one_of_another_node_asks(api: Cluster, cluster: fixture.Cluster, tmp_path: Path) -> None:
    asked = ("--scenario", "serve", "--model", "gan", "--profile", "smoke", "--cpus", "1")
    services = ("--ablate", "cluster-ip", "--ablate", "node-port")
    found = measured(tmp_path / "run", *on_two(cluster), *asked, *services, timeout_s=800)
    for record in found:
        assert record.outcome.status == "ok", record.outcome
        assert record.metrics["cold-start"].value > 0
        assert [rank.role for rank in record.ranks] == ["server", "client"]
        assert [some(rank.environment.pod).node for rank in record.ranks] == list(cluster.nodes[:2])
    asked_at = {record.ablation: record.details["asked_at"] for record in found if record.ablation}
    assert set(asked_at) == {"cluster-ip", "node-port"}
    assert asked_at["cluster-ip"][0] not in {rank.address for record in found for rank in record.ranks}
    assert asked_at["node-port"][1] >= LOWEST_NODE_PORT
    assert names(api.get("/api/v1/services", labelSelector=OWNER)) == []


@pytest.mark.parametrize("cluster", [False], indirect=True, ids=["cpus-shared"])
def test_a_victim_and_its_aggressor_are_pods_of_one_node(given: dict[str, str], tmp_path: Path) -> None:
    asked = ("--scenario", "shared", "--model", "alexnet", "--image-px", "64", "--aggressor", "cpu", "--cpus", "2")
    found = measured(tmp_path / "run", *words(given), *asked, timeout_s=800)
    assert {each.aggressor for each in found} == {None, "cpu"}
    for record in found:
        assert record.outcome.status == "ok", record.outcome
        assert some(inside(record).pod).node == given["node"]


def test_words_input_and_exit_status_pass_through_the_api_server(pod: Node) -> None:
    check_commands(pod)
    content = bytes(range(32, 127)) * 20_000
    assert pod.run(["cat"], stdin=content).stdout.encode() == content + b"\n"
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


def test_a_pod_that_is_deleted_under_its_job_fails_with_the_reason(api: Cluster, pod: Node) -> None:
    process = pod.start(["sh", "-c", "echo begun; sleep 1000"])
    assert next(process.lines(30)) == "begun"
    (name,) = left()
    api.request("DELETE", api.path("pods", name), query={"gracePeriodSeconds": 0})
    with pytest.raises(MeasurementError, match="deleted") as error:
        process.wait(60)
    assert error.value.kind == "evicted"
    process.kill()  # gives its output back, too


def opened(engine: KubernetesEngine, digest: str, memory_bytes: int) -> None:
    with local_node((0,), str(current().tree)) as host, PodLayer(engine, digest, memory_bytes).opened(host):
        pass


def test_what_keeps_a_pod_from_starting_is_told_and_nothing_is_left(
    given: dict[str, str], lab: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "SCHEDULED_WITHIN_S", 3.0)
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
    lab.create({"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    fixture.wait_for("quota", lambda: "hard" in lab.get(lab.path("resourcequotas", "q")).get("status", {}))
    digest = current().digest
    for more, image, memory_bytes, kind, said in (
        ({}, digest, 1 << 50, "unschedulable", "Insufficient memory"),
        ({}, "0" * 64, GIB, "image", "ErrImageNeverPull"),
        ({"runtime_class": "kata"}, digest, GIB, "runtime-class", "does not have this runtime class: .*RuntimeClass"),
        ({"namespace": "lab"}, digest, GIB, "quota", "exceeded quota"),
        ({"namespace": "nowhere"}, digest, GIB, "namespace", "the namespace is missing: namespaces"),
    ):
        with pytest.raises(MeasurementError, match=said) as error:
            opened(KUBERNETES.configured({**given, **more}), image, memory_bytes)
        assert error.value.kind == kind, said
    assert "kubectl create namespace" in str(error.value.remedy)
    with pytest.raises(RequestError, match="no such node"):
        opened(KUBERNETES.configured({**given, "node": "n9"}), digest, GIB)


@pytest.mark.parametrize("scenario", ["synthetic", "distributed", "serve"])
def test_after_kill_nine_clean_removes_what_was_left(
    scenario: str, cluster: fixture.Cluster, given: dict[str, str], tmp_path: Path
) -> None:
    chance = random.Random(f"{scenario}/18")
    kinds = {
        "synthetic": [*words(given), "--steps", "100000"],
        "distributed": [*on_two(cluster), "--scenario", "distributed", "--workers", "1", *SMALL],
        "serve": [*on_two(cluster), "--scenario", "serve", "--model", "gan", "--cpus", "1"],
    }
    asked, silent = [BENCH, "run", *kinds[scenario], "--out", str(tmp_path / "run")], subprocess.DEVNULL
    for _ in range(KILLS):
        running = subprocess.Popen(asked, stdout=silent, stderr=silent, start_new_session=True)
        fixture.wait_for("pod", lambda: bool(left()))
        time.sleep(chance.uniform(0, 8))
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        ledger.clean()
        assert left() == []
