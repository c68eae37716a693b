"""Files of data sets: what is damaged is refused, what lies there is listed, and what is cached is seen."""

import errno
import gzip
import hashlib
import mmap
import os
import pickle
import struct
import subprocess
import sys
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
from tests.scenarios.conftest import fill
from tests.worker.conftest import Code
from tests.worker.forked import worker
from tests.worker.test_worker_program import REPOSITORY
from worker.data import page_cache
from worker.data.kinds.cifar10 import read_pickle
from worker.data.kinds.kind import DataSetError
from worker.data.listing import Listing, files, listing
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
    fill(place / FRAME, *(f"frame{number}.jpg" for number in range(1, 21)), "notes.txt", ".hidden.jpg")
    frames = DATA_KINDS.get("frames").open(place, 5)
    assert len(frames) == 4
    assert [frames.name(index).rpartition("/")[2] for index in range(4)] == [f"frame{n}.jpg" for n in (1, 6, 11, 16)]
    frames = DATA_KINDS.get("frames").open(originals / "frames", 1)
    assert [frames.name(index) for index in range(6)] == sorted(frames.name(index) for index in range(6))


def test_generated_digits_can_be_told_apart_by_their_labels(tmp_path: Path) -> None:
    make(tmp_path / "digits", 600, workers=1, name="mnist")
    digits = DATA_KINDS.get("mnist").open(tmp_path / "digits", 1)
    pixels, labels = digits.pixels.reshape(600, -1).astype(float), digits.labels
    means = np.stack([pixels[:300][labels[:300] == label].mean(0) for label in range(10)])
    nearest = ((pixels[300:, None] - means) ** 2).sum(2).argmin(1)
    assert (nearest == labels[300:]).mean() > 0.7
    assert len(np.unique(pixels, axis=0)) == 600


def paths(root: Path) -> list[str]:
    return [os.fsdecode(path) for path, _ in files(root)]


def test_the_hash_is_over_a_line_of_size_and_path_for_every_file(tmp_path: Path) -> None:
    fill(tmp_path, "b/2.jpg", "a/1.jpg")
    assert listing(tmp_path) == Listing(hashlib.sha256(b"2 a/1.jpg\n2 b/2.jpg\n").hexdigest(), 2, 4)


@given(
    names=st.sets(
        st.lists(
            st.text("ab.-0\u00e9", min_size=1, max_size=4).filter(lambda n: n[0] != "."), min_size=1, max_size=3
        ).map("/".join),
        max_size=12,
    )
)
def test_files_come_in_the_order_of_the_bytes_of_their_paths(
    tmp_path_factory: pytest.TempPathFactory, names: set[str]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    wanted = {name for name in names if not any(other.startswith(f"{name}/") for other in names)}
    fill(root, *wanted)
    assert paths(root) == sorted(wanted, key=os.fsencode)


def links(root: Path) -> None:
    fill(root / ".elsewhere", "1.jpg", "c/2.jpg")
    (root / "linked").symlink_to(".elsewhere")
    (root / "again").symlink_to(".elsewhere")  # one directory under two names is no circle
    (root / "one.jpg").symlink_to(".elsewhere/1.jpg")


LISTED: dict[str, tuple[Callable[[Path], object], list[bytes]]] = {
    "names that are no text": (lambda root: fill(root, os.fsdecode(b"\xff.jpg")), [b"\xff.jpg"]),
    "hidden files, the manifest and the file system's own": (
        lambda root: fill(
            root, "manifest.json", "lost+found/#1", ".hidden", "a/.tmp", ".git/x", "a/manifest.json", "plan.json"
        ),
        [b"a/manifest.json", b"plan.json"],
    ),
    "links to files and directories": (
        links,
        [b"again/1.jpg", b"again/c/2.jpg", b"linked/1.jpg", b"linked/c/2.jpg", b"one.jpg"],
    ),
    "a pipe": (lambda root: os.mkfifo(root / "pipe"), []),
}


@pytest.mark.parametrize("what", LISTED)
def test_regular_files_are_listed_and_nothing_else(what: str, tmp_path: Path) -> None:
    make, listed = LISTED[what]
    make(tmp_path)
    assert list(files(tmp_path)) == [(path, 2) for path in listed]


@pytest.mark.parametrize(
    ("place", "link", "to", "number"),
    [
        *(("", "a/again", to, errno.ELOOP) for to in (".", "..", "../..", "again")),
        ("", "again", "nowhere", errno.ENOENT),
        ("again", None, None, errno.ENOENT),
        ("a/again.jpg", None, None, errno.ENOTDIR),
    ],
)
def test_what_cannot_be_listed_is_an_error_that_names_it(
    place: str, link: str | None, to: str, number: int, tmp_path: Path
) -> None:
    fill(tmp_path / "root", "a/again.jpg")
    if link:
        (tmp_path / "root" / link).symlink_to(to)
    with pytest.raises(OSError, match="again") as raised:
        listing(tmp_path / "root" / place)
    assert raised.value.errno == number


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Some pages, a page and a byte, and nothing at all; skips where the files are memory and nothing else."""
    device = tmp_path.stat().st_dev
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if f" {os.major(device)}:{os.minor(device)} " in line and " - tmpfs " in line:
            pytest.skip("a file system in memory has no page cache to empty")
    fill(tmp_path, "a/large", content=os.urandom(40 * mmap.PAGESIZE))
    fill(tmp_path, "a/small", content=os.urandom(mmap.PAGESIZE + 1))
    return fill(tmp_path, "empty", content=b"")


def test_cold_and_warm_are_seen_by_the_kernel_and_the_share_is_one_of_pages(pages: Path) -> None:
    states = ("warm", "cold", "warm", "cold")
    assert [page_cache.arrange(state, str(pages))["page_cache_share"] for state in states] == [1, 0, 1, 0]


def test_a_userland_and_a_directory_are_dropped_and_the_large_files_looked_at(pages: Path, tmp_path: Path) -> None:
    (tree := tmp_path / "tree").mkdir()
    assert page_cache.empty(str(tree), [str(pages)]) == {"page_cache_share": None}, "no file is large"
    for place in (tree, pages):
        (place / "large").write_bytes(bytes(page_cache.LARGE_BYTES))
    assert page_cache.arrange("warm", str(pages))["page_cache_share"] == 1
    assert page_cache.empty(str(tree), [str(pages)]) == {"page_cache_share": 0}
    (pages / "a" / "small").read_bytes()
    paths = [os.fsencode(pages / "a" / name) for name in ("large", "small")]
    assert page_cache.share(paths) == 2 / 42


def test_nothing_has_no_share(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert page_cache.arrange("cold", str(tmp_path))["page_cache_share"] is None


@pytest.mark.parametrize(("status", "told"), [("0000000000000008", True), ("0000000000000000", False), (None, False)])
def test_a_share_that_the_kernel_hides_is_absent(
    status: str | None, told: bool, pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(page_cache, "named", lambda *_: status)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert (page_cache.share([os.fsencode(pages / "a" / "small")]) is not None) is told


def test_the_worker_prints_one_object_and_imports_no_torch(pages: Path) -> None:
    status, told, _ = worker("", "--page-cache", "cold", str(pages))
    assert (status, told) == (0, [{**page_cache.arrange("cold", str(pages)), "page_cache_share": 0.0}])
    program = "import sys; import worker.data.page_cache; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    status, told, errors = worker("", "--page-cache", "warm", str(tmp_path / "nowhere"))
    assert (status, told) == (1, [])
    assert "nowhere" in errors.splitlines()[-1]
