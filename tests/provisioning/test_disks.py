"""Which disk a directory lies on: the whole disk, as /sys tells it."""

import os
from pathlib import Path

import pytest

from provisioning.cgroup import limits
from provisioning.cgroup.limits import BlockDevice, disks_under
from suite.errors import RequestError


def device_of(place: Path) -> str:
    number = place.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def test_a_directory_on_a_partition_lies_on_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "devices/sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "dev").write_text("8:0\n")
    (disk / "uevent").write_text("MAJOR=8\nMINOR=0\nDEVNAME=sda\nDEVTYPE=disk\n")
    (disk / "sda1/partition").write_text("1\n")
    sys = tmp_path / "block"
    monkeypatch.setattr(limits, "BLOCK_DEVICES", sys)
    sys.mkdir()
    (sys / device_of(tmp_path)).symlink_to(disk / "sda1")
    (found,) = disks_under([str(tmp_path), None, str(sys)])
    assert found == BlockDevice("/dev/sda", "8:0")
    assert found.major_minor == (8, 0)


def test_a_file_system_without_a_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BLOCK_DEVICES", tmp_path)
    with pytest.raises(RequestError, match="without a disk of its own") as refused:
        disks_under([str(tmp_path)])
    assert "VIRTBENCH_HOME" in (refused.value.remedy or "")
