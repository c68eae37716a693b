"""What is left when a sweep is killed, when two are begun at once, and when the disk is full: real processes."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from suite.records.record import TrialRecord
from tests.suite.sweep.conftest import Machine

CELLS, TARGETS, BLOCKS, WARM_UPS = 2, 2, 10, 1
ALL = CELLS * TARGETS * (BLOCKS + WARM_UPS)


def wait_for(what: object, process: object) -> None:
    """Until ``what()`` is true, or the process has ended."""
    deadline = time.monotonic() + 300
    while not what() and process.poll() is None:  # type: ignore[operator,attr-defined]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_sweep_killed_at_six_moments_comes_to_the_same_records_as_one_that_was_not(machine: Machine) -> None:
    machine.plan.write_text(machine.plan.read_text().replace("blocks = 3", f"blocks = {BLOCKS}"))
    moments = random.Random(7)
    kept: dict[str, bytes] = {}
    killed = 0
    for _ in range(6):
        killed += killed_once(machine, moments.randrange(4), moments.uniform(0, 0.1))
        now = machine.contents()
        assert kept.items() <= now.items(), "a finished record was lost or changed"
        for content in now.values():
            TrialRecord.model_validate_json(content)  # none is torn
        kept = now
    assert killed >= 4, "the sweep is to be long enough for that"
    assert kept
    assert machine.sweep_to_its_end().returncode == 0
    assert kept.items() <= machine.contents().items()
    found = machine.records()
    assert len({(record["run_id"], record["trial_id"]) for record in found.values()}) == len(found) == ALL
    undisturbed = Machine(machine.place / "undisturbed")
    undisturbed.place.mkdir()
    undisturbed.plan.write_text(machine.plan.read_text())
    shutil.copytree(machine.out, undisturbed.out, ignore=shutil.ignore_patterns("synthetic-*", ".*"))  # the order drawn
    assert undisturbed.sweep_to_its_end().returncode == 0
    same = ("trial_id", "block", "position", "seed", "target", "job")
    assert {name: [record[key] for key in same] for name, record in undisturbed.records().items()} == {
        name: [record[key] for key in same] for name, record in found.items()
    }
    assert machine.left() == []


def killed_once(machine: Machine, trials: int, after_s: float) -> bool:
    """Start the sweep and kill it a while after it has begun to measure one more than so many trials."""
    before = machine.measured() + trials
    process = machine.sweep(SLOW_S="0.1")
    wait_for(lambda: machine.measured() > before, process)
    time.sleep(after_s)
    process.kill()
    process.communicate(timeout=300)
    return process.returncode == -signal.SIGKILL


def test_of_two_sweeps_begun_at_once_on_one_output_one_runs_and_the_other_says_who(machine: Machine) -> None:
    both = [machine.sweep(SLOW_S="0.3") for _ in range(2)]
    ended = [process.communicate(timeout=300) for process in both]
    assert {process.returncode for process in both} == {0, 2}
    ((_, complaint),) = [said for process, said in zip(both, ended, strict=True) if process.returncode == 2]
    assert "already" in complaint
    assert f"bench sweep status {machine.out}" in complaint
    assert len(machine.records()) == 16
    assert machine.measured() == 16, "a trial was measured twice"


def test_blocks_of_one_sweep_can_be_run_by_several_processes_at_once_which_lock_no_file_and_write_none_in_place(
    machine: Machine,
) -> None:
    """They may share it over NFS: all that is opened for writing there is a temporary of the writer's own."""
    calls = "trace=flock,fcntl,openat,?open,?creat,truncate,?rename,?renameat,renameat2"
    traced = not subprocess.run(["sh", "-c", "strace -qq true"], check=False, capture_output=True).returncode
    processes = [machine.sweep("--only-block", "0")]
    for block in (1, 2):
        strace = ["strace", "-f", "-y", "-qq", "-o", str(machine.place / f"calls-{block}"), "-e", calls]
        words = ("sweep", "run", str(machine.plan), "--out", str(machine.out), "--only-block", str(block))
        processes.append(machine.program(*words, before=strace if traced else ()))
    ended = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], ended
    assert len(machine.records()) == 16
    assert machine.left() == []
    assert '"complete"' in machine.run("sweep", "status", str(machine.out), "--json").stdout
    if not traced:
        pytest.skip("strace is not there, or may not trace")
    lines = [line for place in machine.place.glob("calls-*") for line in place.read_text().splitlines()]
    assert [line for line in lines if re.search(r"flock\(|F_SETLK|F_OFD_SETLK|F_SETLEASE", line)] == []
    ours = [line for line in lines if str(machine.out) in line]
    written = [line for line in ours if re.search(r"O_WRONLY|O_RDWR|O_CREAT|creat\(|truncate\(", line)]
    assert [line for line in written if not re.search(r"\.[0-9a-f]{16}\.tmp\"", line)] == []
    assert any("rename" in line for line in ours)


def test_the_same_block_is_not_run_twice_at_once(machine: Machine) -> None:
    first = machine.sweep("--only-block", "1", SLOW_S="60")
    wait_for((machine.out / ".locks/block-001.json").exists, first)
    second = machine.sweep_to_its_end("--only-block", "1")
    assert (second.returncode, f"process {first.pid} on" in second.stderr) == (2, True), second.stderr
    first.terminate()
    first.communicate(timeout=300)
    assert first.returncode == 130


