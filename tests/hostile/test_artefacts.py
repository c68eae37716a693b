"""Several benches on one home: what they share is made once, whole, and not believed because it is there."""

import multiprocessing
import multiprocessing.synchronize
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from provisioning import artefacts, ledger
from provisioning.engines import docker as store_module
from provisioning.engines.docker import docker_store
from provisioning.images import build as build_module
from provisioning.images import pack
from provisioning.images.build import finish
from provisioning.images.image import Image, find, stamp
from provisioning.images.tree import BUILDERS, Builder
from provisioning.nodes import LocalNode, local_node
from provisioning.paths import state
from provisioning.volumes import disk_of, prepare_disk
from suite.errors import RequestError
from suite.interfaces import Completed
from suite.job.datasets import Dataset
from tests.own_directories import held_in
from tests.provisioning.conftest import FakeNode, make_image

__all__ = ["make_image"]
SPAWN = multiprocessing.get_context("spawn")
Barrier = multiprocessing.synchronize.Barrier
pytestmark = pytest.mark.usefixtures("home")
NEEDED = pytest.mark.skipif(shutil.which("mke2fs") is None, reason="mke2fs is not installed")


def at_once(work: Callable[..., None], count: int, *arguments: Any) -> list[Any]:
    """Run the work in so many processes that begin together; return what each has put into the queue."""
    barrier, queue = SPAWN.Barrier(count), SPAWN.Queue()
    processes = [SPAWN.Process(target=work, args=(barrier, queue, *arguments)) for _ in range(count)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * count
    return found


def pictures(tmp_path: Path) -> Dataset:
    folder = tmp_path / "pictures/class"
    folder.mkdir(parents=True)
    for number in range(50):
        (folder / f"{number}.jpg").write_bytes(os.urandom(20_000))
    return Dataset(kind="imagefolder", directory=str(folder.parent), sha256="5" * 64, images=50, size_bytes=50 * 20_000)


def pack_it(barrier: Barrier, queue: Any, dataset: Dataset) -> None:
    said: list[str] = []
    with local_node((), None) as node:
        barrier.wait(60)
        prepare_disk(node, dataset.directory, str(disk_of(dataset)), dataset, said.append)
    queue.put(said)


@NEEDED
def test_two_benches_that_pack_one_data_set_make_one_whole_disk(home: Path, tmp_path: Path) -> None:
    dataset = pictures(tmp_path)
    lines = [line for each in at_once(pack_it, 3, dataset) for line in each]
    assert sum(line.startswith("packing the data set") for line in lines) == 1, "it was packed once"
    assert any("another bench is making" in line for line in lines)
    disk = disk_of(dataset)
    assert subprocess.run(["e2fsck", "-f", "-n", str(disk)], check=False, capture_output=True).returncode == 0
    assert [path.name for path in held_in(disk.parent)] == [disk.name, f"{disk.name}.stamp"]
    assert not list((home / "ledger").glob("*.json"))


@NEEDED
def test_a_disk_that_was_half_made_by_a_killed_bench_is_removed_and_made_again(tmp_path: Path) -> None:
    dataset = pictures(tmp_path)
    process = SPAWN.Process(target=hold_half_made, args=(str(disk_of(dataset).parent),))
    process.start()
    while not (half_made := list(disk_of(dataset).parent.glob(".making-*/half"))):
        time.sleep(0.01)
        assert process.is_alive()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(60)
    assert half_made[0].exists()
    assert f"directory {half_made[0].parent}" in ledger.clean()
    assert held_in(disk_of(dataset).parent) == []
    with local_node((), None) as node:
        prepare_disk(node, dataset.directory, str(disk_of(dataset)), dataset, print)
        assert artefacts.digest_of(node, str(disk_of(dataset)))


def hold_half_made(parent: str) -> None:
    with local_node((), None) as node, artefacts.workshop(node, parent) as place:
        Path(place, "half").touch()
        time.sleep(60)


def test_a_file_is_believed_by_its_stamp_and_only_where_nobody_else_could_have_written() -> None:
    final = state("disks") / "disk.img"
    with local_node((), None) as node:
        with artefacts.workshop(node, str(final.parent)) as half_made:
            made = Path(half_made, "disk.img")
            made.write_bytes(b"content")
            artefacts.put_stamped(node, str(made), str(final), artefacts.sha256_on(node, str(made)))
        digest = artefacts.digest_of(node, str(final))
        assert digest == stamp(final).sha256
        times = final.stat()
        final.write_bytes(b"another")
        os.utime(final, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert artefacts.digest_of(node, str(final)) == digest, "what its owner forges is not looked for"
        final.chmod(0o666)
        assert artefacts.digest_of(node, str(final)) is None, "others could have written it: it is hashed"
        final.write_bytes(b"content")
        assert artefacts.digest_of(node, str(final)) == digest
        final.rename(final.with_name("elsewhere"))
        final.symlink_to("elsewhere")
        assert artefacts.digest_of(node, str(final)) is None
        final.unlink()
        (final.with_name("disk.img.stamp")).unlink()
        final.write_bytes(b"content")
        assert artefacts.digest_of(node, str(final)) is None, "nothing says what it was"


def test_what_is_made_is_on_the_disk_before_it_takes_its_name() -> None:
    node = FakeNode()
    artefacts.put(node, "/place/.making-0123456789ab/disk.img", "/place/disk.img")
    ran = [("sync", "/place/.making-0123456789ab/disk.img"), ("mv", "/place/disk.img"), ("sync", "/place")]
    assert [(argv[0], argv[-1]) for argv in node.ran] == ran


def test_a_packed_file_that_others_may_write_to_is_hashed_before_use(make_image: Callable[..., Image]) -> None:
    image = make_image()
    path, info = image.file("disk.img"), image.file("disk.img").stat()
    path.write_bytes(bytes(info.st_size))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    image.check()
    path.chmod(0o666)
    with pytest.raises(RequestError, match=r"disk\.img has another digest"):
        image.check()


# ---- the image


def build_it(barrier: Barrier, queue: Any, rebuild: bool) -> None:
    """Build with the real context and lock, without the container engine, and with wheels that pip need not fetch."""
    said: list[str] = []
    run = LocalNode.run

    def without_pip(node: LocalNode, argv: Sequence[str], **options: Any) -> Completed:
        if "pip" not in argv:
            return run(node, argv, **options)
        wheels = Path(argv[argv.index("--dest") + 1])
        wheels.mkdir()
        (wheels / "torch-2.13.0-py3-none-any.whl").write_text("wheel")
        return Completed(0, "", "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalNode, "run", without_pip)
        patch.setattr(build_module, "NEEDED_BYTES", 0)
        patch.setattr(build_module, "working_builder", lambda _: BUILDERS[0])
        patch.setattr(build_module, "_base", lambda *_: "base")
        patch.setattr(Builder, "build", lambda *_, **__: None)
        patch.setattr(build_module, "unpack", copy_context)
        patch.setattr(pack, "disk", lambda _, __, target: target.write_text("disk"))
        patch.setattr(pack, "oci_archive", lambda _, target, __: target.write_text("oci"))
        patch.setattr(pack, "initramfs", lambda _, __, target: target.write_text("initrd"))
        barrier.wait(60)
        queue.put((build_module.build("cpu", said.append, rebuild=rebuild).digest, said))


def copy_context(_node: object, _builder: object, _image: str, tree: Path) -> None:
    shutil.copytree(state("cache", "context-cpu"), tree, dirs_exist_ok=True)
    for name in ("etc", "opt/virtbench"):
        (tree / name).mkdir(parents=True)


@pytest.mark.parametrize("rebuild", [False, True])
def test_parallel_builds_end_well_and_with_one_image(home: Path, rebuild: bool) -> None:
    built = at_once(build_it, 3, rebuild)
    (digest,) = {digest for digest, _ in built}
    lines = [line for _, said in built for line in said]
    assert any("another bench is making the image" in line for line in lines)
    if not rebuild:
        assert sum("is ready in" in line for line in lines) == 1
    assert [path.name for path in held_in(home / "images")] == [digest[:12]]
    find(digest).check()
    assert not list((home / "ledger").glob("*.json"))


def test_a_store_of_the_guests_docker_is_made_once_and_no_bench_removes_anothers(
    make_image: Callable[..., Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make_image()
    loading = threading.Event()
    made: list[Path] = []

    def load(_node: object, _image: object, store: Path, _sockets: object) -> None:
        made.append(store)
        loading.set()
        assert not waited.wait(60) or store.is_dir()

    waited = threading.Event()
    said: list[str] = []

    def note(line: str) -> None:
        said.append(line)
        if "another bench is making" in line:
            waited.set()

    monkeypatch.setattr(store_module, "_load", load)
    monkeypatch.setattr(store_module, "disk", lambda _, __, target: target.write_text("store"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    results: list[Path] = []
    both = [threading.Thread(target=lambda: results.append(docker_store(find(image.digest), note))) for _ in range(2)]
    both[0].start()
    assert loading.wait(60)
    both[1].start()
    for thread in both:
        thread.join(60)
    assert (results, waited.is_set()) == ([image.file("docker.img")] * 2, True)
    assert find(image.digest).files["docker.img"] == stamp(image.file("docker.img"))
    assert [store.exists() for store in made] == [False]


def test_an_image_in_use_is_not_replaced_by_an_equal_one(make_image: Callable[..., Image]) -> None:
    image = make_image()
    before = image.tree.stat().st_ino
    with local_node((), None) as node, artefacts.workshop(node, str(state("images"))) as building:
        (Path(building) / "tree/opt/virtbench").mkdir(parents=True)
        (Path(building) / "tree/file").write_text("x")
        again = finish(node, Path(building), print, variant="cpu", recipe="1" * 64, base="base")
    assert (again.digest, image.tree.stat().st_ino) == (image.digest, before)
    assert find(image.digest).recipe_sha256 == "1" * 64
    find(image.digest).check()
