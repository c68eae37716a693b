"""What becomes of a run whose engine chooses the CPUs itself, and what such an engine cannot be asked for."""

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioning.engines.base import default_engine
from provisioning.engines.kubernetes import KubernetesEngine
from provisioning.kubernetes.refusals import AwayError
from provisioning.remote.discovery import DiscoveredMachine
from suite.errors import RequestError
from suite.inventory import Inventory
from suite.job.envelope import GIB, Envelope
from suite.job.properties import AS_IT_IS
from suite.registries import ENGINES
from suite.request.request import RunRequest
from tests.jobs import plan_of
from tests.provisioning.kubernetes.conftest import Server, server
from tests.sites import cluster, inputs_of, machines, pods

__all__ = ["server"]
ENVELOPE = Envelope(cpus=(0,), memory_bytes=GIB, threads=1)


def allotted(
    cpus: tuple[int, ...] | None,
    *targets: str,
    note: Callable[[str], None] = print,
    node: str = "",
    elsewhere: bool = False,
) -> Envelope:
    """Return the envelope of targets beside pods of a node that is this machine, or another one."""
    machine = DiscoveredMachine("m1", (0,), 2 * GIB, "avx2", 0.0)
    inventory = Inventory.model_validate({"node": [{"name": "m1", "host": "m1"}]})
    beside = machines(inventory, machine, engine="kubernetes", targets=targets) if elsewhere else None
    site = cluster(targets, beside, engines={"container": pods(cpus, node=node)})
    request = RunRequest.of({"engine": "kubernetes", "cpus": "1", "memory": "1G", "isa": "native"})
    envelope: Envelope = site.part(inputs_of(request, note))["envelope"]
    return envelope


def test_every_target_is_pinned_to_the_cpus_that_the_kubelet_chose() -> None:
    notes: list[str] = []
    found = allotted((1,), "bare-metal", "container", note=notes.append)
    assert (found.cpus, found.pinning, found.node_chosen) == ((1,), None, True)
    assert notes == ["kubernetes gives the CPUs 1: every target is pinned to them"]


def test_without_cpus_by_number_every_target_has_a_quota_and_is_not_pinned() -> None:
    notes: list[str] = []
    found = allotted(None, "bare-metal", "container", note=notes.append)
    assert found.pinning == "quota"
    assert "quota of 1 CPUs" in notes[0]
    usual = next(plan_of(envelope=ENVELOPE).trials())
    assert usual.properties == AS_IT_IS
    assert usual.with_job(envelope=found).properties == replace(AS_IT_IS, pinned=False)


def test_pods_of_another_machine_are_compared_with_pods_alone() -> None:
    with pytest.raises(RequestError, match="n1 is another machine than localhost"):
        allotted((1,), "bare-metal", "container", node="n1")
    assert allotted((1,), "container", node="n1").cpus == (1,)


def test_beside_pods_of_another_machine_everything_has_the_cpus_of_the_pod() -> None:
    assert allotted((1,), "bare-metal", "container", node="n1", elsewhere=True).cpus == (1,)


def test_what_is_not_built_for_pods_is_refused() -> None:
    asked = RunRequest.of({"engine": "kubernetes", "cpus": "0-1"})
    with pytest.raises(RequestError, match="does not go with --cpus 0-1"):
        cluster().refuse(inputs_of(asked), {})


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
