"""The pod that is sent, what makes pods comparable, and what admission does; the node's bench, started from one."""

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioning.engines import kubernetes
from provisioning.engines.base import ContainerSpec
from provisioning.engines.kubernetes import KUBERNETES
from provisioning.engines.options import PodOptions
from provisioning.kubernetes.bench_pod import ALL_OF_THE_NODE, run_outside
from provisioning.kubernetes.opening import changed, refuse_unfair
from provisioning.kubernetes.pod import Placement, manifest
from suite.errors import MeasurementError, RequestError
from suite.job.ablations import properties_of
from suite.job.envelope import GIB, parse_bytes
from suite.registries import ENGINES
from tests.provisioning.conftest import fake_node

SPEC = ContainerSpec("virtbench-0123456789ab", "f" * 64, "/tree", "2-3", 2 * GIB)
PLACE = Placement("n1", "localhost/virtbench:ffffffffffff")


def test_what_a_pod_cannot_be_given_is_refused_and_what_it_can_is_not() -> None:
    for name in ("seccomp", "network", "isa", "huge-pages", "channels-last"):
        assert KUBERNETES.hindrance(properties_of(name)) is None
    for name in ("rootfs", "memory-limit", "disk-limit", "disk-iops", "data-layer", "pinning"):
        assert KUBERNETES.hindrance(properties_of(name))
    assert ENGINES.options_of("kubernetes") is PodOptions


