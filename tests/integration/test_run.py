"""``bench`` as its users have it: real runs on every target, and what happens when something is killed on the way."""

import itertools
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from provisioning.images.image import stamp
from suite.results.store import Run
from tests.integration.bench import RUNC, SMALL, Running, added_since, bench, inside, on, ours, records, refusal, some
from tests.integration.machine import require, require_image, workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(1200)]

ENDLESS = (*SMALL, "--steps", "100000")
"""For what is ended on the way: on a busy machine it would be too late else."""
ALL = ("run", "--scenario", "synthetic", "--target", "all", *SMALL, *RUNC, "--out")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest real run of all four targets."""
    for target in ("bare-metal", "container", "vm", "container-vm"):
        require("target", target)
    directory = tmp_path_factory.mktemp("runs") / "all"
    if (ended := bench(*ALL, str(directory), code=None, timeout_s=1100)).returncode:
        # Emulated CPUs lock up once in many runs; what to do then is what its record says.
        outcomes = {record.outcome.kind for record in records(directory).values()}
        assert outcomes == {None, "guest-locked-up"}, ended.stderr
        bench(*ALL, str(directory), timeout_s=1100)
    return directory


def test_the_records_of_the_four_targets_prove_what_they_are(everything: Path) -> None:
    found = records(everything)
    host = os.uname()
    seen: dict[str, Any] = {target: inside(record) for target, record in found.items()}
    assert {record.outcome.status for record in found.values()} == {"ok"}
    assert {record.environment.host.kernel for record in found.values()} == {host.release}
    assert set(seen) == {"bare-metal", "container", "vm", "container-vm"}
    for target in ("vm", "container-vm"):
        assert seen[target].kernel != host.release
        assert seen[target].accelerator in ("kvm", "tcg")
        assert ("accelerator:tcg" in found[target].substitutes) == (seen[target].accelerator == "tcg")
    for target in ("bare-metal", "container"):
        assert (seen[target].kernel, seen[target].accelerator) == (host.release, "none")
    for target in ("container", "container-vm"):
        engine = seen[target].container_engine
        assert (engine.name, seen[target].pid1, seen[target].seccomp) == ("runc", "sleep", "filter")
        assert engine.version
        assert seen[target].hostname.startswith("virtbench-")
    assert {each.userland_sha256 for each in seen.values()} == {require_image().digest}
    assert all(each.userland_differences == [] for each in seen.values())
    assert len({len(each.cpus) for each in seen.values()}) == 1
    memory = [each.memory_bytes for each in seen.values()]
    assert max(memory) - min(memory) <= 0.02 * max(memory)


def test_a_run_is_compared_and_drawn(everything: Path, tmp_path: Path) -> None:
    json.loads(bench("compare", str(everything), "--json").stdout)
    drawn = bench("compare", str(everything), "--plots", str(tmp_path))
    assert "accelerator:tcg" in drawn.stdout or "kvm" in str(records(everything)["vm"].environment.target)
    assert (tmp_path / "synthetic-forest.png").stat().st_size > 10_000


def test_a_run_that_is_complete_runs_nothing_again(everything: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (everything / "trials").iterdir()}
    assert "4 of 4 trials are there already" in bench(*ALL, str(everything)).stderr
    assert {path: path.stat().st_mtime_ns for path in (everything / "trials").iterdir()} == before


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_every_engine_runs_the_job_is_named_in_the_record_and_is_left_alone_by_clean(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if engine == "docker":
        request.getfixturevalue("docker")
    else:
        require("engine", engine)
    words = ("run", "--target", "container", *SMALL, "--engine", engine, "--out", str(tmp_path / "run"))
    running = Running(tmp_path / "log", *words)
    running.wait_until_it_says("on container: importing")
    bench("clean")
    assert running.process.wait(300) == 0, running.log.read_text()
    seen = inside(records(tmp_path / "run")["container"])
    assert some(seen.container_engine).name == engine
    assert seen.seccomp == "filter"
    assert seen.userland_sha256 == require_image().digest


@pytest.mark.thorough
def test_after_kill_9_in_a_vm_trial_clean_removes_what_is_left_and_records_are_intact(tmp_path: Path) -> None:
    require("target", "vm")
    before = ours()
    for number in itertools.count():
        out = str(tmp_path / f"run-{number}")
        running = Running(tmp_path / f"log-{number}", "run", *on("bare-metal", "vm"), *SMALL, "--out", out)
        running.wait_until_it_says("block 0, ")
        # Every run draws the order in a block anew.
        if next(some(Run(Path(out)).plan()).trials_of(0)).target == "bare-metal":
            break
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(300) == 130
    running.wait_until_it_says("on vm: attesting")
    running.kill()
    left = added_since(before)
    assert left["processes"], "QEMU should have outlived the suite"
    assert left["ledger"]
    bench("clean")
    assert added_since(before) == {}
    assert list(Path(out).rglob(".*.tmp")) == []
    finished = records(Path(out))
    assert finished["bare-metal"].outcome.status == "ok"
    assert "vm" not in finished
    assert "removed: " not in bench("clean").stdout


@pytest.mark.parametrize("target", [pytest.param("bare-metal", marks=pytest.mark.thorough), "container"])
def test_after_kill_9_beside_a_worker_clean_ends_it(target: str, tmp_path: Path) -> None:
    running = Running(tmp_path / "log", "run", *on(target), *ENDLESS, "--out", str(tmp_path / "run"))
    running.wait_until_it_says(f"on {target}: importing")
    running.kill()
    bench("clean")


@pytest.mark.parametrize(
    ("target", "number"),
    [
        pytest.param("bare-metal", signal.SIGINT, marks=pytest.mark.thorough),
        ("container", signal.SIGTERM),
        pytest.param("vm", signal.SIGTERM, marks=pytest.mark.thorough),
    ],
)
def test_a_signal_leaves_nothing_at_all(target: str, number: signal.Signals, tmp_path: Path) -> None:
    require("target", target)
    running = Running(tmp_path / "log", "run", *on(target), *ENDLESS, "--out", str(tmp_path / "run"))
    running.wait_until_it_says(f"on {target}: " + ("opening" if target == "vm" else "importing"))
    time.sleep(2.0 if target == "vm" else 0.2)
    running.process.send_signal(number)
    assert running.process.wait(180) == 130
    assert "Traceback" not in running.log.read_text()


@pytest.mark.parametrize("target", [pytest.param("bare-metal", marks=pytest.mark.thorough), "container"])
def test_a_worker_that_is_killed_is_a_failed_record_and_exit_1(target: str, tmp_path: Path) -> None:
    running = Running(tmp_path / "log", "run", *on(target), *ENDLESS, "--out", str(tmp_path / "run"))
    running.wait_until_it_says(f"on {target}: importing")
    (worker,) = workers()
    worker.kill()
    assert running.process.wait(180) == 1
    outcome = records(tmp_path / "run")[target].outcome
    assert (outcome.status, outcome.kind) == ("failed", "killed")
    assert outcome.command


def test_a_guest_that_cannot_start_says_why_on_its_console(tmp_path: Path) -> None:
    require("target", "vm")
    image = require_image()
    other = tmp_path / "home/images" / image.digest[:12]
    other.mkdir(parents=True)
    for name in ("tree", "initrd.img", "oci.tar"):
        (other / name).symlink_to(image.file(name))
    (other / "disk.img").write_bytes(bytes(1 << 20))
    files = {name: file for name, file in image.files.items() if name != "docker.img"}
    described = image.model_copy(update={"files": {**files, "disk.img": stamp(other / "disk.img")}})
    (other / "image.json").write_text(described.model_dump_json())
    env = {"VIRTBENCH_HOME": str(tmp_path / "home")}
    bench("run", "--target", "vm", *SMALL, "--out", str(tmp_path / "run"), env=env, code=1)
    outcome = records(tmp_path / "run")["vm"].outcome
    assert (outcome.status, outcome.kind) == ("failed", "boot")
    assert "cannot mount the userland" in outcome.output_tail


def test_doctor_gives_a_hanging_probe_guest_up_and_says_why_kvm_is_not_usable(tmp_path: Path) -> None:
    # An empty home: the probe guest is booted anew, and no answer is remembered. On a quiet machine it takes 9 s.
    ended = bench("doctor", "--json", env={"VIRTBENCH_HOME": str(tmp_path)}, code=None, timeout_s=120)
    kvm = next(check for check in json.loads(ended.stdout)["checks"] if check["name"] == "kvm")
    if kvm["usable"]:
        pytest.skip("KVM is usable here")
    assert kvm["reason"]
    assert kvm["remedy"]
    assert "KVM is not usable" in refusal("run", "--target", "vm", *SMALL, "--accel", "kvm", "--out", str(tmp_path))
