"""The identity of a data set: what it holds, not how its files are called and how long they are."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioning.data_device import _identity as device_uuid
from provisioning.volumes import disk_name
from scenarios.datasets import resolve as resolve_module
from scenarios.datasets.resolve import resolve
from scenarios.datasets.writer import make
from suite.errors import RequestError
from suite.job.datasets import Dataset
from suite.job.envelope import GIB, Envelope
from suite.job.job import settings as comparison_key
from tests.jobs import in_job
from worker.data import listing as listing_module
from worker.data.listing import entries_of, identify, listing

FORMATS = ["mnist", "cifar10"]
HOUR_NS = 3600 * 10**9


@pytest.fixture
def every_set_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listing_module, resolve_module):
        monkeypatch.setattr(module, "HASHED_WHOLE_BELOW", 0)


def found(directory: Path, name: str = "imagefolder") -> Dataset:
    return resolve(f"{name}:{directory}", directory.parent)[1]


def folder(root: Path, count: int = 6, size_bytes: int = 100) -> Path:
    for number in range(count):
        place = root / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.jpg").write_bytes(bytes([number]) * size_bytes)
        os.utime(place / f"{number}.jpg", ns=(HOUR_NS, HOUR_NS))
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
    resolve_module._known.clear()
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
    resolve_module._known.clear()
    contents = found(tmp_path / "set", "generated")
    assert (contents.digest, contents.sha256) == ("contents", whole.sha256), "which is that of its contents"


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("drawn", [True, False])
def test_a_generated_set_with_another_byte_is_refused(
    large: bool, drawn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "set", 20, workers=1, name="mnist")
    monkeypatch.setattr(resolve_module, "HASHED_WHOLE_BELOW", 0 if large else 1 << 30)
    monkeypatch.setattr(resolve_module, "HASHED_AGAIN", 100 if drawn else 0)
    found(tmp_path / "set", "generated")
    path = tmp_path / "set/MNIST/raw/train-images-idx3-ubyte"
    altered(path)
    if not drawn:
        os.utime(path)  # what is newer than the manifest is hashed, too
    resolve_module._known.clear()
    with pytest.raises(RequestError, match="set has changed since it was made") as refused:
        found(tmp_path / "set", "generated")
    assert "bench data verify" in str(refused.value.remedy)


def test_one_process_hashes_a_set_once_unless_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def heard(root: Path, *rest: Any) -> Any:
        calls.append(root)
        return identify(root, *rest)

    monkeypatch.setattr(resolve_module, "identify", heard)
    first = found(folder(tmp_path / "set"))
    assert found(tmp_path / "set") == first
    assert len(calls) == 1
    altered(tmp_path / "set/class0/0.jpg")
    touch(tmp_path / "set/class0/0.jpg")
    assert found(tmp_path / "set").sha256 != first.sha256
    assert len(calls) == 2
