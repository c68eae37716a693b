"""A workload that tries to get out, from every target, for real: what it has reached is in its record."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from suite.job.envelope import most_processes
from suite.targets import VMS
from tests.extensions.conftest import Package, package
from tests.integration.machine import docker_daemon, require, require_image, require_root

__all__ = ["package"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SOURCE = Path(__file__).with_name("escapes.py").read_text()
NONE = "0000000000000000"
CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]


@dataclass
class Victims:
    """A file and a process of the host's root."""

    file: Path
    process: "subprocess.Popen[bytes]"
    word: str

    def source(self) -> str:
        return SOURCE.replace("VICTIM-FILE", str(self.file)).replace("VICTIM-ARGUMENT", self.word)


@pytest.fixture
def victims() -> Iterator[Victims]:
    require_root()
    word = f"{secrets.randbelow(10**6) + 5000}.5"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        file = Path(place) / "file"
        file.write_text("the host's")
        process = subprocess.Popen(["sleep", word])
        try:
            yield Victims(file, process, word)
        finally:
            process.kill()
            process.wait()


def run(package: Package, victims: Victims, *words: str) -> dict[tuple[str, str | None], dict[str, Any]]:
    """Run the hostile probe; return the records by target and ablation."""
    package.add("virtbench.probes", "escape", victims.source(), "ESCAPE")
    out = package.place / "out"
    sizes = ("--cpus", f"{CPUS[0]}-{CPUS[-1]}", "--memory", "2G", "--profile", "smoke")
    began = [sys.executable, "-m", "cli", "run", "--scenario", "probe", "--probe", "escape"]
    argv, env = [*began, *sizes, *words, "--out", str(out)], {**os.environ, "PYTHONPATH": package.path}
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=850, cwd=package.place, env=env)
    found = [json.loads(path.read_text()) for path in sorted((out / "trials").glob("*.json"))]
    failed = [record["outcome"] for record in found if record["outcome"]["status"] != "ok"]
    assert not failed, failed
    assert found, ended.stderr
    return {(record["target"], record["ablation"]): record for record in found}


def check_victims(victims: Victims) -> None:
    assert victims.file.read_text() == "the host's"
    assert victims.process.poll() is None
    assert not (require_image().tree / "opt/virtbench/reached").exists()


def check_contained(record: dict[str, Any]) -> None:
    """Nothing reached, no capability, no way to one, and no more processes than the limit."""
    said = record["details"]
    assert said["reached"] == {}, record["target"]
    assert set(said["capabilities"].values()) == {NONE}
    assert said["no_new_privileges"] == "1"
    assert 500 < said["forks"] < most_processes(len(CPUS))


def test_bare_metal_is_contained_and_is_no_root_of_the_host(package: Package, victims: Victims) -> None:
    require_image()
    record = run(package, victims, "--target", "bare-metal")["bare-metal", None]
    check_contained(record)
    assert (record["details"]["user"] > 0x7000_0000, record["details"]["groups"]) == (True, [])
    assert record["details"]["seccomp"] == "0", "the honest baseline has no filter of system calls"
    assert record["job"]["layers"]["confinement"] == "user"
    check_victims(victims)


def test_the_ablation_is_what_bare_metal_was(package: Package, victims: Victims) -> None:
    """That the attempts succeed where nothing keeps them: or they would show nothing of the other targets."""
    require_image()
    record = run(package, victims, "--target", "bare-metal", "--ablate", "confinement")["bare-metal", "confinement"]
    attempts = {"write_through_proc", "remount_the_tree", "set_the_kernel", "see_processes", "end_processes"}
    assert attempts <= record["details"]["reached"].keys()
    assert record["details"]["user"] == 0
    assert (victims.file.read_text() != "the host's", victims.process.wait(10) != 0) == (True, True)
    assert record["details"]["forks"] < most_processes(len(CPUS)), "the limit is that of every target"


@pytest.mark.parametrize(
    "engine", ["runc", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("podman", "docker"))]
)
def test_containers_are_contained(
    engine: str, package: Package, victims: Victims, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_image()
    with ExitStack() as stack:
        if engine == "docker":
            monkeypatch.setenv("DOCKER_HOST", stack.enter_context(docker_daemon()))
        else:
            require("engine", engine)
        record = run(package, victims, "--target", "container", "--engine", engine)["container", None]
    check_contained(record)
    check_victims(victims)


@pytest.mark.thorough
def test_guests_reach_what_is_theirs_and_nothing_of_the_host(package: Package, victims: Victims) -> None:
    require_image()
    require("target", "vm")
    targets = [word for target in sorted(VMS) for word in ("--target", target)]
    found = run(package, victims, *targets, "--engine", "runc")
    check_contained(found["container-vm", None])
    guest = found["vm", None]["details"]
    assert set(guest["reached"]) <= {"set_the_kernel", "make_a_device", "find_devices", "remount_the_tree"}
    assert 500 < guest["forks"] < 2 * most_processes(len(CPUS))
    check_victims(victims)
