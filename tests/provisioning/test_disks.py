"""Which disk a directory lies on: the whole disk, as /sys tells it."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioning.cgroup import limits
from provisioning.cgroup.limits import BlockDevice, disks_under
from provisioning.machines.qemu_command import takes_direct_io
from provisioning.nodes import local_node
from suite.errors import RequestError
from suite.interfaces import Completed


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


@pytest.mark.parametrize(("kind", "reaches"), [("tmpfs", False), ("zfs", False), ("ext2/ext3", True), ("xfs", True)])
def test_direct_io_that_is_accepted_need_not_reach_a_disk(
    kind: str, reaches: bool, fake_node: Callable[..., Any]
) -> None:
    """Linux accepts it on tmpfs since 6.6, and ZFS before 2.3 answers it from memory."""
    answers = {("stat", "--file-system"): Completed(0, f"{kind}\n", ""), ("test", "-b"): Completed(1, "", "")}
    assert takes_direct_io(fake_node(answers), "/images/disk.img") is reaches
    device = {**answers, ("test", "-b"): Completed(0, "", "")}
    assert takes_direct_io(fake_node(device), "/dev/sdb"), "a device lies on no file system, but its name does"


def test_memory_of_this_machine_is_no_disk() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file, local_node((), None) as node:
        file.write(bytes(8192))
        file.flush()
        assert not takes_direct_io(node, file.name)


def test_a_file_system_without_a_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BLOCK_DEVICES", tmp_path)
    with pytest.raises(RequestError, match="without a disk of its own") as refused:
        disks_under([str(tmp_path)])
    assert "VIRTBENCH_HOME" in (refused.value.remedy or "")
