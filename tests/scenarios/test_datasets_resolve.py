"""From --data to a data set: what it is taken for, the identity of what it holds, and whether it is as it was made."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioning.data_device import _identity as device_uuid
from provisioning.volumes import disk_name
from scenarios.datasets import resolve as datasets
from scenarios.datasets.generated import MANIFEST, PLAN
from scenarios.datasets.resolve import resolve
from scenarios.datasets.writer import make, verify
from suite.errors import BenchError, RequestError
from suite.job.datasets import Dataset
from suite.job.envelope import GIB, Envelope
from suite.job.job import settings as comparison_key
from tests.jobs import in_job
from tests.scenarios.conftest import fill
from worker.data import listing as listing_module
from worker.data.listing import entries_of, identify, listing
from worker.workloads.workload import CLASSES

FORMATS = ["mnist", "cifar10"]
HOUR_NS = 3600 * 10**9
VICTIM = "class-0001/00000001.jpg"


@pytest.fixture
def every_set_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listing_module, datasets):
        monkeypatch.setattr(module, "HASHED_WHOLE_BELOW", 0)


def found(directory: Path, name: str = "imagefolder") -> Dataset:
    return resolve(f"{name}:{directory}", directory.parent)[1]


def folder(root: Path, count: int = 6, size_bytes: int = 100) -> Path:
    for number in range(count):
        name = f"class{number % 2}/{number}.jpg"
        os.utime(fill(root, name, content=bytes([number]) * size_bytes) / name, ns=(HOUR_NS, HOUR_NS))
    return root


def altered(path: Path) -> None:
    """Change one byte, and neither the size nor the time."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("read_as", ["own", "generated"])
