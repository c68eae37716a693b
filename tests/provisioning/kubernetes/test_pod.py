"""The pod that is sent, held against the list of what makes pods comparable; and what admission does to it."""

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioning.engines.base import ContainerSpec
from provisioning.engines.kubernetes import KUBERNETES
from provisioning.engines.options import PodOptions
from provisioning.kubernetes.node import ClusterNode
from provisioning.kubernetes.opening import changed, refuse_unfair
from provisioning.kubernetes.pod import Placement, manifest
from provisioning.kubernetes.states import events_of, last_event
from suite.errors import MeasurementError, RequestError
from suite.job.ablations import properties_of
from suite.job.envelope import GIB, parse_bytes
from suite.process_identity import boot_id
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


TAINTED = {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}
PREFERRED = {"taints": [{"key": "busy", "effect": "PreferNoSchedule"}]}


@pytest.mark.parametrize(
    ("nodes", "chosen"),
    [
        ({"cp": ("here", "x", TAINTED), "w": ("here", "own", {})}, "w"),
        ({"a": ("here", "x", {}), "b": ("here", "own", PREFERRED)}, "b"),
        ({"cp": ("here", "x", TAINTED), "w": ("here", "y", {})}, "w"),
        ({"old": ("here", "", {}), "b": ("there", "own", {})}, "old"),
        ({"a": ("here", "x", {}), "b": ("here", "y", {})}, None),
        ({"cp": ("here", "own", TAINTED), "a": ("there", "x", {}), "b": ("there", "y", {})}, None),
    ],
)
def test_the_default_node_takes_pods_and_is_this_machine_by_its_boot_and_its_id(
    nodes: dict[str, tuple[str, str, Any]], chosen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "machine-id").write_text("own\n")
    monkeypatch.setattr("provisioning.kubernetes.node.MACHINE_ID", tmp_path / "machine-id")
    items = []
    for name, (boot, machine, spec) in nodes.items():
        info = {"bootID": boot_id() if boot == "here" else boot, "machineID": machine}
        items.append({"metadata": {"name": name}, "spec": spec, "status": {"nodeInfo": info}})
    cluster: Any = SimpleNamespace(context="kind", get=lambda path: {"items": items} if path[-5:] == "nodes" else {})
    if chosen:
        assert ClusterNode.find(cluster, None).name == chosen
        return
    with pytest.raises(RequestError, match="no node of kind that takes any pod is this machine") as caught:
        ClusterNode.find(cluster, None)
    assert "choose a --node of: a, b" in str(caught.value.remedy)
    assert ClusterNode.find(cluster, "a").here is False, "a container of this machine is no place to import an image"


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


def test_the_newest_event_explains_whichever_time_its_reporter_gives() -> None:
    items = [
        {"reason": "Preempted", "message": "by p", "eventTime": "2024-04-16T04:30:40.408032Z", "lastTimestamp": None},
        {"reason": "Again", "message": "", "series": {"lastObservedTime": "2024-04-16T04:31:00.5Z"}, "eventTime": None},
        {"reason": "Killing", "message": "", "eventTime": "2024-04-16T04:30:39Z", "lastTimestamp": None},
        {"reason": "Started", "message": "", "lastTimestamp": "2024-04-16T04:30:40Z"},
        {"reason": "Undated", "message": "", "lastTimestamp": None},
    ]
    cluster: Any = SimpleNamespace(path=lambda *_: "/", get=lambda *_, **__: {"items": items})
    names = [event["reason"] for event in events_of(cluster, "p")]
    assert names == ["Undated", "Killing", "Started", "Preempted", "Again"]
    assert last_event(events_of(cluster, "p")) == "Again: "