@pytest.mark.parametrize(("missed", "here", "pid"), [(2, True, 7), (99, True, None), (0, False, None)])
def test_the_first_process_of_a_pod_is_looked_for_until_its_runtime_has_started_it(
    missed: int, here: bool, pid: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the pod would have used nothing: the client alone would be counted."""
    looks = iter([None] * missed + [SimpleNamespace(pid=7)])
    monkeypatch.setattr(kubernetes, "first_process", lambda _: next(looks))
    monkeypatch.setattr(kubernetes, "SEEN_WITHIN_S", 0.1)
    engine = KUBERNETES.configured({})
    engine.__dict__["_node"] = SimpleNamespace(here=here)
    assert engine.main_pid(fake_node(), "virtbench-0123456789ab") == pid


def live(sent: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as a server has it: with defaults, quantities of its own spelling, and a class of service."""
    found = copy.deepcopy(sent)
    del found["spec"]["hostPID"]
    found["spec"] |= {"schedulerName": "default-scheduler", "serviceAccountName": "default"}
    for kind in ("requests", "limits"):
        found["spec"]["containers"][0]["resources"][kind]["memory"] = "2Gi"
    return {**found, "status": {"qosClass": "Guaranteed"}}


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


def test_harmless_changes_are_shown_and_the_servers_defaults_are_none() -> None:
    sent = manifest(replace(SPEC, gpus=1), PLACE)
    found = live(sent)
    found["metadata"]["annotations"]["sidecar.istio.io/inject"] = "true"
    found["spec"]["tolerations"].append({"key": "other"})
    refuse_unfair(sent, found)
    assert changed(sent, found) == [
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


SIDECAR = {
    "name": "mesh",
    "restartPolicy": "Always",
    "resources": {kind: {"cpu": "1", "memory": "1Gi"} for kind in ("requests", "limits")},
}
TOKEN = "a-secret-token"


@pytest.mark.parametrize(
    ("of_spec", "of_container", "refused"),
    [
        ({"initContainers": [SIDECAR]}, {}, "spec.initContainers: mesh was added"),
        ({}, {"env": [{"name": "LD_PRELOAD", "value": TOKEN}]}, "spec.containers[0].env: LD_PRELOAD was added"),
        ({}, {"livenessProbe": {"exec": {"command": ["stress"]}}}, "spec.containers[0].livenessProbe was added"),
        ({}, {"lifecycle": {"postStart": {"exec": {"command": ["x"]}}}}, "spec.containers[0].lifecycle was added"),
        ({}, {"args": ["--x"]}, "spec.containers[0].args was added"),
        ({"runtimeClassName": "kata"}, {}, "spec.runtimeClassName: 'kata' was added"),
    ],
    ids=["native sidecar", "variable of a library", "probe with a command", "hook", "arguments", "runtime class"],
)
def test_what_admission_adds_to_run_in_the_pod_or_with_it_is_refused(
    of_spec: dict[str, Any], of_container: dict[str, Any], refused: str
) -> None:
    sent = manifest(SPEC, PLACE)
    found = live(sent)
    found["spec"] |= of_spec
    found["spec"]["containers"][0] |= of_container
    with pytest.raises(MeasurementError, match="not comparable") as error:
        refuse_unfair(sent, found)
    assert refused in error.value.message
    assert TOKEN not in error.value.message


def test_what_else_admission_adds_is_named_and_the_servers_defaults_are_not() -> None:
    sent = manifest(SPEC, PLACE)
    found = live(sent)
    defaults = {
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "nodeName": "n1",
        "serviceAccount": "default",
    }
    found["spec"] |= {**defaults, "tolerations": [{"key": "node.kubernetes.io/not-ready"}]}
    container = found["spec"]["containers"][0]
    container |= {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
    assert changed(sent, found) == []
    found["spec"] |= {"priority": -10, "priorityClassName": "best-effort", "hostUsers": False}
    container |= {"env": [{"name": "CLUSTER", "value": TOKEN}], "livenessProbe": {"httpGet": {"port": 1}}}
    refuse_unfair(sent, found)
    assert sorted(changed(sent, found)) == [
        "spec.containers[0].env: CLUSTER was added",
        "spec.containers[0].livenessProbe was added",
        "spec.hostUsers: False was added",
        "spec.priority: -10 was added",
        "spec.priorityClassName: 'best-effort' was added",
    ]


POPEN = subprocess.Popen


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started, of which the words after ``--`` run on this machine."""
    found: list[list[str]] = []

    def start(argv: list[str], **options: Any) -> Any:
        found.append(argv)
        return POPEN(["env", *argv[argv.index("--") + 1 :]], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    return found


def test_the_lines_are_its_input_and_its_status_is_passed_on(started: list[list[str]], tmp_path: Path) -> None:
    said = tmp_path / "said"
    script = f"import os, sys; open({str(said)!r}, 'w').write(sys.stdin.readline() + os.environ['HOME']); sys.exit(3)"
    assert run_outside(sys.executable, ["-c", script], ["first", "second"]) == 3
    assert said.read_text() == "first\n/root"
    (argv,) = started
    assert argv[: argv.index("--")] == ["nsenter", "--target", "1", *ALL_OF_THE_NODE]


def test_its_input_stays_open_while_it_runs(started: list[list[str]]) -> None:
    script = "import select, sys; sys.stdin.readline(); sys.exit(bool(select.select([sys.stdin], [], [], 0.2)[0]))"
    assert run_outside(sys.executable, ["-c", script], ["only"]) == 0
    assert len(started) == 1


@pytest.mark.usefixtures("started")
def test_interrupted_it_waits_for_the_far_sides_end_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wait, waits = POPEN.wait, iter([KeyboardInterrupt])

    def interrupted(process: Any, *timeout: Any) -> int:
        for error in waits:
            raise error
        return int(wait(process, *timeout))

    monkeypatch.setattr(POPEN, "wait", interrupted)
    ended = tmp_path / "ended"
    script = f"import sys, time; sys.stdin.read(); time.sleep(0.5); open({str(ended)!r}, 'w').close()"
    with pytest.raises(KeyboardInterrupt):
        run_outside(sys.executable, ["-c", script], ["line"])
    assert ended.exists()


@pytest.mark.usefixtures("started")
def test_a_node_without_this_command_is_refused() -> None:
    with pytest.raises(RequestError, match="cannot start /opt/missing/bench"):
        run_outside("/opt/missing/bench", ["sweep"], ["line"] * 100)
