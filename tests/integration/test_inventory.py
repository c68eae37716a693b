"""Machines of an inventory: three sshd in three network namespaces, reached as any other machine is."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from provisioning.engines.base import get_engine
from provisioning.images.image import Image, stamp
from provisioning.images.pack import oci_archive
from provisioning.lab.lab import DEVICE
from provisioning.layers.vm import VmLayer
from provisioning.machines.base import GuestSpec
from provisioning.machines.qemu import QEMU
from provisioning.remote.content import directory_of, disk_of, sync_file, sync_image
from provisioning.remote.machine import machine
from provisioning.sites.machines import open_on_machines
from provisioning.volumes import DISKS, MOUNT, disk_name, prepare_disk
from scenarios.datasets.resolve import resolve
from suite import userland
from suite.errors import MeasurementError, RequestError
from suite.inventory import DIRECTORY, read_inventory
from suite.job.distributed import DistributedJob, MachineSpec
from tests.integration.bench import SMALL, Running, added_since, bench, by_arm, measured, on, ours, records, refusal
from tests.integration.machine import ENVELOPE, require, require_image, require_root, wait_for
from tests.integration.ssh_machines import Fleet, fleet
from tests.scenarios.pictures import folder

pytestmark = pytest.mark.integration

TRAIN = ("--scenario", "distributed", "--model", "alexnet", "--batch", "2", "--image-px", "64", *SMALL)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    require_root()
    with fleet(tmp_path_factory.mktemp("fleet")) as found:
        yield found


def still(there: dict[str, set[str]]) -> dict[str, set[str]]:
    """What of it is there now."""
    now = ours()
    return {kind: both for kind, found in there.items() if (both := found & set(now[kind]))}


def left_on(machines: Fleet) -> dict[str, object]:
    """What could be left: interfaces beside the machine's own, and whether and by which rules it passes packets on."""
    lab = machines.lab.machine
    left: dict[str, object] = {}
    for node in machines.machines:
        links = [link["ifname"] for link in json.loads(lab.run(node.argv(["ip", "-json", "link", "show"])).stdout)]
        asked = (["sysctl", "-n", "net.ipv4.ip_forward"], ["ip", "route", "show"], ["iptables", "-S", "FORWARD"])
        left[node.name] = links, [lab.run(node.argv(argv), check=False).stdout for argv in asked]
    return left


@pytest.mark.thorough
def test_a_job_on_a_data_set_runs_on_the_machines_and_leaves_nothing_there(machines: Fleet, tmp_path: Path) -> None:
    require("engine", "podman")
    # As docker does it where it runs.
    machines.lab.machine.run(machines.machines[1].argv(["iptables", "-P", "FORWARD", "DROP"]), check=False)
    image, before, links = require_image(), ours(), left_on(machines)
    here, there = folder(tmp_path / "here", 12), folder(tmp_path / "there", 12)
    inventory = str(machines.inventory(f'data = "{there}"'))
    words = ["--inventory", inventory, "--data", f"imagefolder:{here}", "--engine", "podman"]
    words += ["--target", "bare-metal", "--target", "container"]
    found = by_arm(measured(tmp_path / "run", *TRAIN, *words))
    assert set(found) == {"bare-metal", "container"}
    addresses = {"bare-metal": [node.address for node in machines.machines]}
    addresses["container"] = [f"10.244.{number}.2" for number in (1, 2, 3)]
    for target, record in found.items():
        assert record.outcome.status == "ok", record.outcome
        assert [rank.address for rank in record.ranks] == addresses[target]
        assert {rank.environment.userland_sha256 for rank in record.ranks} == {image.digest}
        assert all({link.rank for link in rank.links} == {0, 1, 2} - {rank.rank} for rank in record.ranks)
        assert all(link.rate_bits_per_s for rank in record.ranks for link in rank.links)
        assert all(rank.clock_offset_s is not None for rank in record.ranks)
        assert record.data_use
        assert record.data_use.images == 12
        assert record.job.distributed
        assert [each.name for each in record.job.distributed.machines] == ["n1", "n2", "n3"]
        assert str(machines.place) not in record.model_dump_json(), "no path of the user's"
    engines = [rank.environment.container_engine for rank in found["container"].ranks]
    assert {engine.name for engine in engines if engine} == {"podman"}
    assert left_on(machines) == links
    assert added_since(before) == {}
    (there / "class-00/more.jpg").write_bytes(b"more")
    assert f"n1 has another data set in {there}: 13 files" in refusal("run", *TRAIN, *words)


