"""``bench`` as its users have it: real runs on every target, and what happens when something is killed on the way."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from provisioning import ledger
from provisioning.images.image import Image
from provisioning.paths import runtime
from provisioning.processes import TOKEN
from suite.records.record import TrialRecord
from tests.integration.machine import docker_daemon, require, require_image, require_root_and_image, workers
from tests.integration.terminal import OnTerminal
from tests.integration.trials import records_in

pytestmark = pytest.mark.integration

BENCH = str(Path(sys.executable).with_name("bench"))
SMALL = ("--profile", "smoke", "--steps", "1", "--warmup-steps", "0")
RUNC = ("--engine", "runc")
ENDLESS = (*SMALL, "--steps", "100000")
"""For what is ended on the way: on a busy machine it would be too late else."""


def on(target: str) -> tuple[str, ...]:
    """Return the words for a target; an engine is refused where there is no container."""
    return ("--target", target, *(RUNC if "container" in target else ()))


def bench(*words: str, env: dict[str, str] | None = None, timeout_s: float = 580) -> subprocess.CompletedProcess[str]:
    argv, environment = [BENCH, *words], {**os.environ, **(env or {})}
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=timeout_s, env=environment)


def measured(run: Path, *words: str, timeout_s: float = 580) -> list[TrialRecord]:
    """Have bench measure, and return the records of the run."""
    ended = bench("run", *words, "--out", str(run), timeout_s=timeout_s)
    assert ended.returncode == 0, ended.stderr
    return records_in(run)


def records(directory: Path) -> dict[str, TrialRecord]:
    found = records_in(directory)
    return {record.target + (f"+{record.ablation}" if record.ablation else ""): record for record in found}


def ours() -> dict[str, list[str]]:
    """Everything of the suite's outside of its images and results that is there now, and not of tests beside these."""
    carrying = []
    beside = _held_beside()
    for process in psutil.process_iter():
        try:
            if TOKEN in process.environ() and not _beside(process.pid):
                carrying.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    # What goes while it is looked at is passed over.
    groups = [place for place, _, _ in os.walk("/sys/fs/cgroup") if Path(place).name.startswith("virtbench-")]
    files = [f"{place}/{name}" for place, _, names in os.walk(runtime()) for name in names]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if "virtbench" in line]
    # An entry is there before its thing and longer: what came or went meanwhile stands in one of the two.
    beside |= _held_beside()
    named = (re.search(r"virtbench-[a-z0-9-]+|/.+", what) for what in beside)
    names = {found[0].strip("/") for found in named if found}
    podman = any(what.startswith("podman:") for what in beside)  # which names its mounts itself

    def theirs(path: str) -> bool:
        return any(f"/{name}/" in f"{path}/" for name in names) or (podman and "/overlay-containers/" in path)

    groups, files = ([path for path in paths if not theirs(path)] for paths in (groups, files))
    mounts = [line for line in mounts if not theirs(line.split()[1])]
    entries = [path.name for path, entry in ledger._readable() if not _beside(entry.owner_pid)]
    return {
        "processes": carrying, "groups": groups, "files": files, "mounts": mounts, "ledger": entries,
        "workers": [str(process.pid) for process in workers()],
    }  # fmt: skip


def _held_beside() -> set[str]:
    return {entry.what for _, entry in ledger._readable() if _beside(entry.owner_pid)}


def _beside(pid: int) -> bool:
    """Return whether a process is of the tests that run at the same time: of a worker of pytest."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        # A worker itself sets it later than what the kernel shows of its environment.
        itself = "exec(eval(sys.stdin.readline()))" in str(process.cmdline())
        return itself or "PYTEST_XDIST_WORKER" in process.environ()
    return False


NOTHING: dict[str, list[str]] = {k: [] for k in ("processes", "groups", "files", "mounts", "ledger", "workers")}


class Running(OnTerminal):
    """A ``bench run`` in the background."""

    def __init__(self, log: Path, *words: str) -> None:
        super().__init__(log, BENCH, "run", *words)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(autouse=True)
def _machine() -> None:
    require_root_and_image()
    assert ours() == NOTHING, "an earlier test, or a bench that is running now, left something"


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest real run of all four targets."""
    for target in ("bare-metal", "container", "vm", "container-vm"):
        require("target", target)
    directory = tmp_path_factory.mktemp("runs") / "all"
    words = ("run", "--scenario", "synthetic", "--target", "all", *SMALL, *RUNC, "--out", str(directory))
    ended = bench(*words, timeout_s=1100)
    if {record.outcome.kind for record in records(directory).values()} == {None, "guest-locked-up"}:
        # Emulated CPUs do that once in many runs; what to do then is what its record says.
        ended = bench(*words, timeout_s=1100)
    assert ended.returncode == 0, ended.stderr
    return directory


