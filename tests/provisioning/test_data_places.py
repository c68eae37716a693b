"""Where data may lie: devices, disks and machines of an inventory, which must hold it; what is refused before a run."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands.run.prepare import refuse_changed
from provisioning import data_device, volumes
from provisioning.cgroup import limits
from provisioning.cgroup.limits import BlockDevice, disks_under
from provisioning.engines.docker import DOCKER, layers
from provisioning.images.pack import oci_archive
from provisioning.machines import qemu, virtiofs
from provisioning.machines.qemu import QEMU
from provisioning.machines.qemu_command import takes_direct_io
from provisioning.nodes import LocalNode, local_node
from provisioning.remote import content
from provisioning.remote.content import check_copy, directory_of, disk_of, volume_on
from provisioning.remote.network import forwarded
from provisioning.volumes import prepare_disk
from scenarios.command_files import files_of
from scenarios.datasets.resolve import resolve
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Completed
from suite.inventory import InventoryNode
from suite.job.ablations import properties_of
from suite.job.datasets import Dataset
from tests.own_directories import held_in
from tests.provisioning.conftest import MakeImage, fake_node, make, raises
from worker.data import listing

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
        with raises(RequestError, f"/dev/sdx is left alone: it holds {held[0]}", "wipefs --all /dev/sdx"):
            data_device.write("/dev/sdx", DATASET, lambda _: None)


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
    with raises(RequestError, "without a disk of its own", "VIRTBENCH_HOME"):
        disks_under([str(tmp_path)])


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


def dataset(directory: Path) -> Dataset:
    (directory / "class").mkdir(parents=True)
    (directory / "class/one.jpg").write_bytes(b"12345")
    digest, sha256 = listing.identify(directory, tuple(listing.entries_of(directory)))
    assert digest == "contents"
    return Dataset(
        kind="imagefolder", directory=str(directory), sha256=sha256, digest="contents", images=1, size_bytes=5
    )


def test_a_machine_holds_the_same_files_elsewhere_or_is_refused_by_name(node: LocalNode, tmp_path: Path) -> None:
    here, _ = dataset(tmp_path / "here"), dataset(tmp_path / "there")
    check_copy(node, str(tmp_path / "there"), here)
    planned = InventoryNode(name="n1", host="n1", data="/srv/there")
    assert directory_of(planned, here) == "/srv/there"
    assert directory_of(InventoryNode(name="n2", host="n2"), here) == here.directory
    (tmp_path / "there/class/one.jpg").write_bytes(b"54321")
    with raises(RequestError, r"of 5 bytes, and .* \(contents are compared\)", "rsync -a --checksum --delete"):
        check_copy(node, str(tmp_path / "there"), here)
    (tmp_path / "there/class/two.jpg").write_bytes(b"1")
    with pytest.raises(RequestError, match=r"localhost has another data set in .*there: 2 files of 6 bytes"):
        check_copy(node, str(tmp_path / "there"), here)
    with pytest.raises(RequestError, match=r"localhost does not hold the data set: .*nowhere: No such file"):
        check_copy(node, str(tmp_path / "nowhere"), here)


def test_a_large_set_on_a_machine_is_compared_by_times_and_samples(
    node: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, program = dataset(tmp_path / "here"), content.LISTER.read_text()
    (tmp_path / "listing.py").write_text(program.replace("HASHED_WHOLE_BELOW = 1 << 30", "HASHED_WHOLE_BELOW = 0"))
    monkeypatch.setattr(content, "LISTER", tmp_path / "listing.py")
    dataset(tmp_path / "there")
    for place in ("here", "there"):
        os.utime(tmp_path / place / "class/one.jpg", (1000, 1000))
    sampled = listing.sampled(tmp_path / "here", tuple(listing.entries_of(tmp_path / "here")))
    here = here.model_copy(update={"sha256": sampled, "digest": "sampled"})
    check_copy(node, str(tmp_path / "there"), here)
    os.utime(tmp_path / "there/class/one.jpg", (1001, 1001))
    with pytest.raises(RequestError, match="names, sizes, times and parts of files are compared"):
        check_copy(node, str(tmp_path / "there"), here)
    (tmp_path / "there/class/one.jpg").unlink()
    with pytest.raises(RequestError, match="0 files of 0 bytes"):
        check_copy(node, str(tmp_path / "there"), here)


def test_sets_of_equal_names_and_sizes_have_a_disk_each(node: LocalNode, home: Path, tmp_path: Path) -> None:
    disks = {}
    for data in ("12345", "54321", "12345"):
        place = tmp_path / "set"
        make(place, {"class/one.jpg": data})
        packed = resolve(f"imagefolder:{place}", home)[1]
        prepare_disk(node, packed.directory, str(volumes.disk_of(packed)), packed, lambda _: None)
        assert node.run(["debugfs", "-R", "cat /class/one.jpg", str(volumes.disk_of(packed))]).stdout.strip() == data
        disks[volumes.disk_of(packed)] = data
    assert len(disks) == 2


@pytest.mark.parametrize("of_command", [True, False])
def test_what_changed_meanwhile_gets_no_disk(of_command: bool, node: LocalNode, home: Path, tmp_path: Path) -> None:
    dataset(tmp_path / "set")
    packed = files_of(tmp_path / "set") if of_command else resolve(f"imagefolder:{tmp_path / 'set'}", home)[1]
    disk = volumes.disk_of(packed)
    refuse_changed(packed)

    def refuse() -> None:
        (tmp_path / "set/class/one.jpg").write_bytes(b"54321")
        refuse_changed(packed)

    with pytest.raises(RequestError, match="set has changed since this command read it"):
        prepare_disk(node, packed.directory, str(disk), packed, lambda _: None, refuse)
    assert held_in(disk.parent) == []


def test_the_disk_of_a_machine_is_made_of_its_own_copy_once(node: LocalNode, home: Path, tmp_path: Path) -> None:
    here, said = dataset(tmp_path / "here"), list[str]()
    dataset(tmp_path / "there")
    planned = InventoryNode(name="n1", host="n1", data=str(tmp_path / "there"), directory=str(home / "suite"))
    with pytest.raises(MeasurementError, match=r"localhost has no disk of the data set: .*No such file"):
        volume_on(node, planned, here)
    prepare_disk(node, directory_of(planned, here), disk_of(planned, here), here, said.append)
    assert "packing the data set on localhost" in said[0]
    volume: Any = volume_on(node, planned, here)
    assert (volume.directory, volume.same_device) == (tmp_path / "there", True)
    there = [volume.disk, volume.disk.with_name(f"{volume.disk.name}.stamp")]
    assert there == sorted(volume.disk.parent.iterdir()), "nothing else is left beside it"
    assert node.run(["debugfs", "-R", "cat /class/one.jpg", str(volume.disk)]).stdout.strip() == "12345"
    made = volume.disk.stat()
    prepare_disk(node, directory_of(planned, here), disk_of(planned, here), here, said.append)
    assert (len(said), volume.disk.stat()) == (1, made)
    with volume.disk.open("r+b") as file:  # somebody has written to it
        file.write(b"x")
    prepare_disk(node, directory_of(planned, here), disk_of(planned, here), here, said.append)
    assert len(said) == 2, "it was packed anew"
    assert volume.disk.read_bytes()[:1] != b"x"


def test_a_disk_that_lies_elsewhere_than_the_data_set_is_known(tmp_path: Path) -> None:
    node, planned = fake_node({("stat",): Completed(0, "2049\n2065\n", "")}), InventoryNode(name="n1", host="n1")
    assert not volume_on(node, planned, dataset(tmp_path / "here")).same_device


def test_a_machine_without_room_for_the_disk_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    node = fake_node({("test",): Completed(1, "", ""), ("df",): Completed(0, "Avail\n30000000\n", "")}, name="n1")
    planned = InventoryNode(name="n1", host="n1", directory="/srv/virtbench")
    told = r"the disk of the data set needs 0\.1 GB in /srv/virtbench/data-disks on n1, 0\.0 GB are free"
    here = dataset(tmp_path / "here")
    with pytest.raises(RequestError, match=told):
        prepare_disk(node, directory_of(planned, here), disk_of(planned, here), here, print)
    assert [argv[0] for argv in node.ran] == ["test", "mkdir", "df"]


def test_docker_is_sent_nothing_that_it_holds_already(tmp_path: Path) -> None:
    packed = tmp_path / "oci.tar"
    oci_archive(make(tmp_path / "tree", {"file": "content"}), packed, "a" * 64)
    said = (Completed(0, json.dumps(digests), "") for digests in (layers(packed), ["sha256:other"]))
    holding, other = (fake_node({("docker", "image", "inspect"): each}) for each in said)
    DOCKER.load(holding, "a" * 64, packed)
    with pytest.raises(NotImplementedError):  # it would be sent
        DOCKER.load(other, "a" * 64, packed)
    packed.write_text("nothing")
    with pytest.raises(RequestError, match="is no image"):
        layers(packed)


LIST = ("iptables", "--wait", "--list-rules", "FORWARD")


def test_a_machine_that_drops_what_it_forwards_passes_what_is_the_suites_and_others_are_left_as_they_are() -> None:
    for answer in (Completed(0, "-P FORWARD ACCEPT\n", ""), Completed(127, "", "no iptables")):
        with forwarded(open_node := fake_node({LIST: answer}), ["cni0"]):
            assert len(open_node.ran) == 1
    node = fake_node({LIST: Completed(0, "-P FORWARD DROP\n", "")})
    with forwarded(node, ["cni0"]):
        inserted = [f"--insert FORWARD {way} cni0 --jump ACCEPT" for way in ("-i", "-o")]
        assert [" ".join(argv[2:]) for argv in node.ran[1:]] == inserted
    assert [argv[2:5] for argv in node.ran[3:]] == [["--delete", "FORWARD", "-o"], ["--delete", "FORWARD", "-i"]]
