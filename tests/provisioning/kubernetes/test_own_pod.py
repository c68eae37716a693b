"""Bench in a pod of its own: the pods that it opens are owned by it, and its service account reaches the cluster."""

import shutil
from pathlib import Path

import certifi
import pytest

from provisioning.engines.base import ContainerSpec
from provisioning.kubernetes import owned
from provisioning.kubernetes.cluster import Cluster
from provisioning.kubernetes.pod import Placement, manifest
from tests.kubernetes_schema import invalid

SPEC = ContainerSpec("virtbench-0123456789ab", "d" * 64, "/tree", "0", 1 << 30)


@pytest.fixture
def in_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of the service account."""
    account = tmp_path / "account"
    account.mkdir()
    (account / "namespace").write_text("lab")
    (account / "token").write_text("secret")
    shutil.copyfile(certifi.where(), account / "ca.crt")
    named = {owned.POD: "bench-0", owned.UID: "u-1", owned.NODE: "n2"}
    address = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for name, value in (named | address).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(owned, "ACCOUNT", account)
    return account


def test_a_pod_that_is_opened_from_a_pod_goes_with_it(in_pod: Path) -> None:
    assert in_pod.exists()
    pod = manifest(SPEC, Placement("n2", "localhost/virtbench:1"))
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "bench-0", "u-1")
    assert invalid(pod) == []


def test_elsewhere_a_pod_has_no_owner() -> None:
    assert manifest(SPEC, Placement("n2", "localhost/virtbench:1"))["metadata"]["ownerReferences"] == []


@pytest.mark.usefixtures("in_pod")
def test_the_service_account_reaches_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")  # put back at the end
    owned.use_account(tmp_path)
    cluster = Cluster.connect()
    assert (cluster.namespace, owned.own_node()) == ("lab", "n2")
    assert cluster.api.configuration.host == "https://10.0.0.1:443"