@pytest.mark.timeout(1200)
def test_the_records_of_the_four_targets_prove_what_they_are(everything: Path) -> None:
    found = records(everything)
    host = os.uname()
    seen: dict[str, Any] = {}
    for target, record in found.items():
        assert record.outcome.status == "ok"
        assert record.environment.host.kernel == host.release
        assert record.environment.target is not None
        seen[target] = record.environment.target
    assert set(seen) == {"bare-metal", "container", "vm", "container-vm"}
    for target in ("vm", "container-vm"):
        assert seen[target].kernel != host.release
        assert seen[target].accelerator in ("kvm", "tcg")
        assert ("accelerator:tcg" in found[target].substitutes) == (seen[target].accelerator == "tcg")
    for target in ("bare-metal", "container"):
        assert seen[target].kernel == host.release
        assert seen[target].accelerator == "none"
    for target in ("container", "container-vm"):
        assert seen[target].container_engine.name == "runc"
        assert seen[target].container_engine.version
        assert seen[target].hostname.startswith("virtbench-")
        assert seen[target].pid1 == "sleep"
        assert seen[target].seccomp == "filter"
    assert {each.userland_sha256 for each in seen.values()} == {require_image().digest}
    assert all(each.userland_differences == [] for each in seen.values())
    assert len({len(each.cpus) for each in seen.values()}) == 1
    memory = [each.memory_bytes for each in seen.values()]
    assert max(memory) - min(memory) <= 0.02 * max(memory)
    assert ours() == NOTHING


