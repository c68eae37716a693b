"""Sweeps on a real Slurm of two nodes: a node is lost in mid-run, files come back without a common directory."""

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioning.paths import home
from suite.records.record import TrialRecord
from tests.integration.bench import REPOSITORY, inside, some
from tests.integration.machine import require, require_image, require_root_and_image, wait_for
from tests.integration.remote_sweep import FAST, RemoteSweep, fake_bench
from tests.integration.slurm_cluster import Slurm, slurm_cluster

pytestmark = pytest.mark.integration

SMOKE = REPOSITORY / "plans/smoke.toml"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    require_root_and_image()
    require("target", "container")
    # Not below pytest's own directory: a socket's path has 108 bytes at most.
    with slurm_cluster(Path(tempfile.mkdtemp(prefix="vb-slurm-", dir="/var/tmp"))) as cluster:
        yield cluster


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    yield cluster
    cluster.restore()


def engine(**keys: object) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"kind": "slurm", "poll_s": 0.3, **keys}.items()]
    return "\n".join(["", "[engine]", *lines, ""])


@pytest.mark.thorough
def test_a_node_that_is_lost_in_mid_run_costs_no_trial(slurm: Slurm, tmp_path: Path) -> None:
    sweep = RemoteSweep(tmp_path, SMOKE.read_text() + engine(), slurm.env)
    sweep.wait_for("[2/4]")
    kept = sweep.records()
    assert kept
    node = slurm.busy_node()
    slurm.fell_node(node)
    wait_for("the requeue", lambda: "BeginTime" in slurm.queue(), slurm.said)
    slurm.hasten()
    records = sweep.end_complete(kept)
    assert "restarts 1" in sweep.said()
    assert len(records) == 4
    slurm.start_node(node)
    slurm.wait_until_idle()


def in_second_trial(sweep: RemoteSweep) -> int:
    """How many blocks have come so far."""
    return sum("[1/4]" in path.read_text() for path in (sweep.out / "logs").glob("*.log"))


@pytest.mark.thorough
@pytest.mark.beside
def test_a_job_of_higher_priority_takes_the_nodes_and_no_trial_is_lost_or_twice(slurm: Slurm, tmp_path: Path) -> None:
    bench = fake_bench(tmp_path / "fake", slow_s=4)
    sweep = RemoteSweep(tmp_path, FAST.format(blocks=2) + engine(bench=bench), slurm.env)
    wait_for("both in mid run", lambda: in_second_trial(sweep) == 2, sweep.said)
    slurm.take_all_nodes()
    wait_for("the requeue", lambda: slurm.queue().count("BeginTime") == 2, slurm.said)
    kept = sweep.records()
    fake_bench(tmp_path / "fake", slow_s=0.01)
    slurm.hasten()
    assert kept
    assert len(sweep.end_complete(kept)) == 8
    assert "restarts 1" in sweep.said()
    assert list(sweep.out.glob("*/attempts/*")) == [], "what was cut off is no failure"


@pytest.mark.beside
def test_blocks_are_spread_over_the_nodes_and_what_is_complete_is_not_submitted_again(
    slurm: Slurm, tmp_path: Path
) -> None:
    slurm.wait_until_idle()
    bench = fake_bench(tmp_path / "a b", slow_s=0.01)
    theirs = {"SBATCH_PARTITION": "nowhere", "SBATCH_JOB_NAME": "mine", "SQUEUE_PARTITION": "urgent"}
    sweep = RemoteSweep(tmp_path, FAST.format(blocks=4) + engine(bench=bench, partition="main"), slurm.env | theirs)
    assert len(sweep.end_complete()) == 16
    assert {"on vbnode1", "on vbnode2"} <= set(re.findall("on vbnode.", sweep.said()))
    sweep.start()
    assert sweep.end() == 0, sweep.said()
    assert "blocks in the queue" not in sweep.log.read_text()


COUNTED = """#!/bin/sh
case "$*" in *block*) ;; *) exec {fake} "$@" ;; esac
echo "begin $SLURMD_NODENAME $SLURM_JOB_ID $(nproc)" >>{blocks}
{fake} "$@"
status=$?
echo "end $SLURMD_NODENAME" >>{blocks}
exit $status
"""


def counting_bench(tmp_path: Path, slow_s: float) -> tuple[str, Path]:
    """A fake bench that writes for each block: its node, its job, and the CPUs that it may use."""
    fake, blocks, bench = fake_bench(tmp_path / "fake", slow_s), tmp_path / "blocks", tmp_path / "counted"
    bench.write_text(COUNTED.format(fake=fake, blocks=blocks))
    bench.chmod(0o755)
    return str(bench), blocks


