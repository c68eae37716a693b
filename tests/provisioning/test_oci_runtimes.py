"""OCI runtimes of docker and podman, and what answers system calls in their containers."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from provisioning.engines.docker import DOCKER
from provisioning.engines.podman import PODMAN
from provisioning.layers.container import GVISOR_BUILD, own_kernel
from suite.errors import BenchError, RequestError
from suite.interfaces import Completed
from tests.provisioning.test_arguments import values
from tests.rendered import CONTAINER

FakeNodes = Callable[..., Any]
BOOT = "9ad39d4c-8b15-4a0d-b99d-1a5a3a0c5f0a"
RUNTIMES = json.dumps({"runc": {"path": "runc"}, "crun": {"path": "/opt/crun"}, "kata": {"runtimeType": "kata.v2"}})


def answered(text: str) -> Completed:
    return Completed(0, text + "\n", "")


def docker(fake_node: FakeNodes) -> Any:
    return fake_node(
        {
            ("docker", "version"): answered("28.0"),
            ("docker", "info"): answered(RUNTIMES),
            ("/opt/crun", "--version"): answered("crun version 1.8\ncommit: 0"),
        }
    )


def test_docker_runs_by_the_runtime_that_its_daemon_has(fake_node: FakeNodes) -> None:
    node, crun = docker(fake_node), DOCKER.run_by("crun")
    assert crun.version(node) == "28.0, crun version 1.8"
    assert DOCKER.run_by("kata").version(node) == "28.0, kata", "found by its type, it has no program to ask"
    assert values(crun.run_argv(CONTAINER), "--runtime") == ["crun"]
    with pytest.raises(RequestError, match="the docker of fake has no OCI runtime youki"):
        DOCKER.run_by("youki").version(node)


def test_podman_is_asked_for_the_runtime(fake_node: FakeNodes) -> None:
    asks = ("podman", "--runtime", "crun")
    node = fake_node({("podman", "version"): answered("4.3.1"), asks: answered("crun version 1.8\ncommit: 0")})
    crun = PODMAN.run_by("crun")
    assert crun.version(node) == "4.3.1, crun version 1.8"
    assert values(crun.run_argv(CONTAINER), "--runtime") == ["crun"]
    with pytest.raises(RequestError, match="no OCI runtime crun that works"):
        crun.version(fake_node({("podman", "version"): answered("4.3.1"), asks: Completed(125, "", "not found")}))


DENIED = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get ..."
DOWN = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
MACHINES = {"docker": DOCKER, "podman": PODMAN}


@pytest.mark.parametrize(("said", "remedy"), [(DENIED, "add the user to the group docker"), (DOWN, "start the daemon")])
def test_a_docker_that_does_not_serve_this_user_is_not_to_be_started(
    said: str, remedy: str, fake_node: FakeNodes
) -> None:
    with pytest.raises(BenchError, match="docker does not work on fake") as caught:
        DOCKER.version(fake_node({("docker", "version"): Completed(1, "", f"{said}\n")}))
    assert remedy in str(caught.value.remedy)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize(
    ("reported", "elsewhere"),
    [
        (answered("h1 6.1.0-18-amd64 8589934592"), False),
        (answered("h2 6.1.0-18-amd64 8589934592"), True),
        (answered("h1 6.10.14-linuxkit 8589934592"), True),
        (answered("h1 6.1.0-18-amd64 8589938688"), True),
        (answered("/var/lib/docker"), True),
        (Completed(125, "", "Error: template: info:1:2: can't evaluate field KernelVersion"), False),
    ],
)
def test_an_engine_whose_service_is_on_another_machine_is_refused(
    name: str, reported: Completed, elsewhere: bool, fake_node: FakeNodes
) -> None:
    node = fake_node(
        {
            (name, "info"): reported,
            ("uname",): answered("h1 6.1.0-18-amd64"),
            ("cat", "/proc/meminfo"): answered("MemTotal:        8388608 kB\nMemFree: 1 kB"),
        }
    )
    if not elsewhere:
        MACHINES[name].check_machine(node)
        return
    with pytest.raises(RequestError, match=f"the containers of {name} run on another machine than fake") as caught:
        MACHINES[name].check_machine(node)
    assert "DOCKER_HOST" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("inside", "kernel"),
    [
        (f"Linux version 6.1\n{BOOT}", None),
        ("Linux version 6.1\n00000000-8b15-4a0d-b99d-1a5a3a0c5f0a", "virtual machine"),
        (f"Linux version 4.4.0 {GVISOR_BUILD}", "sentry"),
        ("Linux version 6.1", None),
    ],
)
def test_a_kernel_of_its_own_is_seen_by_its_boot(fake_node: FakeNodes, inside: str, kernel: str | None) -> None:
    node = fake_node({("enter", "cat"): answered(inside), ("cat",): answered(BOOT)}, local=True)
    assert own_kernel(node, node, ["enter"]) == kernel


def test_a_pod_is_compared_with_the_kernel_of_its_node(fake_node: FakeNodes) -> None:
    pod = fake_node({("cat",): answered(f"Linux version 6.1\n{BOOT}")}, facts={"pod": {"boot_id": BOOT}})
    assert own_kernel(cast("Any", fake_node(local=True)), pod, []) is None
    pod.facts = {"pod": {"boot_id": "00000000"}}
    assert own_kernel(cast("Any", fake_node(local=True)), pod, []) == "virtual machine"
