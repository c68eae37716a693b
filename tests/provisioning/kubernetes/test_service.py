"""The service before a pod: what is sent, and where its clients then ask."""

from pathlib import Path
from typing import Any

import pytest

from provisioning.engines.kubernetes import KUBERNETES
from provisioning.kubernetes.cluster import OWNER, Cluster
from provisioning.kubernetes.opening import CLUSTER_IP, NODE_PORT, open_service, service_manifest
from provisioning.paths import state
from suite.errors import RequestError
from suite.job.ablations import properties_of
from tests.kubernetes_schema import invalid
from tests.provisioning.kubernetes.conftest import Server

POD = "virtbench-0123456789ab"
SERVICES = "/api/v1/namespaces/lab/services"
LIVE = {"spec": {"clusterIP": "10.99.0.7", "ports": [{"nodePort": 31000}]}}
REVIEW = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.mark.parametrize("way", [CLUSTER_IP, NODE_PORT])
def test_the_service_leads_to_one_pod_and_is_valid_in_both_versions(way: str) -> None:
    sent = service_manifest("virtbench-ba9876543210", POD, 5000, way)
    assert invalid(sent) == []
    assert sent["spec"]["selector"] == {OWNER: POD}
    assert sent["metadata"]["labels"][OWNER] == sent["metadata"]["name"], "the ledger removes it by its own name"
    assert sent["spec"]["ports"] == [{"protocol": "TCP", "port": 5000, "targetPort": 5000}]


@pytest.mark.parametrize(("way", "place"), [(CLUSTER_IP, ("10.99.0.7", 5000)), (NODE_PORT, ("10.97.0.11", 31000))])
def test_clients_ask_where_the_way_begins_and_nothing_stays(
    cluster: Cluster, server: Server, way: str, place: tuple[str, int]
) -> None:
    there: list[Any] = []

    def create() -> tuple[int, dict[str, Any]]:
        there.append({"metadata": {"name": "s"}})
        return 201, LIVE

    def delete() -> tuple[int, dict[str, Any]]:
        there.clear()
        return 200, {}

    server.answers = {
        f"POST {SERVICES}": create,
        f"GET {SERVICES}": lambda: (200, {"items": there}),
        f"DELETE {SERVICES}/s": delete,
        f"GET /api/v1/namespaces/lab/pods/{POD}": (200, {"status": {"hostIP": "10.97.0.11"}}),
    }
    with open_service(cluster, POD, 5000, way) as found:
        assert found == place
        (entry,) = state("ledger").glob("*.json")
        assert "v1/services" in entry.read_text()
    assert there == []
    assert list(state("ledger").glob("*.json")) == []


def test_who_may_make_no_service_is_told_so_before_the_run(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "config"))
    server.answers = {REVIEW: (201, {"status": {"allowed": False}})}
    with pytest.raises(RequestError, match="may not create services in lab"):
        KUBERNETES.configured({"context": "here"}).hindrance(properties_of("node-port"))
