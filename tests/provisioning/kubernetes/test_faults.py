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
from provisioning.kubernetes.refusals import fault, refused_as_request
from provisioning.kubernetes.states import PodState
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Stopwatch
from tests.provisioning.kubernetes.conftest import Server

PODS, EVENTS = "/api/v1/namespaces/lab/pods", "/api/v1/namespaces/lab/events"
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}}
OWN = "localhost/virtbench:0123456789ab"
NEVER = f'Container image "{OWN}" is not present with pull policy of Never'
PULL = (
    f'failed to pull and unpack image "{OWN}": failed to resolve reference "{OWN}": failed to do request: '
    'Head "https://localhost/v2/virtbench/manifests/0123456789ab": dial tcp 127.0.0.1:443: connect: connection refused'
)
# Kubelets from 1.35 on say no more of an image that they have, and have pulled under another name before.
REFUSED_BY_THE_KUBELET = [
    ("ErrImageNeverPull", NEVER),
    ("ErrImagePull", PULL),
    ("ImagePullBackOff", f'Back-off pulling image "{OWN}"'),
]


def check_cause_and_ways_out(error: Any) -> None:
    assert error.kind == "image"
    assert "Kubernetes 1.35 or newer" in error.message
    assert "KubeletEnsureSecretPulledImages" in error.message
    assert "--registry" in str(error.remedy)
    assert "imagePullCredentialsVerificationPolicy: NeverVerify" in str(error.remedy)


@pytest.mark.parametrize(("reason", "message"), REFUSED_BY_THE_KUBELET)
def test_an_imported_image_that_a_kubelet_refuses_is_told_by_the_status_of_its_pod(reason: str, message: str) -> None:
    waiting = {"reason": reason, "message": message}
    check_cause_and_ways_out(PodState.of({"status": {"containerStatuses": [{"state": {"waiting": waiting}}]}}).failure)


def events(*told: tuple[str, str]) -> str:
    found = ({"type": "Warning", "reason": reason, "message": message} for reason, message in told)
    return "".join(f"{json.dumps({'type': 'ADDED', 'object': each})}\n" for each in found)


@pytest.mark.parametrize(
    ("reason", "message"), [("ErrImageNeverPull", NEVER), ("Failed", f'Failed to pull image "{OWN}": {PULL}')]
)
def test_an_imported_image_that_a_kubelet_refuses_is_told_by_the_events_text(
    reason: str, message: str, server: Server, cluster: Cluster
) -> None:
    server.answers |= {f"POST {PODS}": (201, POD), f"GET {PODS}": (200, "")}
    server.answers[f"GET {EVENTS}"] = 200, events((reason, message))
    with pytest.raises(MeasurementError) as raised:
        Opening(cluster, "p", Stopwatch()).open(POD)
    check_cause_and_ways_out(raised.value)
    assert message in raised.value.message


def test_a_runtime_class_that_its_node_lacks_is_called_so_at_the_first_event(server: Server, cluster: Cluster) -> None:
    said = 'rpc error: failed to get sandbox runtime: no runtime for "kata" is configured'
    server.answers |= {f"POST {PODS}": (201, POD), f"GET {PODS}": (200, "")}
    server.answers[f"GET {EVENTS}"] = 200, events(("FailedCreatePodSandBox", said))
    with pytest.raises(MeasurementError, match="does not have this runtime class: FailedCreatePodSandBox") as raised:
        Opening(cluster, "p", Stopwatch()).open(POD)
    assert "--runtime-class" in str(raised.value.remedy)


def test_an_image_of_a_registry_is_no_imported_one() -> None:
    for image in ("registry.example.org/virtbench:1", "localhost:5000/virtbench:1"):
        found = fault("engine", f'ErrImagePull: failed to pull and unpack image "{image}": not found')
        assert (found.kind, "KubeletEnsureSecretPulledImages" in found.message) == ("image", False)
        assert "push it there" in str(found.remedy)


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