@pytest.mark.thorough
def test_the_docker_of_a_machine_is_sent_the_image_once(docker_host: str, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("content")
    archive = tmp_path / "oci.tar"
    oci_archive(tmp_path / "tree", archive, "a" * 64)
    with fleet(tmp_path, 1, f"DOCKER_HOST={docker_host}") as machines:
        inventory = read_inventory(machines.inventory())
        with machine(inventory.nodes[0]) as reached:
            with pytest.raises(MeasurementError, match="the docker of n1 does not hold"):
                get_engine("docker").check(reached, "a" * 64)
            get_engine("docker").load(reached, "a" * 64, archive)
            get_engine("docker").check(reached, "a" * 64)
            before = reached.run(["docker", "image", "ls", "--no-trunc", "--quiet"]).stdout
            get_engine("docker").load(reached, "a" * 64, archive)
            assert reached.run(["docker", "image", "ls", "--no-trunc", "--quiet"]).stdout == before


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_guests_of_two_machines_reach_each_other_and_have_the_data_set_as_a_disk(
    machines: Fleet, tmp_path: Path
) -> None:
    require("target", "vm")
    image = require_image()
    _, dataset = resolve(f"imagefolder:{folder(tmp_path / 'here', 12)}", tmp_path)
    disk = Path(DIRECTORY, DISKS, disk_name(dataset))
    machines.lab.machine.run(machines.machines[0].argv(["iptables", "-P", "FORWARD", "DROP"]), check=False)
    links = left_on(machines)
    specs = [
        MachineSpec(name=node.name, address=node.address, interface=DEVICE, cpus=ENVELOPE.cpus)
        for node in machines.machines[:2]
    ]
    distributed = DistributedJob(
        strategy="parameter-server", workers=1, servers=1, network="overlay", machines=tuple(specs), guests="routed"
    )
    inventory = read_inventory(machines.inventory(f'data = "{folder(tmp_path / "there", 12)}"'))
    inventory = inventory.model_copy(update={"nodes": inventory.nodes[:2]})
    stacks = [[VmLayer(QEMU, GuestSpec(image, "tcg", ENVELOPE))] for _ in range(2)]
    with ExitStack() as stack:
        stack.callback(disk.unlink)
        for planned in inventory.nodes:
            with machine(planned) as reached:
                sync_image(reached, image, print)
                if image.directory.parents[1] != Path(DIRECTORY):  # or else it has the file, and is in use
                    sync_file(reached, image, "disk.img", print)
                prepare_disk(reached, directory_of(planned, dataset), disk_of(planned, dataset), dataset, print)
        instances = stack.enter_context(open_on_machines(distributed, inventory, stacks, image, dataset))
        assert [each.address for each in instances] == ["10.245.1.2", "10.245.2.2"]
        assert [[link.source_address for link in each.links] for each in instances] == [["10.245.1.2"], ["10.245.2.2"]]
        first = instances[0].node
        assert first.name == "n1/vm"
        assert first.run(["uname", "-r"]).stdout.strip() != os.uname().release
        assert "via 10.245.1.1" in first.run(["ip", "route", "get", "10.245.2.2"]).stdout
        for each in instances:
            assert f"/dev/vdb {MOUNT} ext4 ro" in each.node.run(["cat", "/proc/mounts"]).stdout
            assert len(each.node.run(["find", MOUNT, "-type", "f"]).stdout.splitlines()) == dataset.images == 12
    assert left_on(machines) == links


def test_after_a_kill_of_the_suite_the_machines_clean_up_by_themselves(machines: Fleet, tmp_path: Path) -> None:
    require_image()
    before, links = ours(), left_on(machines)
    words = ("--inventory", str(machines.inventory()), *on("container"), "--out", str(tmp_path / "run"))
    running = Running(tmp_path / "log", "run", *TRAIN, "--steps", "500", *words)
    running.wait_until_it_says("measuring")
    there = added_since(before)
    assert len(there["workers"]) >= 3
    assert there["groups"]
    running.kill()

    def left() -> tuple[object, set[str]]:
        """What is left but for entries of the ledger and a directory on this side, which are for bench clean."""
        return left_on(machines), still(there).keys() - {"files", "ledger"}

    wait_for("the end of all", lambda: left() == (links, set()), lambda: (left(), still(there)), within_s=240)
    bench("clean")
    assert still(there) == {}


def small_image() -> Image:
    """Of a few bytes, in the suite's folder of the test; a name that sha256sum escapes is among its files."""
    tree = Path(os.environ["VIRTBENCH_HOME"]) / "images/building/tree"
    (tree / "opt/virtbench").mkdir(parents=True)
    (tree / "odd\\name").write_text("content")
    (tree / "link").symlink_to("nowhere")
    digest = userland.write_manifest(str(tree))
    disk = tree.parent / "disk.img"
    disk.write_bytes(bytes(1 << 20) + b"content")
    files = {disk.name: stamp(disk)}
    image = Image(digest=digest, variant="cpu", recipe_sha256="0" * 64, created_at="2026", base="debian", files=files)
    tree.parent.rename(image.directory)
    return image


def test_the_image_is_sent_once_and_what_arrives_damaged_is_refused(
    machines: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path / "home"))
    image, there, said = small_image(), tmp_path / "there", list[str]()
    with machine(read_inventory(machines.inventory(f'directory = "{there}"')).nodes[0]) as reached:
        tree = Path(sync_image(reached, image, said.append))
        assert userland.differences(str(tree), everything=True) == []
        assert userland.manifest_digest(str(tree)) == image.digest
        assert any("sending" in line for line in said)
        sync_file(reached, image, "disk.img", said.append)
        assert (tree.parent / "disk.img").read_bytes() == image.file("disk.img").read_bytes()
        said.clear()
        assert sync_image(reached, image, said.append) == str(tree)
        sync_file(reached, image, "disk.img", said.append)
        assert said == []
        (tree.parent / "disk.img").unlink()
        image.file("disk.img").write_bytes(bytes(image.files["disk.img"].size_bytes))
        with pytest.raises(MeasurementError, match="is another"):
            sync_file(reached, image, "disk.img", said.append)
        (tree / userland.MANIFEST).write_text("")
        (image.tree / "odd\\name").write_text("changed")
        with pytest.raises(MeasurementError, match="is not image"):
            sync_image(reached, image, said.append)
    assert [path.name for path in (there / "images").iterdir()] == [image.digest[:12]]


