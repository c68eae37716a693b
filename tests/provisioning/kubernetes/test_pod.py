"""The pod that is sent, held against the list of what makes pods comparable; and what admission does to it."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from provisioning.engines.base import ContainerSpec
from provisioning.engines.kubernetes import KUBERNETES
from provisioning.engines.options import PodOptions
from provisioning.kubernetes.opening import changed, refuse_unfair
from provisioning.kubernetes.pod import Placement, manifest
from suite.errors import MeasurementError
from suite.job.ablations import properties_of
from suite.job.envelope import GIB, parse_bytes
from suite.registries import ENGINES

SPEC = ContainerSpec("virtbench-0123456789ab", "f" * 64, "/tree", "2-3", 2 * GIB)
PLACE = Placement("n1", "localhost/virtbench:ffffffffffff")


def test_what_a_pod_cannot_be_given_is_refused_and_what_it_can_is_not() -> None:
    for name in ("seccomp", "network", "isa", "huge-pages", "channels-last"):
        assert KUBERNETES.hindrance(properties_of(name)) is None
    for name in ("rootfs", "memory-limit", "disk-limit", "disk-iops", "data-layer", "pinning"):
        assert KUBERNETES.hindrance(properties_of(name))
    assert ENGINES.options_of("kubernetes") is PodOptions


def live(sent: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as a server has it: with defaults, quantities of its own spelling, and a class of service."""
    found = copy.deepcopy(sent)
    del found["spec"]["hostPID"]
    found["spec"] |= {"schedulerName": "default-scheduler", "serviceAccountName": "default"}
    for kind in ("requests", "limits"):
        found["spec"]["containers"][0]["resources"][kind]["memory"] = "2Gi"
    return {**found, "status": {"qosClass": "Guaranteed"}}


def test_the_servers_defaults_are_no_changes() -> None:
    sent = manifest(SPEC, PLACE)
    assert refuse_unfair(sent, live(sent)) == []


@pytest.mark.parametrize(
    ("given", "written"),
    [("4G", "4294967296"), ("3000M", "3145728k"), ("2000000000", "2G"), ("1500000K", "1536M"), ("2G", "2Gi")],
)
def test_a_quantity_is_the_same_in_any_spelling_of_the_server(given: str, written: str) -> None:
    sent = manifest(replace(SPEC, memory_bytes=parse_bytes(given)), PLACE)
    found = copy.deepcopy(sent)
    for cpu, differences in (("2", 0), ("2000m", 0), ("2001m", 2)):
        resources = {kind: {"cpu": cpu, "memory": written} for kind in ("requests", "limits")}
        found["spec"]["containers"][0]["resources"] = resources
        assert len(changed(sent, found)) == differences, cpu


def test_harmless_changes_are_shown() -> None:
    sent = manifest(replace(SPEC, gpus=1), PLACE)
    found = live(sent)
    found["metadata"]["annotations"]["sidecar.istio.io/inject"] = "true"
    found["spec"]["tolerations"].append({"key": "other"})
    assert refuse_unfair(sent, found) == [
        "metadata.annotations.sidecar.istio.io/inject: 'true' instead of 'false'",
        "spec.tolerations: {'key': 'other'} was added",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda pod: pod["spec"]["containers"].append({"name": "istio-proxy"}), "istio-proxy was added"),
        (lambda pod: pod["spec"]["containers"][0]["resources"]["requests"].update(cpu="500m"), "'500m' instead of '2'"),
        (lambda pod: pod["spec"]["securityContext"].pop("seccompProfile"), "seccompProfile"),
        (lambda pod: pod["status"].update(qosClass="Burstable"), "'Burstable' instead of 'Guaranteed'"),
        (lambda pod: pod["spec"]["volumes"].append({"name": "token"}), "token was added"),
    ],
)
def test_a_change_that_breaks_the_comparison_is_refused_with_the_reason(change: Any, said: str) -> None:
    sent = manifest(SPEC, PLACE)
    found = live(sent)
    change(found)
    with pytest.raises(MeasurementError, match="not comparable") as error:
        refuse_unfair(sent, found)
    assert said in error.value.message
    assert (error.value.kind, bool(error.value.remedy)) == ("admission", True)
