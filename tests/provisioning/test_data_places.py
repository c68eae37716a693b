"""Where data may lie: what is refused before anything is written, and which disk a directory lies on."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning import data_device
from provisioning.cgroup import limits
from provisioning.cgroup.limits import BlockDevice, disks_under
from provisioning.images.pack import add_modules
from provisioning.machines import qemu, virtiofs
from provisioning.machines.qemu import QEMU
from provisioning.machines.qemu_command import takes_direct_io
from provisioning.nodes import local_node
from suite.errors import RequestError
from suite.interfaces import Completed
from suite.job.ablations import properties_of
from suite.job.datasets import Dataset
from tests.provisioning.conftest import MakeImage, fake_node, make

DATASET = Dataset(kind="imagefolder", directory="/set", sha256="ab" * 32, images=20, size_bytes=4000)
WHOLE = ("ext4", "abababab-abab-abab-abab-abababababab", "virtbench-data")
Holding = Callable[..., None]


@pytest.fixture
def holding(monkeypatch: pytest.MonkeyPatch) -> Holding:
    """A free device with these signatures, and nobody who would write to it."""

    def make(*signatures: data_device.Signature) -> None:
        monkeypatch.setattr(data_device, "_refuse_busy", lambda _: None)
        monkeypatch.setattr(data_device, "_signatures", lambda _: list(signatures))
        monkeypatch.setattr("os.geteuid", lambda: 0)
        monkeypatch.setattr(data_device, "filesystem", lambda *_, **__: pytest.fail("it is written to"))

    return make


@pytest.mark.parametrize(
    "held",
    [
        ("ext4", WHOLE[1], "home"),
        ("ext4", "00000000-0000-0000-0000-000000000000", data_device.LABEL),
        ("LVM2_member", None, None),
        ("gpt", None, None),
        ("swap", None, None),
    ],
)
def test_a_device_that_holds_anything_else_is_never_written(held: data_device.Signature, holding: Holding) -> None:
    for found in ((held,), (held, ("ext4", None, data_device.UNFINISHED))):
        holding(*found)
        with pytest.raises(RequestError, match=f"/dev/sdx is left alone: it holds {held[0]}") as caught:
            data_device.write("/dev/sdx", DATASET, lambda _: None)
        assert "wipefs --all /dev/sdx" in str(caught.value.remedy)


def test_a_device_that_holds_the_data_set_is_left_as_it_is(holding: Holding) -> None:
    holding(WHOLE)
    said: list[str] = []
    data_device.write("/dev/sdx", DATASET, said.append)
    assert said == ["/dev/sdx holds the data set already"]
    data_device.check("/dev/sdx", DATASET, "generated:/set")


@pytest.mark.parametrize(
    "found", [(), (("ext4", None, data_device.UNFINISHED),), (("ext4", "another", data_device.LABEL),)]
)
def test_a_run_takes_no_device_without_its_data_set(found: tuple[data_device.Signature, ...], holding: Holding) -> None:
    holding(*found)
    with pytest.raises(RequestError, match="does not hold this data set") as caught:
        data_device.check("/dev/sdx", DATASET, "generated:/set")
    assert str(caught.value.remedy).endswith("bench data disk --device /dev/sdx --data generated:/set")


@pytest.mark.parametrize(("name", "said"), [("file", "is no block device"), ("nothing", "cannot be opened")])
def test_only_a_device_is_taken(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RequestError, match=said):
        data_device.write(str(tmp_path / name), DATASET, lambda _: None)
    assert (tmp_path / "file").read_text() == "mine"


def test_without_virtiofs_on_either_side_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {"modules.dep": "kernel/fs/fuse/fuse.ko:\n", "modules.builtin": "kernel/fs/ext4/ext4.ko\n"}
    modules = make(tmp_path / "usr/lib/modules/6.1", others)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(virtiofs, "daemon", lambda: None)
    assert "not installed" in str(virtiofs.hindrance(tmp_path))
    monkeypatch.setattr(virtiofs, "daemon", lambda: "/usr/libexec/virtiofsd")
    assert "guest's kernel" in str(virtiofs.hindrance(tmp_path))
    (modules / "modules.dep").write_text("kernel/fs/fuse/virtiofs.ko: kernel/fs/fuse/fuse.ko\n")
    assert virtiofs.hindrance(tmp_path) is None
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "root" in str(virtiofs.hindrance(tmp_path))


def test_a_microvm_needs_a_kernel_with_virtio_over_mmio(make_image: MakeImage) -> None:
    image = make_image()
    assert "no virtio_mmio" in str(QEMU.hindrance(properties_of("microvm"), image))
    make(image.tree, {"usr/lib/modules/6.1/modules.builtin": "kernel/drivers/virtio/virtio_mmio.ko\n"})
    assert QEMU.hindrance(properties_of("microvm"), image) is None


def test_the_rate_of_the_tsc_is_half_the_bogomips() -> None:
    shown = "cpu MHz : 800.0\nbogomips\t: 5192.28\n"
    assert qemu._tsc_khz(fake_node({("cat",): Completed(0, shown, "")})) == 2596140
    assert qemu._tsc_khz(fake_node()) == 0


def test_a_guest_loads_the_modules_that_its_machine_needs(tmp_path: Path) -> None:
    needs = {"modules.dep": "virtio.ko:\nvirtio_mmio.ko: virtio.ko\nvirtio_blk.ko: virtio.ko\n"}
    files = dict.fromkeys(("modules.builtin", "virtio.ko", "virtio_mmio.ko", "virtio_blk.ko"), "")
    make(tmp_path / "tree/usr/lib/modules/6.1", needs | files)
    (tmp_path / "root").mkdir()
    add_modules(tmp_path / "tree", tmp_path / "root", ("virtio_mmio", "virtio_blk"))
    assert (tmp_path / "root/modules.order").read_text() == "virtio.ko\nvirtio_mmio.ko\nvirtio_blk.ko\n"
    assert len(list((tmp_path / "root/modules").iterdir())) == 3


def test_a_directory_on_a_partition_lies_on_its_disk_and_one_without_a_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = {"dev": "8:0\n", "uevent": "MAJOR=8\nDEVNAME=sda\nDEVTYPE=disk\n", "sda1/partition": "1\n"}
    disk = make(tmp_path / "devices/sda", kernels)
    sys = tmp_path / "block"
    monkeypatch.setattr(limits, "BLOCK_DEVICES", sys)
    sys.mkdir()
    number = tmp_path.stat().st_dev
    (sys / f"{os.major(number)}:{os.minor(number)}").symlink_to(disk / "sda1")
    assert disks_under([str(tmp_path), None, str(sys)]) == (BlockDevice("/dev/sda", "8:0"),)
    monkeypatch.setattr(limits, "BLOCK_DEVICES", tmp_path)
    with pytest.raises(RequestError, match="without a disk of its own") as refused:
        disks_under([str(tmp_path)])
    assert "VIRTBENCH_HOME" in (refused.value.remedy or "")


@pytest.mark.parametrize(("kind", "reaches"), [("tmpfs", False), ("zfs", False), ("ext2/ext3", True), ("xfs", True)])
def test_direct_io_that_is_accepted_need_not_reach_a_disk(kind: str, reaches: bool) -> None:
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
