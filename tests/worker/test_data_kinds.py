"""Kinds of data sets: what is damaged is refused with a remedy, and nothing that a file asks for is called."""

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenarios.datasets.resolve import resolve
from scenarios.datasets.writer import make
from suite.errors import RequestError
from suite.registries import DATA_KINDS
from tests.worker.conftest import Code
from worker.data.kinds.cifar10 import read_pickle
from worker.data.kinds.kind import DataSetError
from worker.data.loader import open_images
from worker.protocol import JobError
from worker.spec import Data

TRAIN, LABELS = "MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-labels-idx1-ubyte"
BATCH, META = "cifar-10-batches-py/data_batch_2", "cifar-10-batches-py/batches.meta"
FACES = "list_eval_partition.txt"
VIDEOS = "ucfTrainTestlist/trainlist01.txt"
FRAME = "UCF-101/Generated001/v_Generated001_g08_c01"
EVERY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("originals")
    for name in ("mnist", "cifar10", "celeba", "frames"):
        make(place / name, 6, workers=1, name=name)
    return place


def copy_of(originals: Path, name: str, to: Path) -> Path:
    """Copy a set by hard links; write files of it anew, and never in place."""
    for path in (originals / name).rglob("*"):
        if path.is_file():
            there = to / path.relative_to(originals / name)
            there.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, there)
    return to


