"""What becomes of a run whose engine chooses the CPUs itself, and what such an engine cannot be asked for."""

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commands.run.plan import _allotments, _allotted
from commands.run.validate import check_engine, refuse_ignored
from provisioning.engines.base import Allotment, default_engine, get_engine
from provisioning.engines.kubernetes import KubernetesEngine
from provisioning.kubernetes.refusals import AwayError
from suite.errors import RequestError
from suite.interfaces import Node
from suite.job.envelope import GIB, Envelope
from suite.job.properties import AS_IT_IS
from suite.registries import ENGINES
from suite.request.request import RunRequest
from tests.jobs import plan_of
from tests.provisioning.kubernetes.conftest import Server, server

__all__ = ["server"]
ENVELOPE = Envelope(cpus=(0,), memory_bytes=GIB, threads=1)


def allotted(
    found: Allotment | None,
    *targets: str,
    note: Callable[[str], None] = print,
    node: str = "here",
    inventory: object = None,
) -> Envelope:
    """Return the envelope of targets beside pods of a node that is this machine, or another one."""

    def check_machine(machine: Node) -> None:
        if node != "here":
            raise RequestError(f"{node} is another machine than {machine.name}")

    engine = SimpleNamespace(allotment=lambda *_: found, check_machine=check_machine)
    choices = SimpleNamespace(
        engine="kubernetes", container_engine=engine, engines={"container": engine}, image=None, inventory=inventory
    )
    resolved: Any = SimpleNamespace(choices=choices, targets=targets, machines=None)
    return _allotted(resolved, ENVELOPE, _allotments(resolved, ENVELOPE, 1), note)


def test_every_target_is_pinned_to_the_cpus_that_the_kubelet_chose() -> None:
    notes: list[str] = []
    found = allotted(Allotment((1,)), "bare-metal", "container", note=notes.append)
    assert (found.cpus, found.pinning, found.node_chosen) == ((1,), None, True)
    assert notes == ["kubernetes gives the CPUs 1: every target is pinned to them"]


def test_without_cpus_by_number_every_target_has_a_quota_and_is_not_pinned() -> None:
    notes: list[str] = []
    found = allotted(Allotment(None), "bare-metal", "container", note=notes.append)
    assert found.pinning == "quota"
    assert "quota of 1 CPUs" in notes[0]
    usual = next(plan_of(envelope=ENVELOPE).trials())
    assert usual.properties == AS_IT_IS
    assert usual.with_job(envelope=found).properties == replace(AS_IT_IS, pinned=False)


def test_pods_of_another_machine_are_compared_with_pods_alone() -> None:
    with pytest.raises(RequestError, match="n1 is another machine than localhost"):
        allotted(Allotment((1,)), "bare-metal", "container", node="n1")
    assert allotted(Allotment((1,)), "container", node="n1").cpus == (1,)


def test_beside_pods_of_another_machine_everything_has_the_cpus_of_the_pod() -> None:
    assert allotted(Allotment((1,)), "bare-metal", "container", node="n1", inventory="hosts.toml").cpus == (1,)


def test_an_engine_that_chooses_no_cpus_leaves_the_envelope_as_it_is() -> None:
    assert allotted(None, "bare-metal", "container") is ENVELOPE


@pytest.mark.parametrize(
    ("given", "targets", "said"),
    [
        ({"cpus": "0-1"}, ("container",), "--cpus 0-1"),
    ],
)
def test_what_is_not_built_for_pods_is_refused(given: dict[str, str], targets: tuple[str, ...], said: str) -> None:
    choices: Any = SimpleNamespace(engine="kubernetes", container_engine=get_engine("kubernetes"), vm_node=None)
    with pytest.raises(RequestError, match=f"does not go with {said}"):
        check_engine(RunRequest.of({"engine": "kubernetes", **given}), choices, targets)
    choices.container_engine = get_engine("runc")
    check_engine(RunRequest.of({"engine": "runc", **given}), choices, targets)


def test_an_option_of_a_cluster_is_refused_with_another_engine() -> None:
    refuse_ignored(RunRequest.of({"target": ["container"], "engine": "kubernetes", "namespace": "lab"}))
    for engine in ({"engine": "runc"}, {}):
        with pytest.raises(RequestError, match="--namespace would change nothing"):
            refuse_ignored(RunRequest.of({"target": ["container"], "namespace": "lab", **engine}))


def test_a_cluster_is_never_chosen_where_it_is_not_named() -> None:
    assert default_engine(["kubernetes"]) == default_engine([]) == "runc"
    assert default_engine(ENGINES.names()) == "docker"


def test_the_doctor_says_yes_only_when_the_server_has_answered_within_two_seconds(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node: Any = SimpleNamespace(local=True, name="here")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(RequestError, match="no kubeconfig"):
        KubernetesEngine().version(node)
    server.answers["GET /version"] = 200, {"gitVersion": "v1.30.0"}
    server.kubeconfig(tmp_path / "config", current="here")
    assert KubernetesEngine().version(node) == "v1.30.0 of the server of the context here"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        server.kubeconfig(tmp_path / "config", current="here")
        begin_s = time.monotonic()
        with pytest.raises(AwayError, match="does not answer"):
            KubernetesEngine().version(node)
        assert time.monotonic() - begin_s < 20, "and not after the 30 s of other requests"
