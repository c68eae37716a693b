"""A disk that fills up, and one that becomes read-only: file systems of the test's own, in memory."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from suite.records.record import TrialRecord
from tests.suite.sweep.conftest import Machine


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
