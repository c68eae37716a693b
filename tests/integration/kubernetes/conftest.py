"""The cluster that the tests of this package run on."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from provisioning.kubernetes.cluster import Cluster as Api
from provisioning.kubernetes.cluster import Object
from tests.integration.bench import bench
from tests.integration.machine import require_image, require_root
from tests.kubernetes_cluster import build
from tests.kubernetes_cluster.cluster import CONTROL_GROUPS, Cluster, down, up

PROGRAMS = ("containerd", "ctr", "runc", "iptables", "openssl", "ip", "nsenter", "taskset")
BRIDGE = Path("/usr/lib/cni/bridge")
CLASSES, VOLUMES = "/apis/storage.k8s.io/v1/storageclasses", "/api/v1/persistentvolumes"


# Of the package: it takes 0.8 GB and some of a CPU, which tests elsewhere are not to share.
@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two nodes on this host that have the suite's image, or the cluster of ``VIRTBENCH_TEST_KUBECONFIG``.

    A test with the parameter False gets kubelets without the static CPU manager, whose pods share all CPUs.
    """
    if named := os.environ.get("VIRTBENCH_TEST_KUBECONFIG"):
        library: Any = kubernetes
        library.config.load_kube_config(named)
        nodes = library.client.CoreV1Api().list_node().items
        yield Cluster(Path(named), tuple(node.metadata.name for node in nodes))
        return
    require_root()
    if missing := [name for name in PROGRAMS if shutil.which(name) is None] + [str(BRIDGE)] * (not BRIDGE.exists()):
        pytest.skip(f"{', '.join(missing)} not installed (make setup-test)")
    if not (CONTROL_GROUPS / "cpuset/cpuset.cpus").exists():
        pytest.skip("the cluster's nodes need control groups of version 1")
    if not build.built():
        pytest.skip("Kubernetes was not built: python -m tests.kubernetes_cluster build, or VIRTBENCH_TEST_KUBECONFIG")
    image = require_image()
    try:
        yield up(image, pin=getattr(request, "param", True))
    finally:
        down()


@pytest.fixture(autouse=True)
def api(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return Api.connect()


def names(listed: Object) -> list[str]:
    return [each["metadata"]["name"] for each in listed["items"]]


def make_volume(api: Api, cluster: Cluster, path: Path, **spec: object) -> str:
    """Make a volume of a directory that the first node sees, and return its address."""
    affinity = {"key": "kubernetes.io/hostname", "operator": "In", "values": [cluster.nodes[0]]}
    volume = {
        "capacity": {"storage": "20Gi"},
        "local": {"path": str(path)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [affinity]}]}},
    }
    meta = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": path.name}}
    path.mkdir()
    api.request("POST", VOLUMES, {**meta, "spec": {**volume, **spec}})
    return f"{VOLUMES}/{path.name}"


@pytest.fixture
def storage_class(cluster: Cluster, api: Api, tmp_path: Path) -> Iterator[str]:
    """A class with one volume, the directory ``models``."""
    local = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    named = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "by-hand"}}
    api.request("POST", CLASSES, {**named, **local})
    kept = {"persistentVolumeReclaimPolicy": "Retain", "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand"}
    volume = make_volume(api, cluster, tmp_path / "models", **kept)
    yield "by-hand"
    for path in (volume, f"{CLASSES}/by-hand"):
        api.request("DELETE", path)


@pytest.fixture
def sets(cluster: Cluster, api: Api, tmp_path: Path) -> Iterator[Path]:
    """The directory behind the claim ``sets``, with MNIST and CIFAR-10, generated in their formats."""
    named = {"storageClassName": "", "accessModes": ["ReadOnlyMany"]}
    volume = make_volume(api, cluster, tmp_path / "sets", **named)
    for kind in ("mnist", "cifar10"):
        bench("data", "make", "--format", kind, "--images", "60", "--out", str(tmp_path / "sets" / kind))
    claim = {**named, "volumeName": "sets", "resources": {"requests": {"storage": "1Gi"}}}
    api.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "sets"}, "spec": claim})
    yield tmp_path / "sets"
    api.delete("v1/persistentvolumeclaims", "sets")
    api.request("DELETE", volume)
