"""What the texts of servers, kubelets and events mean, wherever they come from, and what the user can do."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioning.engines.kubernetes import KUBERNETES
from provisioning.kubernetes import refusals
from provisioning.kubernetes.cluster import Cluster
from provisioning.kubernetes.opening import Opening
from provisioning.kubernetes.refusals import refused_as_request
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Stopwatch
from tests.provisioning.kubernetes.conftest import Server

PODS, EVENTS = "/api/v1/namespaces/lab/pods", "/api/v1/namespaces/lab/events"
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}}


def test_a_runtime_class_that_its_node_lacks_is_called_so_at_the_first_event(server: Server, cluster: Cluster) -> None:
    said = 'rpc error: failed to get sandbox runtime: no runtime for "kata" is configured'
    server.answers |= {f"POST {PODS}": (201, POD), f"GET {PODS}": (200, "")}
    event = {"type": "Warning", "reason": "FailedCreatePodSandBox", "message": said}
    server.answers[f"GET {EVENTS}"] = 200, json.dumps({"type": "ADDED", "object": event})
    with pytest.raises(MeasurementError, match="does not have this runtime class: FailedCreatePodSandBox") as raised:
        Opening(cluster, "p", Stopwatch()).open(POD)
    assert "--runtime-class" in str(raised.value.remedy)


FORBIDDEN = 'pods "p" is forbidden: '


def test_what_is_refused_is_a_wrong_request_and_remedies_name_the_keys_of_a_plan(
    server: Server, cluster: Cluster
) -> None:
    server.answers[f"POST {PODS}"] = 403, {"message": f"{FORBIDDEN}maximum cpu usage per Pod is 16, but request is 17"}
    with pytest.raises(RequestError, match="maximum cpu usage per Pod is 16") as refused, refused_as_request():
        cluster.create(POD)
    assert refused.value.exit_code == 2
    for cause in refusals._CAUSES:
        remedy = str(RequestError("", remedy=cause.remedy).spelled(lambda name: f"options.{name}").remedy)
        assert "--" not in remedy.replace("--image of a pipeline", ""), cause.kind


def test_a_pod_that_cannot_be_opened_before_the_plan_names_node_and_cpus(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "config"))
    info = {"bootID": "b1", "kubeletVersion": "v1.36.0", "containerRuntimeVersion": "containerd://2"}
    node = {"metadata": {"name": "n1"}, "status": {"nodeInfo": info, "allocatable": {"cpu": "2"}}}
    unplaced = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu"}
    live = POD | {"status": {"conditions": [unplaced]}}
    server.answers |= {
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews": (201, {"status": {"allowed": True}}),
        "GET /api/v1/nodes": (200, {"items": [node]}),
        f"POST {PODS}": lambda: (201, json.loads(server.sent[-1])),
        f"GET {PODS}": (200, {"type": "ADDED", "object": POD, "items": []}),  # the answer to a watch, and to a list
        f"GET {EVENTS}": (200, ""),
    }
    monkeypatch.setattr("provisioning.kubernetes.opening.SCHEDULED_WITHIN_S", 0.01)
    get = Cluster.get
    monkeypatch.setattr(
        Cluster, "get", lambda self, path, **query: live if "/pods/" in path else get(self, path, **query)
    )
    image: Any = SimpleNamespace(digest="f" * 64, tree=tmp_path, file=lambda name: tmp_path / name)
    engine = KUBERNETES.configured({"context": "here", "registry": "registry.example.org"})
    with pytest.raises(RequestError, match=r"a pod of 2 CPUs on the node n1, 2 whole ones.*: Insufficient"):
        engine.allotment(image, 2, 1 << 30)
    server.answers[f"POST {PODS}"] = 403, {"message": f'{FORBIDDEN}pod rejected: RuntimeClass "kata" not found'}
    with pytest.raises(RequestError, match=r"node n1.*does not have this runtime class"):
        engine.allotment(image, 2, 1 << 30)
    server.answers["GET /apis/storage.k8s.io/v1/storageclasses"] = 200, {"items": [{"metadata": {"name": "fast"}}]}
    with pytest.raises(RequestError, match="the cluster has no storage class slow") as raised:
        KUBERNETES.configured({**engine.settings, "storage_class": "slow"}).allotment(image, 2, 1 << 30)
    assert raised.value.remedy == "choose --storage-class from: fast"
