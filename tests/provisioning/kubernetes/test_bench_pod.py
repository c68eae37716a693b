"""Bench in a pod of its own: what it opens is owned by it, and it starts the bench of its node."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import certifi
import pytest

from provisioning.engines.base import ContainerSpec
from provisioning.kubernetes import owned
from provisioning.kubernetes.bench_pod import ALL_OF_THE_NODE, run_outside
from provisioning.kubernetes.cluster import Cluster
from provisioning.kubernetes.pod import Placement, manifest
from suite.errors import RequestError
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
def test_interrupted_it_waits_until_the_far_side_has_ended_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