def write(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def cut(share: float) -> Callable[[Path], None]:
    return lambda path: write(path, path.read_bytes()[: int(path.stat().st_size * share)])


def lines(change: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda path: write(path, change(path.read_text()).encode())


def content(data: bytes) -> Callable[[Path], None]:
    return lambda path: write(path, data)


def idx(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)


@pytest.mark.parametrize(
    ("kind", "name", "damage", "word"),
    [
        ("mnist", TRAIN, Path.unlink, "there is no"),
        ("mnist", TRAIN, content(b""), "does not begin as an idx file"),
        ("mnist", TRAIN, cut(0.9), "which tells of 4704"),
        ("mnist", TRAIN, content(idx(0x803, 0, 28, 28)), "0 bytes follow"),
        ("mnist", TRAIN, content(idx(0x803, 6, 32, 32) + bytes(6 * 1024)), "N x 28 x 28"),
        ("mnist", TRAIN, content(b"\x1f\x8b" + bytes(50)), "cannot be unpacked (gunzip)"),
        ("mnist", TRAIN, content(gzip.compress(bytes(99))[:-9]), "cannot be unpacked (gunzip)"),
        ("mnist", LABELS, content(idx(0x801, 5) + bytes(5)), "6 images, 5 labels"),
        ("mnist", LABELS, content(idx(0x801, 6) + b"\x0a" * 6), "labels up to 10"),
        ("mnist", "MNIST/raw/t10k-images-idx3-ubyte", cut(0.5), "which tells of"),
        ("cifar10", BATCH, Path.unlink, "there is no"),
        ("cifar10", BATCH, cut(0.5), "is no batch of CIFAR-10"),
        ("cifar10", BATCH, content(b"\x80\x02]."), "holds no dictionary"),
        ("cifar10", BATCH, content(pickle.dumps({b"labels": [1], b"data": b""}, 2)), "_codecs"),
        ("cifar10", BATCH, content(b"\x80\x02}(U\x06labels](J\x01\x00\x00\x00eu."), "0 bytes of pixels"),
        ("cifar10", BATCH, content(b"\x80\x02}(U\x06labels](J\x0a\x00\x00\x00eu."), "labels from 0 to 9"),
        ("cifar10", META, content(b"\x80\x02}."), "names no labels"),
        ("celeba", FACES, Path.unlink, "lacks img_align_celeba/ or list_eval_partition.txt"),
        ("celeba", FACES, lines(lambda text: text + "999999.jpg 0\n"), "1 images that img_align_celeba/ does not hold"),
        ("celeba", FACES, lines(lambda text: text.replace(" 0", " 7")), "list_eval_partition.txt:1: '000001.jpg 7'"),
        ("celeba", FACES, lines(lambda text: text.replace(" 0", " 1")), "no image to train on"),
        ("celeba", FACES, lines(lambda _: "../secret.jpg 0\n"), "'../secret.jpg 0' is not NAME"),
        ("celeba", "img_align_celeba/000003.jpg", Path.unlink, "such as 000003.jpg"),
        ("frames", VIDEOS, Path.unlink, "there is no"),
        ("frames", VIDEOS, content(b"\n"), "names no videos"),
        ("frames", VIDEOS, lines(lambda text: text + "../../x/y.avi 1\n"), "is not CLASS/VIDEO.avi LABEL"),
        ("frames", VIDEOS, lines(lambda text: text.replace(" 1", " 0")), "is not CLASS/VIDEO.avi LABEL"),
        ("frames", VIDEOS, lines(lambda text: text + "Sky/v_Sky_g09_c01.avi 2\n"), "such as Sky/v_Sky_g09_c01"),
    ],
)
def test_a_damaged_copy_is_refused_with_what_is_wrong_and_what_to_do(
    kind: str, name: str, damage: Callable[[Path], None], word: str, originals: Path, tmp_path: Path
) -> None:
    place = copy_of(originals, kind, tmp_path / "copy")
    assert resolve(f"{kind}:{place}", tmp_path)[1].images == 6
    damage(place / name)
    with pytest.raises(RequestError) as refused:
        resolve(f"{kind}:{place}", tmp_path)
    assert word in f"{refused.value.message} {refused.value.remedy}"
    assert "directory" in str(refused.value.remedy)
    with pytest.raises(JobError) as failed:
        open_images(Data(DATA_KINDS.place(kind), str(place), 0, "auto"))
    assert (failed.value.kind, failed.value.remedy) == ("data", refused.value.remedy)


@EVERY
@given(data=st.data())
@pytest.mark.parametrize(
    ("kind", "name"), [("mnist", TRAIN), ("mnist", LABELS), ("cifar10", BATCH), ("celeba", FACES), ("frames", VIDEOS)]
)
def test_any_damage_is_refused_or_does_no_harm(
    kind: str, name: str, data: st.DataObject, originals: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = copy_of(originals, kind, tmp_path_factory.mktemp("copy"))
    whole = (place / name).read_bytes()
    # Where the format is, and not the pixels, is where damage can do harm.
    at = data.draw(st.integers(0, min(len(whole) - 1, 400)) | st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from([whole[:at], whole[:at] + whole[at + 1 :]])
        | st.binary(min_size=1, max_size=4).map(lambda new: whole[:at] + new + whole[at + len(new) :])
    )
    write(place / name, damaged)
    with suppress(DataSetError):
        images = DATA_KINDS.get(kind).open(place, 1)
        assert all(len(images.read(index)) for index in range(len(images)))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_that_a_pickle_asks_for_is_called(protocol: int, tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(pickle.dumps({"data": Code("/tmp/pickles-were-run")}, protocol))
    with pytest.raises(DataSetError, match=r"has the opcode 0x\w\w, which is no part|it asks for \w+\.mkdir"):
        read_pickle(tmp_path / "batch")
    (tmp_path / "batch").write_bytes(b"\x80\x02}(U\x01xcos\nmkdir\nU\x16/tmp/pickles-were-run\x85Ru.")
    with pytest.raises(DataSetError, match=r"it asks for os\.mkdir"):
        read_pickle(tmp_path / "batch")
    assert not Path("/tmp/pickles-were-run").exists()


def test_the_texts_of_python_2_are_bytes(originals: Path) -> None:
    batch = read_pickle(originals / "cifar10" / BATCH)
    assert set(batch) == {b"batch_label", b"labels", b"data", b"filenames"}
    assert batch[b"batch_label"] == b"training batch 2 of 5"
    meta = read_pickle(originals / "cifar10" / META)
    assert (meta[b"num_vis"], len(meta[b"label_names"])) == (3072, 10)


def test_a_kind_tells_the_shape_of_its_images(originals: Path) -> None:
    for kind in ("mnist", "cifar10"):
        pixels = open_images(Data(DATA_KINDS.place(kind), str(originals / kind), 0, "auto")).read(0)
        assert isinstance(pixels, np.ndarray)
        declared = DATA_KINDS.get(kind)
        assert pixels.shape == (declared.image_px, declared.image_px, declared.channels)


@pytest.mark.parametrize("rename", [lambda name: name.replace("-idx", ".idx"), lambda name: f"{name}.gz"])
def test_files_of_mnist_are_read_under_their_other_names_and_packed(
    rename: Callable[[str], str], originals: Path, tmp_path: Path
) -> None:
    place = copy_of(originals, "mnist", tmp_path)
    whole = DATA_KINDS.get("mnist").open(place, 1)
    for path in list((place / TRAIN).parent.iterdir()):
        other = path.rename(path.with_name(rename(path.name)))
        if other.suffix == ".gz":
            write(other, gzip.compress(other.read_bytes()))
    read = DATA_KINDS.get("mnist").open(place, 1)
    assert (read.labels.tolist(), read.pixels.tolist()) == (whole.labels.tolist(), whole.pixels.tolist())


def test_frames_are_taken_in_the_order_of_their_numbers(originals: Path, tmp_path: Path) -> None:
    place = copy_of(originals, "frames", tmp_path)
    for path in list((place / FRAME).iterdir()):
        path.unlink()
    for number in range(1, 21):
        (place / FRAME / f"frame{number}.jpg").write_bytes(b"x")
    frames = DATA_KINDS.get("frames").open(place, 5)
    assert [frames.name(index).rpartition("/")[2] for index in range(4)] == [f"frame{n}.jpg" for n in (1, 6, 11, 16)]
    frames = DATA_KINDS.get("frames").open(originals / "frames", 1)
    assert [frames.name(index) for index in range(6)] == sorted(frames.name(index) for index in range(6))


def test_what_lies_beside_the_frames_is_none(originals: Path, tmp_path: Path) -> None:
    place = copy_of(originals, "frames", tmp_path)
    for name in ("notes.txt", ".hidden.jpg"):
        (place / FRAME / name).write_bytes(b"x")
    assert len(DATA_KINDS.get("frames").open(place, 1)) == 6


def test_generated_digits_can_be_told_apart_by_their_labels(tmp_path: Path) -> None:
    make(tmp_path / "digits", 600, workers=1, name="mnist")
    digits = DATA_KINDS.get("mnist").open(tmp_path / "digits", 1)
    pixels, labels = digits.pixels.reshape(600, -1).astype(float), digits.labels
    means = np.stack([pixels[:300][labels[:300] == label].mean(0) for label in range(10)])
    nearest = ((pixels[300:, None] - means) ** 2).sum(2).argmin(1)
    assert (nearest == labels[300:]).mean() > 0.7
    assert len(np.unique(pixels, axis=0)) == 600