@pytest.mark.beside
@pytest.mark.parametrize("shell", ["login", "job"])
@pytest.mark.parametrize("way", ["sbatch", "srun"])
def test_each_block_has_all_cpus_of_a_node_alone_whichever_way_it_is_started(
    slurm: Slurm, tmp_path: Path, way: str, shell: str
) -> None:
    slurm.wait_until_idle()
    bench, blocks = counting_bench(tmp_path, slow_s=0.01)
    without_shared_files = {"scratch": str(tmp_path / "scratch")} if way == "srun" else {}
    plan = FAST.format(blocks=3) + engine(bench=bench, **without_shared_files)
    in_job = ("salloc", "--quiet", "--ntasks=1", "--cpus-per-task=1") if shell == "job" else ()
    sweep = RemoteSweep(tmp_path, plan, slurm.env, in_job)
    assert len(sweep.end_complete()) == 12
    running, jobs = set[str](), set[str]()
    for event, node, *more in map(str.split, blocks.read_text().splitlines()):
        if event == "end":
            running.remove(node)
            continue
        assert node not in running, "two blocks on a node"
        running.add(node)
        jobs.add(more[0])
        assert int(more[1]) == os.cpu_count()
    assert len(jobs) == 3


@pytest.mark.thorough
@pytest.mark.beside
@pytest.mark.parametrize("way", ["sbatch", "srun"])
@pytest.mark.parametrize("away", ["ended", "halted"])
def test_a_controller_that_is_away_for_a_minute_costs_nothing(
    slurm: Slurm, tmp_path: Path, away: str, way: str
) -> None:
    slurm.wait_until_idle()
    bench = fake_bench(tmp_path / "fake", slow_s=5)
    without_shared_files = {"scratch": str(tmp_path / "scratch")} if way == "srun" else {}
    plan = FAST.format(blocks=3) + engine(bench=bench, **without_shared_files)
    sweep = RemoteSweep(tmp_path, plan, slurm.env)
    wait_for("one in mid run", lambda: in_second_trial(sweep) >= 1, sweep.said)
    with slurm.without_controller(halted=away == "halted"):
        time.sleep(60)
    assert len(sweep.end_complete()) == 12
    assert "the controller of Slurm does not answer" in sweep.said()
    assert "lost on" not in sweep.said()


@pytest.mark.thorough
@pytest.mark.beside
def test_ctrl_c_leaves_the_jobs_in_the_queue_and_the_next_run_follows_them(slurm: Slurm, tmp_path: Path) -> None:
    bench = fake_bench(tmp_path / "fake", slow_s=2)
    sweep = RemoteSweep(tmp_path, FAST.format(blocks=3) + engine(bench=bench, at_once=1), slurm.env)
    sweep.wait_for("[1/4]")  # in the log of a block, which has then begun
    sweep.process.send_signal(signal.SIGINT)
    assert sweep.end() == 130
    assert "the jobs stay in the queue" in sweep.said()
    fake_bench(tmp_path / "fake", slow_s=0.01)  # for those that have not begun
    sweep.start()
    sweep.end_complete()
    assert "already in the queue, which this process follows" in sweep.log.read_text()
    assert "job " not in sweep.log.read_text()


@pytest.mark.thorough
@pytest.mark.beside
def test_cancel_takes_the_blocks_out_of_the_queue(slurm: Slurm, tmp_path: Path) -> None:
    bench = fake_bench(tmp_path / "fake", slow_s=20)
    sweep = RemoteSweep(tmp_path, FAST.format(blocks=2) + engine(bench=bench, at_once=1), slurm.env)
    sweep.wait_for("[1/4]")
    assert "in the queue: block 1" in sweep.bench("status").stdout
    cancelled = sweep.bench("cancel")
    assert cancelled.returncode == 0, cancelled.stderr
    assert "block 1 of job" in cancelled.stderr
    assert sweep.end() == 130
    wait_for("an empty queue", lambda: not re.search(" (R|PD|CG) ", slurm.queue()), slurm.queue)
    assert len(sweep.records()) < 8
    fake_bench(tmp_path / "fake", slow_s=0.01)
    sweep.start()
    sweep.end_complete()