def test_an_interrupted_sweep_keeps_what_was_measured_and_goes_on(machine: Machine) -> None:
    process = machine.sweep(SLOW_S="0.6")
    wait_for(lambda: len(list(machine.out.glob("*/trials/*.json"))) >= 2, process)
    process.send_signal(signal.SIGINT)
    assert "interrupted" in process.communicate(timeout=300)[1]
    assert process.returncode == 130
    before = machine.records()
    assert 2 <= len(before) < 16
    assert machine.left() == []
    assert machine.sweep_to_its_end().returncode == 0
    assert before.items() <= machine.records().items()
    assert len(machine.records()) == 16


def test_stop_ends_a_sweep_after_its_current_trial_and_run_continues_it(machine: Machine) -> None:
    process = machine.sweep(SLOW_S="2")
    wait_for(lambda: list(machine.out.glob("*/trials/*.json")), process)
    assert machine.run("sweep", "stop", str(machine.out)).returncode == 0
    complaint = process.communicate(timeout=300)[1]
    assert (process.returncode, "asked to stop" in complaint) == (0, True), complaint
    assert 0 < machine.measured() == len(machine.records()) < 16
    assert f"{machine.measured()} trials run now" in complaint
    assert machine.sweep_to_its_end().returncode == 0
    assert machine.measured() == 16


def test_status_watches_until_the_sweep_has_ended(machine: Machine) -> None:
    process = machine.sweep(SLOW_S="0.1")
    wait_for((machine.place / "measured").exists, process)
    watching = machine.run("sweep", "status", str(machine.out), "--watch", "--json")
    process.communicate(timeout=300)
    told = [json.loads(line) for line in watching.stdout.splitlines()]
    assert (watching.returncode, process.returncode) == (0, 0), watching.stderr
    assert {each["state"] for each in told[:-1]} <= {"running"}
    assert told[-1]["state"] == "complete"
    assert {arm["done"] for cell in told[-1]["cells"] for arm in cell["arms"].values()} == {4}


def test_cancel_ends_a_sweep_at_once(machine: Machine) -> None:
    process = machine.sweep(SLOW_S="600")
    wait_for((machine.place / "measured").exists, process)
    said: list[str] = []
    # Its output is read beside it: a process whose pipe is full would not end.
    reader = threading.Thread(target=lambda: said.extend(process.communicate(timeout=300)))
    reader.start()
    cancelled = machine.run("sweep", "cancel", str(machine.out))
    reader.join(120)
    assert (cancelled.returncode, process.returncode) == (0, 130), cancelled.stderr
    assert "is ended" in cancelled.stderr
    assert machine.records() == {}
    assert machine.left() == []
    assert machine.run("sweep", "cancel", str(machine.out)).returncode == 2


def test_what_fails_is_tried_again_and_analysis_sees_it_once(machine: Machine) -> None:
    machine.plan.write_text(machine.plan.read_text() + "\n[budget]\nretries = 2\n")
    assert machine.sweep_to_its_end(FAILING="container").returncode == 1
    failed = [name for name, record in machine.records().items() if record["outcome"]["status"] == "failed"]
    assert len(failed) == 8
    attempts = list(machine.out.glob("*/attempts/*.json"))
    assert len(attempts) == 8 * 3
    assert len(machine.records()) == 16
    again = machine.sweep_to_its_end()
    assert again.returncode == 1, "they have failed often enough"
    assert "0 trials run now, 8 failed in the end" in again.stderr
    assert "raise budget.retries above 2" in again.stderr
    machine.plan.write_text(machine.plan.read_text().replace("retries = 2", "retries = 3"))
    assert machine.sweep_to_its_end().returncode == 0, "one more attempt is allowed, and they work now"
    assert not [name for name, record in machine.records().items() if record["outcome"]["status"] == "failed"]
    assert set(machine.out.glob("*/attempts/*.json")) == set(attempts), "the failed attempts are kept"


@pytest.fixture
def disk(machine: Machine) -> Iterator[Machine]:
    """The machine, with a small file system at ``out``."""
    machine.out.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "sweep", str(machine.out)], check=False, capture_output=True
    )
    if os.geteuid() or mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield machine
    finally:
        subprocess.run(["umount", str(machine.out)], check=True)


def remount(machine: Machine, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(machine.out)], check=True)


def test_a_full_disk_is_told_and_the_records_on_it_stay_whole(disk: Machine) -> None:
    full = disk.sweep_to_its_end()
    assert full.returncode == 1
    assert "No space left on device" in full.stderr
    assert "free some space" in full.stderr
    assert "Traceback" not in full.stderr
    before = disk.contents()
    assert 0 < len(before) < 16
    for content in before.values():
        TrialRecord.model_validate_json(content)
    assert disk.left() == []
    remount(disk, "size=8m")
    assert disk.sweep_to_its_end().returncode == 0
    assert before.items() <= disk.contents().items()
    assert len(disk.contents()) == 16


def test_a_directory_that_has_become_read_only_is_told_and_nothing_in_it_is_lost(disk: Machine) -> None:
    remount(disk, "size=8m")
    assert disk.sweep_to_its_end("--only-block", "0").returncode == 0
    before = disk.contents()
    remount(disk, "ro")
    refused = disk.sweep_to_its_end()
    assert (refused.returncode, "Read-only file system" in refused.stderr) == (1, True), refused.stderr
    assert "--out" in refused.stderr
    assert "Traceback" not in refused.stderr
    looked = disk.run("sweep", "status", str(disk.out), "--json")
    assert (looked.returncode, '"incomplete"' in looked.stdout) == (0, True), looked.stderr
    assert disk.contents() == before
    remount(disk, "rw")
    assert disk.sweep_to_its_end().returncode == 0
    assert len(disk.contents()) == 16
