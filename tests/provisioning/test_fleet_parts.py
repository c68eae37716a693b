"""What the machines of an inventory must hold and let pass: the data set, docker's image, what is forwarded."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from commands.run.prepare import refuse_changed
from provisioning import volumes
from provisioning.engines.docker import DOCKER, layers
from provisioning.images.pack import oci_archive
from provisioning.nodes import LocalNode
from provisioning.remote import content
from provisioning.remote.content import check_copy, directory_of, disk_of, volume_on
from provisioning.remote.network import forwarded
from provisioning.volumes import prepare_disk
from scenarios.command_files import files_of
from scenarios.datasets.resolve import resolve
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Completed
from suite.inventory import InventoryNode
from suite.job.datasets import Dataset
from tests.provisioning.conftest import fake_node
from worker.data import listing


def dataset(directory: Path) -> Dataset:
    (directory / "class").mkdir(parents=True)
    (directory / "class/one.jpg").write_bytes(b"12345")
    digest, sha256 = listing.identify(directory, tuple(listing.entries_of(directory)))
    assert digest == "contents"
    return Dataset(
        kind="imagefolder", directory=str(directory), sha256=sha256, digest="contents", images=1, size_bytes=5
    )


def test_a_machine_with_the_same_files_elsewhere_holds_the_data_set(node: LocalNode, tmp_path: Path) -> None:
    here, _ = dataset(tmp_path / "here"), dataset(tmp_path / "there")
    check_copy(node, str(tmp_path / "there"), here)
    planned = InventoryNode(name="n1", host="n1", data="/srv/there")
    assert directory_of(planned, here) == "/srv/there"
    assert directory_of(InventoryNode(name="n2", host="n2"), here) == here.directory


def test_a_machine_with_other_files_is_refused_by_name(node: LocalNode, tmp_path: Path) -> None:
    here, _ = dataset(tmp_path / "here"), dataset(tmp_path / "there")
    (tmp_path / "there/class/two.jpg").write_bytes(b"1")
    with pytest.raises(RequestError, match=r"localhost has another data set in .*there: 2 files of 6 bytes"):
        check_copy(node, str(tmp_path / "there"), here)
    with pytest.raises(RequestError, match=r"localhost does not hold the data set: .*nowhere: No such file"):
        check_copy(node, str(tmp_path / "nowhere"), here)


def test_a_machine_with_other_contents_in_files_of_equal_sizes_is_refused(node: LocalNode, tmp_path: Path) -> None:
    here, _ = dataset(tmp_path / "here"), dataset(tmp_path / "there")
    (tmp_path / "there/class/one.jpg").write_bytes(b"54321")
    with pytest.raises(RequestError, match=r"of 5 bytes, and .* \(contents are compared\)") as refused:
        check_copy(node, str(tmp_path / "there"), here)
    assert "rsync -a --checksum --delete" in str(refused.value.remedy)


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
    for data in (b"12345", b"54321", b"12345"):
        place = tmp_path / "set"
        (place / "class").mkdir(parents=True, exist_ok=True)
        (place / "class/one.jpg").write_bytes(data)
        packed = resolve(f"imagefolder:{place}", home)[1]
        prepare_disk(node, packed.directory, str(volumes.disk_of(packed)), packed, lambda _: None)
        held = node.run(["debugfs", "-R", "cat /class/one.jpg", str(volumes.disk_of(packed))]).stdout
        assert held.strip().encode() == data
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
    assert list(disk.parent.iterdir()) == []


def test_the_disk_of_a_machine_is_made_of_its_own_copy_once(node: LocalNode, home: Path, tmp_path: Path) -> None:
    here, said = dataset(tmp_path / "here"), list[str]()
    dataset(tmp_path / "there")
    planned = InventoryNode(name="n1", host="n1", data=str(tmp_path / "there"), directory=str(home / "suite"))
    with pytest.raises(MeasurementError, match=r"localhost has no disk of the data set: .*No such file"):
        volume_on(node, planned, here)
    prepare_disk(node, directory_of(planned, here), disk_of(planned, here), here, said.append)
    assert "packing the data set on localhost" in said[0]
    volume: Any = volume_on(node, planned, here)
    assert volume.directory == tmp_path / "there"
    assert volume.same_device
    there = [volume.disk, volume.disk.with_name(f"{volume.disk.name}.stamp")]
    assert there == sorted(volume.disk.parent.iterdir()), "nothing else is left beside it"
    held = node.run(["debugfs", "-R", "cat /class/one.jpg", str(volume.disk)]).stdout.strip()
    assert held == "12345"
    made = volume.disk.stat()
    prepare_disk(node, directory_of(planned, here), disk_of(planned, here), here, said.append)
    assert len(said) == 1
    assert volume.disk.stat() == made
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
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("content")
    packed = tmp_path / "oci.tar"
    oci_archive(tmp_path / "tree", packed, "a" * 64)
    said = (Completed(0, json.dumps(digests), "") for digests in (layers(packed), ["sha256:other"]))
    holding, other = (fake_node({("docker", "image", "inspect"): each}) for each in said)
    DOCKER.load(holding, "a" * 64, packed)
    with pytest.raises(NotImplementedError):  # it would be sent
        DOCKER.load(other, "a" * 64, packed)


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "oci.tar").write_text("nothing")
    with pytest.raises(RequestError, match="is no image"):
        layers(tmp_path / "oci.tar")


LIST = ("iptables", "--wait", "--list-rules", "FORWARD")


def test_a_machine_that_drops_what_it_forwards_passes_what_is_the_suites() -> None:
    node = fake_node({LIST: Completed(0, "-P FORWARD DROP\n", "")})
    with forwarded(node, ["cni0"]):
        assert [" ".join(argv[2:]) for argv in node.ran[1:]] == [
            "--insert FORWARD -i cni0 --jump ACCEPT",
            "--insert FORWARD -o cni0 --jump ACCEPT",
        ]
    assert [argv[2:5] for argv in node.ran[3:]] == [["--delete", "FORWARD", "-o"], ["--delete", "FORWARD", "-i"]]


@pytest.mark.parametrize("answer", [Completed(0, "-P FORWARD ACCEPT\n", ""), Completed(127, "", "no iptables")])
def test_a_machine_that_drops_nothing_is_left_as_it_is(answer: Completed) -> None:
    node = fake_node({LIST: answer})
    with forwarded(node, ["cni0"]):
        pass
    assert len(node.ran) == 1
