"""The pipeline in a genuine cluster: from a claim to an image, and nothing left."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.images.image import current
from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.node import ctr, local_name
from tests.kubernetes_cluster import cluster as fixture
from tests.kubernetes_cluster.control import kubectl

pytestmark = [pytest.mark.integration, pytest.mark.thorough]
BENCH = (sys.executable, str(Path(__file__).parents[3] / "cli.py"), "kubernetes", "pipeline")
CLASSES, VOLUMES = "/apis/storage.k8s.io/v1/storageclasses", "/api/v1/persistentvolumes"
NAME = "pipeline-test"


def bench(command: str, *words: str, returncode: int = 0) -> "subprocess.CompletedProcess[str]":
    argv = [*BENCH, command, "--name", NAME, *words]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=360)
    assert done.returncode == returncode, f"{done.stdout[-1000:]}{done.stderr[-3000:]}"
    return done


@pytest.fixture
def api(cluster: fixture.Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return Cluster.connect()


@pytest.fixture
def image(cluster: fixture.Cluster) -> str:
    """The name of the image by the digest that it has in the node's runtime: the tests have no registry."""
    if not cluster.containerd:
        pytest.skip("the nodes of VIRTBENCH_TEST_KUBECONFIG are not of this machine")
    address, name = cluster.containerd[cluster.nodes[0]], local_name(current().digest)
    listed = subprocess.run(ctr(address, "ls", f"name=={name}"), check=True, capture_output=True, text=True).stdout
    digest = next(word for word in listed.split() if word.startswith("sha256:"))
    pinned = f"{name.partition(':')[0]}@{digest}"
    subprocess.run(ctr(address, "tag", "--force", name, pinned), check=True, stdout=subprocess.DEVNULL)
    return pinned


@pytest.fixture
def storage_class(cluster: fixture.Cluster, api: Cluster, tmp_path: Path) -> Iterator[str]:
    """A class with one volume: a directory, seen by the first node."""
    affinity = {"key": "kubernetes.io/hostname", "operator": "In", "values": [cluster.nodes[0]]}
    volume = {
        "capacity": {"storage": "20Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": NAME,
        "local": {"path": str(tmp_path)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [affinity]}]}},
    }
    named: Object = {"metadata": {"name": NAME}}
    local = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    api.request("POST", CLASSES, {**named, "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", **local})
    api.request("POST", VOLUMES, {**named, "apiVersion": "v1", "kind": "PersistentVolume", "spec": volume})
    yield NAME
    for path in (VOLUMES, CLASSES):
        api.request("DELETE", f"{path}/{NAME}")


@pytest.mark.timeout(420)
def test_from_a_claim_to_an_image_and_nothing_is_left(
    api: Cluster, image: str, storage_class: str, tmp_path: Path
) -> None:
    asked = ("--image", image, "--profile", "smoke", "--storage-class", storage_class)
    missing = bench("up", *asked, "--image", f"{image[:-8]}{'0' * 8}", returncode=1)
    assert "ImagePull" in missing.stderr
    assert "what to do: import it; if it is there, name it as the registry does" in missing.stderr
    bench("down")
    # The claim has stayed, and is taken.
    up = bench("up", *asked)
    assert f"Job {NAME}-train: complete" in up.stderr
    assert "the service returned a test image" in up.stderr
    assert (tmp_path / "generator.pt").stat().st_size > 0
    found = json.loads(bench("status", "--json").stdout)
    assert {part["kind"]: part["state"] for part in found["parts"]} == {
        "Deployment": "ready",
        "Service": "ready",
        "Job": "complete",
        "NetworkPolicy": "ready",
        "PersistentVolumeClaim": "ready",
    }
    assert "the service returned a test image" in bench("up", *asked).stderr, "what is there is gone on with"
    refused = bench("up", *asked, "--access-mode", "ReadWriteMany", returncode=2)
    assert "has the access mode ReadWriteOnce" in refused.stderr
    policy = api.path("networkpolicies", f"{NAME}-network", "networking.k8s.io/v1")
    live = api.get(policy)
    for changed, said in (
        ({"spec": {**live["spec"], "ingress": [{}]}}, "spec.ingress[0].from: null instead of"),
        ({"metadata": {"labels": {}}}, "does not belong to this pipeline: it has no label"),
    ):
        api.request("PUT", policy, live | changed | {"metadata": live["metadata"] | changed.get("metadata", {})})
        assert said in bench("up", *asked, returncode=2).stderr
        live["metadata"]["resourceVersion"] = api.get(policy)["metadata"]["resourceVersion"]
    api.request("PUT", policy, live)
    manifests = tmp_path / "pipeline.json"
    manifests.write_text(bench("up", *asked, "--dry-run").stdout)
    first = ("-f", str(manifests), "-l", "app.kubernetes.io/component=train")
    applied = kubectl("apply", "--dry-run=server", "--output=name", *first)
    assert {line.partition("/")[0] for line in applied.stdout.splitlines()} == {
        "persistentvolumeclaim",
        "networkpolicy.networking.k8s.io",
        "job.batch",
    }, applied.stderr
    bench("down")
    left = json.loads(bench("status", "--json").stdout)["parts"]
    assert [part["kind"] for part in left] == ["PersistentVolumeClaim"]
    bench("down", "--claim")
    assert json.loads(bench("status", "--json").stdout)["parts"] == []
