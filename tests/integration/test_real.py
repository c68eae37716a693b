"""Training on real files, cold and warm, from a disk that was made slow, and in whole epochs with checkpoints."""

import json
import os
import random
import time
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
from tests.integration.bench import (
    BOTH,
    RUNC,
    SMALL,
    Running,
    added_since,
    bench,
    by_arm,
    measured,
    on,
    ours,
    records_in,
    refusal,
    run_plan,
    some,
)
from tests.integration.machine import ENVELOPE, require, require_fast_guests, require_image
from tests.jobs import plan_of

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("nothing_left")]

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


def large_files(place: Path, file_bytes: int, images: int = 12) -> Dataset:
    """Small pictures in large files: long to read, and next to nothing to decode."""
    for number in range(images):
        directory = place / f"class{number % 2}"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{number:02}.jpg"
        Picture.effect_noise((64, 48), 50 + number).convert("RGB").save(path, quality=90)
        plain = path.read_bytes()
        path.write_bytes(plain[:2] + COMMENT * (file_bytes >> 16) + plain[2:])
    return resolve(f"imagefolder:{place}", home())[1]


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


@pytest.mark.thorough
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
    steps = some(record.steps)
    # What processes read ahead while the model is built and computes is not waited for; the rest is.
    reading_s = 4 * STEPS[target] * FILE_BYTES / SLOW_BYTES_PER_S
    beside_s = 0.0 if target == "vm" else (some(record.timeline).build_s or 0.0) + sum((steps.compute_s or [])[:-1])
    assert sum(steps.data_s or ()) > 0.8 * (reading_s - beside_s) > 2, steps
    check_reads(record)
    # QEMU reads past the page cache of this host: what the guest read, the device has given.
    assert some(some(some(record.resources).serving).disk_read_bytes) >= some(record.data_use).bytes_read


def test_cold_trials_read_from_the_device_and_warm_ones_do_not(tmp_path: Path) -> None:
    require("engine", "podman")
    dataset = large_files(tmp_path / "set", LARGE_BYTES)

    def trained(cache: str, *more: str) -> dict[str, TrialRecord]:
        words = ["--scenario", "real", "--data", f"imagefolder:{dataset.directory}", "--cache", cache, *SMALL]
        words += [*more, "--engine", "podman", "--target", "bare-metal", "--target", "container"]
        found = by_arm(measured(tmp_path / cache, *words))
        assert {record.data_use.sha256 for record in found.values() if record.data_use} == {dataset.sha256}
        assert {record.job.page_cache for record in found.values()} == {cache}
        return found

    cold = trained("cold", "--ablate", "data-layer")
    for record in cold.values():
        check_reads(record)
    assert some(cold["container"].data_use).filesystem == some(cold["bare-metal"].data_use).filesystem
    assert some(cold["container+data-layer"].data_use).filesystem == "overlay"
    for record in trained("warm").values():
        check_reads(record)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    image = tmp_path / "device.img"
    with image.open("wb") as file:
        file.truncate(128 << 20)
    with local_node((), None) as node, ExitStack() as stack:
        device = node.run(["losetup", "--find", "--show", str(image)]).stdout.strip()
        stack.callback(node.run, ["losetup", "--detach", device])
        yield device


@pytest.mark.thorough
def test_a_data_set_on_a_device_of_its_own_is_read_from_there(tmp_path: Path, device: str) -> None:
    place = f"generated:{tmp_path / 'set'}"
    bench("data", "make", "--images", "20", "--out", str(tmp_path / "set"))
    words = ["--scenario", "real", "--data", place, "--data-disk", device, *on("container"), *SMALL]
    words += ["--ablate", "data-layer"]
    writing = ("data", "disk", "--device", device, "--data", place)
    empty = f"does not hold this data set: it is empty what to do: write it there, once: bench {' '.join(writing)}"
    assert empty in refusal("run", *words)
    with local_node((), None) as node:
        node.run(["mke2fs", "-q", "-L", "home", device])
        assert "it holds ext2 labelled home" in refusal(*writing)
        node.run(["wipefs", "--all", device])
    for said in ("writing 20 images", "holds the data set already"):
        assert said in bench(*writing).stderr
    found = by_arm(measured(tmp_path / "run", *words))
    use = some(found["container"].data_use)
    assert (use.filesystem, use.device) == ("ext4", device)
    assert some(found["container"].job.dataset).device == device
    check_reads(found["container"])
    assert some(found["container+data-layer"].data_use).filesystem == "overlay"
    assert found["container+data-layer"].substitutes == ["disk:other-device"]