def test_two_sets_of_equal_names_and_sizes_are_two_sets(name: str, read_as: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        make(tmp_path / str(seed), 20, seed=seed, workers=1, name=name)
    one, other = (found(tmp_path / seed, name if read_as == "own" else "generated") for seed in "01")
    drawn = [listing(tmp_path / seed / {"mnist": "MNIST", "cifar10": "cifar-10-batches-py"}[name]) for seed in "01"]
    assert drawn[0] == drawn[1], "names and sizes say nothing"
    assert one.digest == other.digest == "contents"
    assert one.sha256 != other.sha256
    assert disk_name(one) != disk_name(other), "a VM would train on the other"
    assert device_uuid(one) != device_uuid(other)
    envelope = Envelope(cpus=(0,), memory_bytes=GIB, threads=1)
    keys = [comparison_key(in_job({"dataset": each, "envelope": envelope})["job"]) for each in (one, other)]
    assert keys[0] != keys[1], "runs would be pooled"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_byte_counts_in_a_set_below_a_gibibyte(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = folder(tmp_path_factory.mktemp("set"))
    before = identify(root, tuple(entries_of(root)))
    path = data.draw(st.sampled_from(sorted(root.rglob("*.jpg"))))
    at, content = data.draw(st.integers(0, 99)), bytearray(path.read_bytes())
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    assert identify(root, tuple(entries_of(root))) != before


def test_a_copy_and_a_touched_set_are_the_same_set(tmp_path: Path) -> None:
    one, other = found(folder(tmp_path / "a")), found(folder(tmp_path / "b"))
    assert (one.sha256, one.digest) == (other.sha256, "contents")
    os.utime(tmp_path / "a/class0/0.jpg")
    assert found(tmp_path / "a").sha256 == one.sha256


def touch(path: Path) -> None:
    os.utime(path, ns=(0, 2 * HOUR_NS))


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")
    os.utime(path, ns=(HOUR_NS, HOUR_NS))


@pytest.mark.usefixtures("every_set_is_large")
@pytest.mark.parametrize("change", [touch, grow, altered, lambda path: path.rename(path.with_name("9.jpg"))])
def test_of_a_large_set_names_sizes_times_and_samples_count(change: Callable[[Path], None], tmp_path: Path) -> None:
    before = found(folder(tmp_path / "set"))
    assert before.digest == "sampled"
    assert found(folder(tmp_path / "copy")).sha256 == before.sha256, "a copy with its times"
    change(tmp_path / "set/class1/3.jpg")
    datasets._known.clear()
    after = found(tmp_path / "set")
    assert after.sha256 != before.sha256
    assert disk_name(after) != disk_name(before), "it is packed anew"


@pytest.mark.usefixtures("every_set_is_large")
def test_of_a_large_set_some_of_many_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_module, "SAMPLES", 5)
    root = folder(tmp_path / "set", 40, 50_000)
    opened: list[bytes] = []
    own = listing_module._opened

    def heard(place: Path, entry: listing_module.File) -> Any:
        opened.append(entry.path)
        return own(place, entry)

    monkeypatch.setattr(listing_module, "_opened", heard)
    entries = tuple(entries_of(root))
    first = identify(root, entries)
    assert len(opened) == 5
    assert identify(root, entries) == first
    assert opened[:5] == opened[5:], "the digest draws them"
    touch(root / "class1/39.jpg")
    identify(root, tuple(entries_of(root)))
    assert opened[10:] != opened[:5], "and nobody knows them beforehand"


@pytest.mark.usefixtures("every_set_is_large")
@pytest.mark.parametrize("name", FORMATS)
def test_a_large_generated_set_has_the_digest_of_its_manifest(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "set", 20, workers=1, name=name)
    whole = found(tmp_path / "set", "generated")
    assert whole.digest == "manifest"
    monkeypatch.undo()
    datasets._known.clear()
    contents = found(tmp_path / "set", "generated")
    assert (contents.digest, contents.sha256) == ("contents", whole.sha256), "which is that of its contents"


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("drawn", [True, False])
def test_a_generated_set_with_another_byte_is_refused(
    large: bool, drawn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "set", 20, workers=1, name="mnist")
    monkeypatch.setattr(datasets, "HASHED_WHOLE_BELOW", 0 if large else 1 << 30)
    monkeypatch.setattr(datasets, "HASHED_AGAIN", 100 if drawn else 0)
    found(tmp_path / "set", "generated")
    path = tmp_path / "set/MNIST/raw/train-images-idx3-ubyte"
    altered(path)
    if not drawn:
        os.utime(path)  # what is newer than the manifest is hashed, too
    datasets._known.clear()
    with pytest.raises(RequestError, match="set has changed since it was made") as refused:
        found(tmp_path / "set", "generated")
    assert "bench data verify" in str(refused.value.remedy)


def test_one_process_hashes_a_set_once_unless_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def heard(root: Path, *rest: Any) -> Any:
        calls.append(root)
        return identify(root, *rest)

    monkeypatch.setattr(datasets, "identify", heard)
    first = found(folder(tmp_path / "set"))
    assert found(tmp_path / "set") == first
    assert len(calls) == 1
    altered(tmp_path / "set/class0/0.jpg")
    touch(tmp_path / "set/class0/0.jpg")
    assert found(tmp_path / "set").sha256 != first.sha256
    assert len(calls) == 2


def refused(text: str, home: Path, *words: str) -> None:
    with pytest.raises(RequestError) as raised:
        resolve(text, home)
    told = f"{raised.value.message} {raised.value.remedy}"
    assert raised.value.remedy
    assert all(word in told for word in words), told


def test_imagenet_whose_train_is_a_link_is_taken_from_where_it_is(tmp_path: Path) -> None:
    fill(tmp_path / "disk", "n01440764/a.JPEG")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train").symlink_to(tmp_path / "disk")
    assert resolve(f"imagenet:{tmp_path}/mine", tmp_path)[1].directory == str(tmp_path / "disk")


def test_the_directory_may_be_relative_a_link_or_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "pets", "cat/1.jpg")
    (tmp_path / "link").symlink_to("pets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for written in ("pets", "link", "~/pets", "./pets/"):
        assert resolve(f"imagefolder:{written}", tmp_path)[1].directory == str(tmp_path / "pets")


def test_of_a_set_that_is_split_the_training_part_is_taken_and_said(tmp_path: Path) -> None:
    parts = fill(tmp_path / "pets", "train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg", "val/dog/4.jpg")
    said: list[str] = []
    _, whole = resolve(f"imagefolder:{parts}", tmp_path, note=said.append)
    assert (whole.images, whole.directory) == (2, str(parts / "train"))
    assert said == [f"{parts / 'train'} is read, the training part of {parts}"]
    assert whole.sha256 == resolve(f"imagefolder:{parts / 'train'}", tmp_path)[1].sha256
    (parts / "train").rename(parts / "training")
    with pytest.raises(RequestError, match=r"pets is split into training, val, and none is called train") as refused:
        resolve(f"imagefolder:{parts}", tmp_path)
    assert f"imagefolder:{parts}/training" in str(refused.value.remedy)
    animals = fill(tmp_path / "animals", "train/1.jpg", "car/2.jpg")
    assert resolve(f"imagefolder:{animals}", tmp_path)[1].images == 2, "a class of vehicles"


def test_folders_of_storage_systems_are_no_classes_and_no_data(tmp_path: Path) -> None:
    plain = fill(tmp_path / "plain", "cat/1.jpg", "dog/2.jpg")
    before = resolve(f"imagefolder:{plain}", tmp_path)[1]
    fill(plain, "@eaDir/x.jpg", "cat/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "#recycle/3.jpg", "__MACOSX/cat/._1.jpg")
    assert resolve(f"imagefolder:{plain}", tmp_path)[1] == before


def test_more_classes_than_the_models_have_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, *(f"{number}/1.jpg" for number in range(CLASSES + 1)))
    refused(f"imagefolder:{tmp_path}", tmp_path, "1001 class folders", "1000 apart")


def test_a_directory_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "cat/1.jpg")

    def denied(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", denied)
    refused(f"imagefolder:{tmp_path}", tmp_path, "Permission denied", "who may read it")


def test_words_that_name_no_data_set_are_refused(tmp_path: Path) -> None:
    refused("synthetic", tmp_path, "--scenario synthetic")
    fill(tmp_path, "cat/1.jpg")
    refused(f"generated:{tmp_path}", tmp_path, "no generated data set", f"imagefolder:{tmp_path}")


def generated(directory: Path, images: int = 6) -> Path:
    make(directory, images, "small", classes=3, workers=1)
    return directory


def test_without_a_directory_the_newest_finished_set_is_taken(tmp_path: Path) -> None:
    first, second = generated(tmp_path / "data" / "z"), generated(tmp_path / "data" / "a")
    os.utime(first / MANIFEST, ns=(1, 1))
    (generated(tmp_path / "data" / "later") / MANIFEST).unlink()
    fill(tmp_path / "data", f"broken/{MANIFEST}", f".set.unfinished/{MANIFEST}", content=b"{")
    assert resolve("generated", tmp_path)[1].directory == str(second)


def test_generated_is_the_newest_imagefolder_that_is_large_enough_and_never_another_format(tmp_path: Path) -> None:
    large, small = generated(tmp_path / "data" / "large", 12), generated(tmp_path / "data" / "small", 4)
    pictures = tmp_path / "data" / "cifar"
    make(pictures, 20, name="cifar10", workers=1)
    for age, directory in enumerate((large, small, pictures)):
        os.utime(directory / MANIFEST, ns=(age + 1, age + 1))
    found = {images: resolve("generated", tmp_path, images=images)[1] for images in (0, 4, 5, 12, 100)}
    assert {images: one.directory for images, one in found.items()} == {
        **dict.fromkeys((0, 4), str(small)),
        **dict.fromkeys((5, 12, 100), str(large)),
    }
    assert found[12].label == f"imagefolder of 12 images, digest {found[12].sha256[:8]}"
    shutil.rmtree(large)
    shutil.rmtree(small)
    refused("generated", tmp_path, "are no imagefolder: cifar10", "generated:DIR")


def test_the_set_of_a_run_is_found_again_by_its_digest(tmp_path: Path) -> None:
    first = generated(tmp_path / "data" / "first", 12)
    of_run = resolve("generated", tmp_path)[1]
    generated(tmp_path / "data" / "second", 20)
    again = resolve("generated", tmp_path, listing_sha256=of_run.listing_sha256)[1]
    assert (again.directory, again.sha256) == (str(first), of_run.sha256)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make(tmp_path, 8, "small", classes=3, workers=1)
    return tmp_path


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (altered, f"{VICTIM}: other content"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), f"{VICTIM}: other content"),
        (lambda path: path.write_bytes(b""), f"{VICTIM}: other content"),
        (Path.unlink, f"{VICTIM}: is missing"),
        (lambda path: (path.parents[1] / PLAN).unlink(), "plan.json: is missing"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_one_file_that_changed_is_named(
    directory: Path, damage: Callable[[Path], None], line: str, workers: int
) -> None:
    damage(directory / VICTIM)
    assert verify(directory, workers) == [line]


def test_everything_that_differs_is_named_in_order(directory: Path) -> None:
    fill(directory, "zebra/1.jpg")
    (directory / "class-0000" / "00000000.jpg").unlink()
    altered(directory / VICTIM)
    (directory / PLAN).write_text("{}")
    missing, changed = "class-0000/00000000.jpg: is missing", f"{VICTIM}: other content"
    others = ["plan.json: other content", "zebra/1.jpg: is no part of the set"]
    assert verify(directory, workers=1) == [missing, changed, *others]


@pytest.mark.parametrize("name", ["", "nothing", "file"])
def test_what_is_no_generated_set_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match=r"holds no manifest\.json") as raised:
        verify(tmp_path / name)
    assert "bench data list" in str(raised.value.remedy)


@pytest.mark.parametrize("text", ["", "{}", '{"files": 3}', "\x00"])
def test_a_broken_manifest_is_refused(directory: Path, text: str) -> None:
    (directory / MANIFEST).write_text(text)
    with pytest.raises(RequestError, match="was not written by"):
        verify(directory)


def test_a_file_that_cannot_be_read_is_an_error_and_no_difference(directory: Path) -> None:
    (directory / "class-0000" / "lost.jpg").symlink_to("nowhere")
    with pytest.raises(BenchError, match=r"cannot read .*lost\.jpg"):
        verify(directory, workers=1)


def test_progress_comes_to_its_end(directory: Path) -> None:
    told: list[tuple[int, int]] = []
    verify(directory, 1, lambda done, of: told.append((done, of)))
    assert told == [(8, 8)]