@pytest.mark.thorough
@pytest.mark.beside
def test_without_a_common_directory_records_come_back_from_a_job_that_is_lost_too(slurm: Slurm, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    bench = fake_bench(tmp_path / "fake", slow_s=3)
    plan = FAST.format(blocks=2) + engine(bench=bench, scratch=str(scratch), at_once=1)
    sweep = RemoteSweep(tmp_path, plan, slurm.env)
    sweep.wait_for("[1/4]")
    status = sweep.bench("status")
    assert status.returncode == 0, status.stderr
    assert "welcome to vbnode" in sweep.said(), "the words of a TaskProlog are in the log"
    sweep.wait_for("[2/4]")
    wait_for("the first record", lambda: bool(sweep.records()), sweep.said)
    kept = sweep.records()
    fake_bench(tmp_path / "fake", slow_s=0.01)
    slurm.kill_jobs(slurm.busy_node())
    sweep.end_complete(kept)
    assert "lost on salloc-0" in sweep.said()


ACCOUNT = "games"
"""A user without root whom every Debian has."""


def bench_of(place: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run the bench in the user's directory as this user."""
    account = pwd.getpwnam(ACCOUNT)
    variables = {"PATH": os.environ["PATH"], "HOME": str(place), "USER": ACCOUNT, **env}
    who: dict[str, Any] = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": (), "env": variables}
    argv = [str(place / "bench"), *words]
    return subprocess.run(argv, check=False, capture_output=True, text=True, cwd=place, timeout=600, **who)


@pytest.fixture
def place_of_user() -> Iterator[Path]:
    """Make the user's home, with a bench and the image that root has as hard links, and remove all of it at the end."""
    image = require_root_and_image()
    place = Path(tempfile.mkdtemp(prefix="vb-user-", dir=home()))
    try:
        place.chmod(0o755)
        images, bench = place / "home" / "images", place / "bench"
        images.mkdir(parents=True)
        subprocess.run(["cp", "--archive", "--link", str(image.directory), str(images)], check=True)
        # Root's own interpreter may be in a folder that nobody else enters.
        python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
        if python is None:
            pytest.skip(f"no Python 3.{sys.version_info.minor} that everybody may run")
        subprocess.run([python, "-m", "venv", "--without-pip", str(place / "venv")], check=True)
        (packages,) = (place / "venv/lib").glob("*/site-packages")
        (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
        words = [f"HOME={place}", f"VIRTBENCH_HOME={place}/home", "PYTHONDONTWRITEBYTECODE=1"]
        words += [f"{place}/venv/bin/python", f"{REPOSITORY}/cli.py"]
        bench.write_text(f'#!/bin/sh\nexec env {" ".join(words)} "$@"\n')
        bench.chmod(0o755)
        for path in (place, place / "home", images):  # no link to a file of root's
            shutil.chown(path, ACCOUNT, pwd.getpwnam(ACCOUNT).pw_gid)
        if (tried := bench_of(place, "--version")).returncode:
            pytest.skip(f"a user without root cannot run bench from here: {tried.stderr[-500:]}")
        yield place
    finally:
        shutil.rmtree(place)


WITHOUT_ROOT = """
name = "without-root"
targets = ["bare-metal", "container"]
blocks = 1
warmup_blocks = 0
[matrix]
model = ["gan"]
[options]
profile = "smoke"
engine = "charliecloud"
"""


def test_a_user_without_root_compares_bare_metal_with_a_container_of_charliecloud(
    slurm: Slurm, place_of_user: Path
) -> None:
    require("engine", "charliecloud")
    slurm.wait_until_idle()
    plan, out = place_of_user / "plan.toml", place_of_user / "out"
    plan.write_text(WITHOUT_ROOT + engine(bench=str(place_of_user / "bench")))
    ran = bench_of(place_of_user, "sweep", "run", str(plan), "--out", str(out), **slurm.env)
    logs = "\n".join(path.read_text() for path in (out / "logs").glob("*.log"))
    assert ran.returncode == 0, f"{ran.stderr}{logs}"
    records = [TrialRecord.model_validate_json(path.read_bytes()) for path in out.glob("*/trials/*.json")]
    assert sorted(record.target for record in records) == ["bare-metal", "container"]
    for record in records:
        seen = inside(record)
        assert record.outcome.status == "ok"
        assert record.substitutes == ["memory:not-limited"]
        assert seen.userland_sha256 == require_image().digest
        assert (seen.userland_differences, seen.no_new_privileges) == ([], True)
        assert (seen.cpus, seen.effective_capabilities) == (list(record.job.envelope.cpus), "0" * 16)
        if record.target == "container":
            found = some(seen.container_engine)
            assert (found.name, found.network) == ("charliecloud", "shared")
    compared = bench_of(place_of_user, "compare", str(out))
    assert compared.returncode == 0, compared.stderr
    answer = " ".join(compared.stdout.split())
    assert "no ratio is formed" not in answer, "without root, too, bare metal is in the image's tree"
    assert "container (charliecloud," in answer
    assert "memory:not-limited)" in answer
    audited = bench_of(place_of_user, "audit", str(out))
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert list((place_of_user / "home/ledger").glob("*.json")) == []