def test_a_wrong_interface_is_told_with_both_ends(machines: Fleet, tmp_path: Path) -> None:
    require_image()
    lab, second = machines.lab.machine, machines.machines[1]
    lab.run(second.argv(["ip", "link", "add", "dev", "wrong", "type", "veth", "peer", "name", "far"]))
    try:
        lab.run(second.argv(["ip", "address", "add", "192.0.2.7/24", "dev", "wrong"]))
        lab.run(second.argv(["ip", "link", "set", "dev", "wrong", "up"]))
        inventory = machines.inventory()
        inventory.write_text(inventory.read_text().replace('host = "n2"', 'host = "n2"\ninterface = "wrong"'))
        words = ("--inventory", str(inventory), "--target", "bare-metal", "--out", str(tmp_path / "run"))
        bench("run", *TRAIN, *words, code=1)
    finally:
        lab.run(second.argv(["ip", "link", "delete", "dev", "wrong"]))
    (record,) = records(tmp_path / "run").values()
    assert record.outcome.kind == "network"
    assert "n1 (n1, eth0) does not reach n2 (n2, wrong) (192.0.2.7)" in str(record.outcome.message)


def test_a_machine_whose_key_is_not_known_is_refused(machines: Fleet) -> None:
    known = machines.place / "known_hosts"
    kept = known.read_text()
    known.write_text("")
    try:
        said = refusal("run", *TRAIN, "--inventory", str(machines.inventory()), "--target", "bare-metal")
    finally:
        known.write_text(kept)
    assert "no connection to n1 (n1): Host key verification failed" in said
    assert "connect once by hand" in said


def wait_until_gone(pid: int) -> None:
    """What is killed is there until its parent there has heard of it."""
    wait_for("its end", lambda: not Path(f"/proc/{pid}").exists(), lambda: pid, within_s=60)


def test_what_is_still_running_on_a_machine_ends_with_the_connection(machines: Fleet) -> None:
    with machine(read_inventory(machines.inventory()).nodes[0]) as reached:
        started = reached.start(["sh", "-c", "echo $$; exec sleep 1000"])
        pid = int(next(started.lines(60)))
        assert Path(f"/proc/{pid}").exists()
        killed = reached.start(["sh", "-c", "echo $$; exec sleep 1000"])
        other = int(next(killed.lines(60)))
        killed.kill()
        wait_until_gone(other)
    wait_until_gone(pid)


def test_what_machines_do_not_carry_is_refused_before_they_are_reached(tmp_path: Path) -> None:
    path, before = tmp_path / "hosts.toml", ours()
    path.write_text("".join(f'[[node]]\nname = "n{n}"\nhost = "nowhere{n}.invalid"\n' for n in (1, 2, 3)))
    said = refusal("run", *TRAIN, "--inventory", str(path), "--workers", "3")
    assert "need a machine each, and it lists 3" in said
    assert "what to do" in said
    assert added_since(before) == {}


def test_a_cpu_that_a_machine_does_not_have_is_refused(machines: Fleet) -> None:
    inventory = read_inventory(machines.inventory('cpus = "8000"'))
    with pytest.raises(RequestError, match="allows no CPU 8000"), machine(inventory.nodes[0]):
        pass