@pytest.mark.timeout(1200)
def test_a_run_is_compared_and_drawn(everything: Path, tmp_path: Path) -> None:
    ended = bench("compare", str(everything), "--json")
    assert ended.returncode == 0, ended.stderr
    json.loads(ended.stdout)
    ended = bench("compare", str(everything), "--plots", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert "accelerator:tcg" in ended.stdout or "kvm" in str(records(everything)["vm"].environment.target)
    assert (tmp_path / "synthetic-throughput.png").stat().st_size > 10_000


@pytest.mark.timeout(1200)
def test_a_run_that_is_complete_runs_nothing_again(everything: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (everything / "trials").iterdir()}
    ended = bench("run", "--scenario", "synthetic", "--target", "all", *SMALL, *RUNC, "--out", str(everything))
    assert ended.returncode == 0, ended.stderr
    assert "4 of 4 trials are there already" in ended.stderr
    assert {path: path.stat().st_mtime_ns for path in (everything / "trials").iterdir()} == before


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_every_engine_runs_the_job_and_is_named_in_the_record(engine: str, tmp_path: Path) -> None:
    words = ("run", "--target", "container", *SMALL, "--engine", engine, "--out", str(tmp_path / "run"))
    with ExitStack() as stack:
        env: dict[str, str] = {}
        if engine == "docker":
            env = {"DOCKER_HOST": stack.enter_context(docker_daemon())}
        else:
            require("engine", engine)
        ended = bench(*words, env=env)
    assert ended.returncode == 0, ended.stderr
    seen = records(tmp_path / "run")["container"].environment.target
    assert seen is not None
    assert seen.container_engine is not None
    assert seen.container_engine.name == engine
    assert seen.seccomp == "filter"
    assert seen.userland_sha256 == require_image().digest
    assert ours() == NOTHING


@pytest.mark.thorough
def test_after_kill_9_in_a_vm_trial_clean_removes_what_is_left_and_records_are_intact(tmp_path: Path) -> None:
    require("target", "vm")
    out = str(tmp_path / "run")
    # The order in a block is drawn; with this seed bare metal comes first.
    running = Running(tmp_path / "log", "--target", "bare-metal", "--target", "vm", *SMALL, "--seed", "6", "--out", out)
    running.wait_until_it_says("on vm: attesting")
    running.kill()
    left = ours()
    assert left["processes"], "QEMU should have outlived the suite"
    assert left["ledger"]
    ended = bench("clean")
    assert ended.returncode == 0, ended.stderr
    assert ours() == NOTHING
    assert list(Path(out).rglob(".*.tmp")) == []
    finished = records(Path(out))
    assert finished["bare-metal"].outcome.status == "ok"
    assert "vm" not in finished
    assert "nothing was left" in bench("clean").stdout


@pytest.mark.parametrize("target", [pytest.param("bare-metal", marks=pytest.mark.thorough), "container"])
def test_after_kill_9_beside_a_worker_clean_ends_it(target: str, tmp_path: Path) -> None:
    running = Running(tmp_path / "log", *on(target), *ENDLESS, "--out", str(tmp_path / "run"))
    running.wait_until_it_says(f"on {target}: importing")
    running.kill()
    assert bench("clean").returncode == 0
    assert ours() == NOTHING


@pytest.mark.parametrize(
    ("target", "number"),
    [
        pytest.param("bare-metal", signal.SIGINT, marks=pytest.mark.thorough),
        pytest.param("container", signal.SIGINT, marks=pytest.mark.thorough),
        ("container", signal.SIGTERM),
        pytest.param("vm", signal.SIGTERM, marks=pytest.mark.thorough),
    ],
)
def test_a_signal_leaves_nothing_at_all(target: str, number: signal.Signals, tmp_path: Path) -> None:
    require("target", target)
    running = Running(tmp_path / "log", *on(target), *ENDLESS, "--out", str(tmp_path / "run"))
    running.wait_until_it_says(f"on {target}: " + ("opening" if target == "vm" else "importing"))
    time.sleep(2.0 if target == "vm" else 0.2)
    running.process.send_signal(number)
    assert running.process.wait(180) == 130
    assert "Traceback" not in running.log.read_text()
    assert ours() == NOTHING


def test_clean_leaves_a_running_bench_alone(tmp_path: Path) -> None:
    running = Running(tmp_path / "log", *on("container"), *SMALL, "--out", str(tmp_path / "run"))
    running.wait_until_it_says("on container: importing")
    assert bench("clean").returncode == 0
    assert running.process.wait(300) == 0, running.log.read_text()
    assert records(tmp_path / "run")["container"].outcome.status == "ok"


@pytest.mark.parametrize("target", [pytest.param("bare-metal", marks=pytest.mark.thorough), "container"])
def test_a_worker_that_is_killed_is_a_failed_record_and_exit_1(target: str, tmp_path: Path) -> None:
    running = Running(tmp_path / "log", *on(target), *ENDLESS, "--out", str(tmp_path / "run"))
    running.wait_until_it_says(f"on {target}: importing")
    (worker,) = workers()
    worker.kill()
    assert running.process.wait(180) == 1
    outcome = records(tmp_path / "run")[target].outcome
    assert (outcome.status, outcome.kind) == ("failed", "killed")
    assert outcome.command
    assert ours() == NOTHING


def test_a_guest_that_cannot_start_says_why_on_its_console(tmp_path: Path) -> None:
    require("target", "vm")
    image = require_image()
    other = tmp_path / "home/images" / image.digest[:12]
    other.mkdir(parents=True)
    for name in ("tree", "initrd.img", "oci.tar"):
        (other / name).symlink_to(image.file(name))
    (other / "disk.img").write_bytes(bytes(1 << 20))
    described = json.loads(image.model_dump_json())
    described["files"].pop("docker.img", None)
    described["files"]["disk.img"] = {
        "size_bytes": 1 << 20,
        "mtime_ns": (other / "disk.img").stat().st_mtime_ns,
        "sha256": "0" * 64,
    }
    (other / "image.json").write_text(Image.model_validate(described).model_dump_json())
    env = {"VIRTBENCH_HOME": str(tmp_path / "home")}
    ended = bench("run", "--target", "vm", *SMALL, "--out", str(tmp_path / "run"), env=env)
    assert ended.returncode == 1
    outcome = records(tmp_path / "run")["vm"].outcome
    assert (outcome.status, outcome.kind) == ("failed", "boot")
    assert "cannot mount the userland" in outcome.output_tail
    assert ours() == NOTHING


def test_doctor_gives_a_hanging_probe_guest_up_and_says_why_kvm_is_not_usable(tmp_path: Path) -> None:
    # An empty home: the probe guest is booted anew, and no answer is remembered. On a quiet machine it takes 9 s.
    ended = bench("doctor", "--json", env={"VIRTBENCH_HOME": str(tmp_path)}, timeout_s=120)
    kvm = next(check for check in json.loads(ended.stdout)["checks"] if check["name"] == "kvm")
    if kvm["usable"]:
        pytest.skip("KVM is usable here")
    assert kvm["reason"]
    assert kvm["remedy"]
    refused = bench("run", "--target", "vm", *SMALL, "--accel", "kvm", "--out", str(tmp_path / "run"))
    assert refused.returncode == 2
    assert "KVM is not usable" in refused.stderr