def check_reads(record: TrialRecord) -> None:
    use, read_bytes = some(record.data_use), some(some(some(record.resources).worker).disk_read_bytes)
    assert use.images_read >= 2 * 2
    assert use.damaged == 0
    if record.job.page_cache == "cold":
        assert use.page_cache_share == pytest.approx(0, abs=0.01)
        assert read_bytes >= use.bytes_read
    else:
        assert some(use.page_cache_share) > 0.95
        # The job reads its programs too; what comes from the device is less than what it reads of the data set.
        assert read_bytes < use.bytes_read


IMAGES, BATCH, EPOCHS = 42, 4, 2
PREEMPTED = ("--model", "gan", "--profile", "smoke", "--steps", "400", "--checkpoint", "on", "--checkpoint-every", "20",
             "--preempt", "mean=4s")  # fmt: skip


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data") / "mnist"
    bench("data", "make", "--format", "mnist", "--images", str(IMAGES), "--out", str(place))
    return place


def metrics_in(run: Path) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for row in json.loads(bench("compare", str(run), "--json").stdout)["rows"]:
        if row["value"] is not None:
            found.setdefault((row["model"], row["target"]), set()).add(row["metric"])
    return found


@pytest.mark.parametrize("model", ["gan", pytest.param("dcgan", marks=pytest.mark.thorough)])
def test_whole_epochs_and_their_checkpoints_are_measured(model: str, mnist: Path, tmp_path: Path) -> None:
    words = ("--model", model, "--scenario", "real", "--data", f"mnist:{mnist}", "--profile", "smoke", *BOTH)
    run = tmp_path / "run"
    for record in measured(run, *words, "--epochs", str(EPOCHS), "--checkpoint", "fsync"):
        epochs = some(record.epochs)
        checkpoints = some(epochs.checkpoints)
        assert epochs.steps == IMAGES // BATCH
        assert len(epochs.seconds) == len(checkpoints.seconds) == EPOCHS
        assert checkpoints.filesystem
        assert len(some(record.steps).elapsed_s or ()) == EPOCHS * epochs.steps
        assert {"first-epoch", "epoch", "checkpoint"} == set(record.metrics)
    bench("audit", str(run))
    assert all({"epoch", "first-epoch", "checkpoint"} < metrics for metrics in metrics_in(run).values())


@pytest.mark.thorough
def test_a_preempted_training_ends_with_the_weights_of_the_undisturbed_one_on_every_target(tmp_path: Path) -> None:
    found = measured(tmp_path / "run", *PREEMPTED, *BOTH)
    assert len(found) == 2
    for record in found:  # it fails if its weights differ
        assert record.metrics["makespan"].value > 0
    assert any(record.metrics["openings"].value > 1 for record in found)


@pytest.mark.thorough
def test_nothing_is_left_of_a_preempted_run_that_was_killed_and_it_goes_on(tmp_path: Path) -> None:
    before = ours()
    run = tmp_path / "run"
    words = ("run", *PREEMPTED, "--target", "container", *RUNC, "--out", str(run))
    running = Running(tmp_path / "log", *words)
    running.wait_until_it_says("measuring")
    time.sleep(8)  # the undisturbed training takes less: it is killed in one that is preempted
    running.kill()
    bench("clean")
    assert added_since(before) == {}
    bench(*words)
    (record,) = records_in(run)
    assert record.metrics["openings"].value > 1
