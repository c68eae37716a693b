"""Training on real files, cold and warm, and from a disk that was made slow."""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from PIL import Image as Picture

from provisioning.cgroup import limits as cgroups
from provisioning.cgroup import removal as group_removal
from provisioning.nodes import LocalNode, WrappedNode, local_node
from provisioning.paths import home, state
from provisioning.sites.here import Here
from provisioning.targets import Choices
from scenarios.datasets.resolve import resolve
from scenarios.training import Real
from suite.interfaces import Instance, Node
from suite.job.datasets import Dataset
from suite.job.job import Loading
from suite.job.profiles import Sizes
from suite.plan import Plan, Trial
from suite.records.record import TrialRecord
from tests.integration.machine import ENVELOPE, require, require_fast_guests, require_image, require_root
from tests.integration.test_run import NOTHING, SMALL, bench, on, ours, records
from tests.integration.trials import run_plan
from tests.jobs import plan_of

pytestmark = pytest.mark.integration

SLOW_BYTES_PER_S = 5_000_000
STEPS = {"bare-metal": 2, "vm": 1}
FILE_BYTES = 8 << 20
"""One takes 1.7 s from the slow disk."""
LARGE_BYTES = 32 << 20
"""Four are more than a job reads of its programs again, where the kernel gives their pages back early."""
COMMENT = b"\xff\xfe\xff\xff" + random.Random(0).randbytes(65533)
"""A segment of a JPEG file that decoders skip: files become large without becoming slow to decode. Not of zeros, of
which a packed file system keeps holes that nobody reads."""


