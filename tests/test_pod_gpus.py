"""GPUs of pods: what their manifests ask for, what is refused, and which cards the inside has."""

from dataclasses import replace
from typing import Any

import pytest

from provisioning.engines.kubernetes import KubernetesEngine, _cards_in
from provisioning.gpus import Card
from provisioning.kubernetes.node import ClusterNode
from provisioning.kubernetes.opening import refuse_unfair
from provisioning.kubernetes.pod import manifest
from provisioning.sites.cluster import ClusterSite
from suite.errors import MeasurementError, RequestError
from suite.job.envelope import GIB, Envelope
from suite.request.request import RunRequest
from tests.jobs import plan_of
from tests.provisioning.kubernetes.test_pod import PLACE, SPEC
from tests.sites import cluster, inputs_of, pods

CARD = Card("0", "H100", "580.1", "GPU-00000000", (9, 0))
ENVELOPE = Envelope(cpus=(1,), memory_bytes=GIB, threads=1)


def request(**options: Any) -> RunRequest:
    words = {"engine": "kubernetes", "device": "cuda", "target": ("container",), "cpus": "1", "memory": "1G"}
    return RunRequest.of({**words, "isa": "native", **options})


def test_a_pod_asks_for_gpus_by_number_and_tolerates_the_taint_of_their_nodes() -> None:
    usual, sent = manifest(SPEC, PLACE), manifest(replace(SPEC, gpus=2), replace(PLACE, runtime_class="nvidia"))
    (container,) = sent["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == container["resources"]["requests"]["nvidia.com/gpu"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert sent["spec"]["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert sent["spec"]["runtimeClassName"] == "nvidia"
    assert "tolerations" not in usual["spec"]
    assert "nvidia.com/gpu" not in str(usual)
    with_token = {**sent, "spec": {**sent["spec"], "tolerations": [*sent["spec"]["tolerations"], {"key": "other"}]}}
    assert refuse_unfair(sent, with_token) == ["spec.tolerations: {'key': 'other'} was added"]


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
    with pytest.raises(RequestError, match=said) as error:
        cluster(asked.targets.target, node="n1").refuse(inputs_of(asked), {})
    assert error.value.remedy


def test_pods_need_no_gpu_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioning.sites.here.examined", pytest.fail)
    ClusterSite.refuse_request(request())


def test_cards_that_are_too_old_for_the_image_are_refused_as_here(monkeypatch: pytest.MonkeyPatch) -> None:
    site = cluster(engines={"container": pods((1,), cards=(replace(CARD, driver="470.1"),))})
    monkeypatch.setattr("provisioning.images.image.Image.cuda", "13.0")
    with pytest.raises(RequestError, match=r"GPU 0: CUDA 13\.0 needs driver 580, not 470\.1"):
        site.part(inputs_of(request()))


def test_the_instances_that_compute_have_gpus_and_the_others_none() -> None:
    training = plan_of(targets=("container",), envelope=ENVELOPE, device="cuda", devices=2)
    (trial,) = training.trials()
    site = cluster(engines={"container": pods((1,))})
    (layer,) = site.layers(trial, ENVELOPE)
    assert getattr(layer, "gpu_count", 0) == 2
    asked = request(scenario="distributed", node="n1,n2,n3", workers=2, ps=1)
    joined = cluster(joined=(pods((1,)), pods((2,)), pods((3,))), node="n1,n2,n3")
    assert list(joined.computing(inputs_of(asked))) == [False, True, True]


def test_the_inside_has_the_cards_and_as_many_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioning.engines.kubernetes.examined", lambda _: ([CARD], None, None))
    inside: Any = None
    assert [card.uuid for card in _cards_in(inside, 1)] == ["GPU-00000000"]
    assert _cards_in(inside, 0) == ()
    with pytest.raises(MeasurementError, match="the pod has 1 GPUs instead of 2") as error:
        _cards_in(inside, 2)
    assert "--runtime-class" in str(error.value.remedy)