@pytest.fixture
def data_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on a block device of its own, where also the disks that VMs read lie: it alone is to be slow."""
    require_root()
    if not (cgroups.ROOT / "blkio").is_dir():
        pytest.skip("the block I/O controller of control groups version 1 is not here")
    place = Path(os.path.realpath(tmp_path))
    disk, top, disks_of_vms = place / "disk.img", place / "top", state("data-disks")
    top.mkdir()
    with disk.open("wb") as file:
        file.truncate(1 << 30)
    with local_node((), None) as node, ExitStack() as stack:
        node.run(["mkfs.ext4", "-q", "-F", str(disk)])
        node.run(["mount", "-o", "loop", str(disk), str(top)])
        stack.callback(node.run, ["umount", str(top)])
        (top / "disks").mkdir()
        node.run(["mount", "--bind", str(top / "disks"), str(disks_of_vms)])
        stack.callback(node.run, ["umount", str(disks_of_vms)])
        yield top
    assert ours() == NOTHING


def large_files(place: Path, file_bytes: int, images: int = 12) -> Dataset:
    """Small pictures in large files: long to read, and next to nothing to decode."""
    for number in range(images):
        directory = place / f"class{number % 2}"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{number:02}.jpg"
        Picture.effect_noise((64, 48), 50 + number).convert("RGB").save(path, quality=90)
        plain = path.read_bytes()
        path.write_bytes(plain[:2] + COMMENT * (file_bytes >> 16) + plain[2:])
    _, dataset = resolve(f"imagefolder:{place}", home())
    assert dataset is not None
    return dataset


def plan_for(dataset: Dataset, target: str, choices: Choices) -> Plan:
    return plan_of(
        scenario="real",
        targets=(target,),
        models=("resnet50",),
        data="imagefolder",
        profile="smoke",
        sizes=Sizes(batch=4, image_px=32, warmup_steps=0, steps=STEPS[target]),
        envelope=ENVELOPE,
        trial_timeout_s=500,
        dataset=dataset,
        page_cache="cold",
        # Processes that read ahead would import torch, which takes an emulated CPU half a minute more.
        loading=Loading(loader_workers=0 if target == "vm" else None),
        **choices.layers().model_dump(),
    )


@contextmanager
def slow(pid: int, device: int) -> Iterator[None]:
    """The block I/O controller holds back what the process, and what it starts, reads from the device."""
    group = cgroups.ROOT / "blkio" / f"virtbench-slow-{os.getpid()}"
    group.mkdir()
    try:
        limit = f"{os.major(device)}:{os.minor(device)} {SLOW_BYTES_PER_S}"
        (group / "blkio.throttle.read_bps_device").write_text(limit)
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        (cgroups.ROOT / "blkio/cgroup.procs").write_text("0")
        group_removal.remove(group.name)


def qemu(node: Node) -> int:
    while isinstance(node, WrappedNode):
        node = node.parent
    assert isinstance(node, LocalNode)
    return node._started[0].popen.pid


@pytest.mark.parametrize("target", ["bare-metal", "vm"])
def test_a_slow_data_disk_is_seen_in_the_wait_for_data(target: str, tmp_path: Path, data_disk: Path) -> None:
    require("target", target)
    if target == "vm":
        require_fast_guests()
    # Two processes read four batches ahead of two: of 12 images some would be read a second time, from the page cache.
    dataset = large_files(data_disk / "set", FILE_BYTES, images=24 if target == "bare-metal" else 12)
    choices = Choices(require_image(), "runc", "tcg")
    Here(choices).prepare(plan_of(targets=(target,), dataset=dataset, envelope=ENVELOPE), lambda _: None)
    device = Path(dataset.directory).stat().st_dev

    @contextmanager
    def opened(trial: Trial) -> Iterator[Sequence[Instance]]:
        # What bare metal starts is a child of this process; a guest's reads are QEMU's.
        with (
            Here(choices).opened(trial) as instances,
            slow(qemu(instances[0].node) if target == "vm" else os.getpid(), device),
        ):
            yield instances

    (record,) = run_plan(plan_for(dataset, target, choices), Real(), opened, tmp_path / "run")
    assert record.outcome.status == "ok", record.outcome
    assert record.steps is not None
    assert record.data_use is not None
    assert record.timeline is not None
    # What processes read ahead while the model is built and computes is not waited for; the rest is.
    reading_s = 4 * STEPS[target] * FILE_BYTES / SLOW_BYTES_PER_S
    beside_s = 0.0 if target == "vm" else (record.timeline.build_s or 0.0) + sum((record.steps.compute_s or [])[:-1])
    assert sum(record.steps.data_s or ()) > 0.8 * (reading_s - beside_s) > 2, record.steps
    check_reads(record)
    # QEMU reads past the page cache of this host: what the guest read, the device has given.
    assert record.resources is not None
    assert record.resources.serving is not None
    assert (record.resources.serving.disk_read_bytes or 0) >= record.data_use.bytes_read


def test_cold_trials_read_from_the_device_and_warm_ones_do_not(tmp_path: Path) -> None:
    require("engine", "podman")
    dataset = large_files(tmp_path / "set", LARGE_BYTES)

    def trained(cache: str, out: Path, *more: str) -> dict[str, TrialRecord]:
        words = ["run", "--scenario", "real", "--data", f"imagefolder:{dataset.directory}", "--cache", cache, *SMALL]
        words += [*more, "--engine", "podman", "--target", "bare-metal", "--target", "container", "--out", str(out)]
        ended = bench(*words)
        assert ended.returncode == 0, ended.stderr
        found = records(out)
        assert {record.data_use.sha256 for record in found.values() if record.data_use} == {dataset.sha256}
        assert {record.job.page_cache for record in found.values()} == {cache}
        return found

    cold = trained("cold", tmp_path / "cold", "--ablate", "data-layer")
    for record in cold.values():
        check_reads(record)
    assert filesystem(cold["container"]) == filesystem(cold["bare-metal"])
    assert filesystem(cold["container+data-layer"]) == "overlay"
    for record in trained("warm", tmp_path / "warm").values():
        check_reads(record)
    assert ours() == NOTHING


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    require_root()
    image = tmp_path / "device.img"
    with image.open("wb") as file:
        file.truncate(128 << 20)
    with local_node((), None) as node:
        device = node.run(["losetup", "--find", "--show", str(image)]).stdout.strip()
    try:
        yield device
    finally:
        with local_node((), None) as node:
            node.run(["losetup", "--detach", device])


@pytest.mark.thorough
def test_a_data_set_on_a_device_of_its_own_is_read_from_there(tmp_path: Path, device: str) -> None:
    place = f"generated:{tmp_path / 'set'}"
    assert bench("data", "make", "--images", "20", "--out", str(tmp_path / "set")).returncode == 0
    words = ["--scenario", "real", "--data", place, "--data-disk", device, *on("container"), *SMALL]
    words += ["--ablate", "data-layer", "--out", str(tmp_path / "run")]
    assert (empty := bench("run", *words)).returncode == 2
    writing = f"bench data disk --device {device} --data {place}"
    assert f"does not hold this data set: it is empty\n  what to do: write it there, once: {writing}" in empty.stderr
    with local_node((), None) as node:
        node.run(["mke2fs", "-q", "-L", "home", device])
        foreign = bench(*writing.split()[1:])
        assert (foreign.returncode, "it holds ext2 labelled home" in foreign.stderr) == (2, True)
        node.run(["wipefs", "--all", device])
    for said in ("writing 20 images", "holds the data set already"):
        written = bench(*writing.split()[1:])
        assert (written.returncode, said in written.stderr) == (0, True), written.stderr
    ended = bench("run", *words)
    assert ended.returncode == 0, ended.stderr
    found = records(tmp_path / "run")
    use = found["container"].data_use
    assert use is not None
    assert (use.filesystem, use.device) == ("ext4", device)
    assert found["container"].job.dataset is not None
    assert found["container"].job.dataset.device == device
    check_reads(found["container"])
    assert filesystem(found["container+data-layer"]) == "overlay"
    assert found["container+data-layer"].substitutes == ["disk:other-device"]
    assert ours() == NOTHING


def filesystem(record: TrialRecord) -> str | None:
    return record.data_use.filesystem if record.data_use else None


def check_reads(record: TrialRecord) -> None:
    use = record.data_use
    assert use is not None
    assert use.images_read >= 2 * 2
    assert use.damaged == 0
    if record.job.page_cache == "cold":
        assert use.page_cache_share == pytest.approx(0, abs=0.01)
        assert read_bytes(record) >= use.bytes_read
    else:
        assert use.page_cache_share is not None
        assert use.page_cache_share > 0.95
        # The job reads its programs too; what comes from the device is less than what it reads of the data set.
        assert read_bytes(record) < use.bytes_read


def read_bytes(record: TrialRecord) -> int:
    assert record.resources
    assert record.resources.worker
    assert record.resources.worker.disk_read_bytes is not None
    return record.resources.worker.disk_read_bytes
