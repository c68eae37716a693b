"""Generated sets: the same bytes on every way to them, whole or not there, and nothing of others is touched."""

import errno
import io
import json
import multiprocessing
import os
import statistics
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from scenarios.datasets import writer
from scenarios.datasets.generated import MANIFEST, PLAN, SetManifest
from scenarios.datasets.processes import spread
from scenarios.datasets.writer import make, verify
from suite.errors import BenchError, RequestError
from tests.scenarios.conftest import contents, fill
from worker.data.kinds import imagefolder, pictures
from worker.data.kinds.kind import PictureSize
from worker.data.kinds.pictures import picture
from worker.data.listing import listing


def small(directory: Path, number: int = 20, **options: Any) -> Any:
    return make(directory, number, **{"size": "small", "classes": 4, "workers": 1, **options})


def refused(directory: Path, *words: str, **options: Any) -> None:
    with pytest.raises(RequestError) as raised:
        small(directory, **options)
    assert all(word in f"{raised.value.message} {raised.value.remedy}" for word in words), raised.value


def stopped(directory: Path, number: int, after: int, end: BaseException) -> BaseException:
    """Make a set, of which the file after so many cannot be written. Returns what is raised."""
    write, left = writer.write_readable, iter(range(after))

    def limited(path: Path, content: bytes) -> None:
        if next(left, None) is None:
            raise end
        write(path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "write_readable", limited)
        with pytest.raises((KeyboardInterrupt, BenchError)) as raised:
            small(directory, number)
    return raised.value


def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the pictures that are drawn from here on."""
    seen: list[int] = []

    def noting(seed: int, index: int, size: PictureSize) -> bytes:
        seen.append(index)
        return picture(seed, index, size)

    monkeypatch.setattr(imagefolder, "picture", noting)
    return seen


def test_every_image_is_a_jpeg_in_the_folder_of_its_class_and_in_the_manifest(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    made = small(tmp_path / "set", progress=lambda done, of: told.append((done, of)))
    assert told == [(16, 20), (20, 20)]
    files = sorted((tmp_path / "set").glob("class-*/*.jpg"))
    assert len(files) == len(made.files) == 20
    assert {path.parent.name for path in files} == {"class-0000", "class-0001", "class-0002", "class-0003"}
    for path in files:
        with Image.open(path) as image:
            image.load()
            assert (image.format, image.mode) == ("JPEG", "RGB")
    assert verify(tmp_path / "set", workers=1) == []
    found, stored = listing(tmp_path / "set"), json.loads((tmp_path / "set" / MANIFEST).read_text())
    assert (made.sha256, made.size_bytes, made.images) == (found.sha256, found.size_bytes, 20)
    assert stored["schema_version"] == 1
    assert {*contents(tmp_path / "set")} == {*stored["files"], PLAN, MANIFEST}, "and nothing that is hidden"
    assert not set(made.files.values()) & set(small(tmp_path / "other", seed=1).files.values()), "of another seed"
    fewer = small(tmp_path / "fewer", 3, classes=1000)
    assert sorted(path.partition("/")[0] for path in fewer.files) == ["class-0000", "class-0001", "class-0002"]


def test_all_may_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        small(tmp_path / "set")
    finally:
        os.umask(before)
    for path in [tmp_path / "set", *(tmp_path / "set").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)


def test_sizes_are_as_those_of_imagenet() -> None:
    files = [picture(0, index, "imagenet") for index in range(150)]
    shapes = [Image.open(io.BytesIO(file)).size for file in files]
    assert 85_000 < statistics.mean(map(len, files)) < 130_000
    assert statistics.mean(map(len, files)) < pictures.MAKES["imagenet"].disk_bytes
    assert statistics.median(map(len, files)) < statistics.mean(map(len, files)), "skewed, as a log-normal is"
    assert 420 < statistics.mean(max(shape) for shape in shapes) < 580
    assert len(set(shapes)) > 30
    assert 0.1 < sum(height > width for width, height in shapes) / 150 < 0.4
    assert shapes.count((500, 375)) > 20
    assert 1_000 < statistics.mean(len(picture(0, index, "small")) for index in range(100)) < 5_000


def test_made_twice_nothing_is_drawn_nor_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = small(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    numbers = drawn(monkeypatch)
    assert small(tmp_path) == first
    assert numbers == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times


@pytest.mark.parametrize("end", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device", "x")])
@pytest.mark.parametrize("after", [0, 1, 21])
def test_what_was_stopped_leaves_nothing(tmp_path: Path, end: BaseException, after: int) -> None:
    (tmp_path / "set").mkdir()
    stopped(tmp_path / "set", 40, after, end)
    assert [path.name for path in tmp_path.rglob("*")] == ["set"]
    small(tmp_path / "set", 40)
    assert verify(tmp_path / "set") == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "x"), "/set: the disk is full"),
        (OSError(errno.EIO, "Input/output error", "/x/y.jpg"), "/set: Input/output error: /x/y.jpg"),
    ],
)
def test_a_disk_that_is_full_or_fails_is_named_with_what_to_do(error: OSError, told: str, tmp_path: Path) -> None:
    raised: Any = stopped(tmp_path / "set", 20, 7, error)
    assert told in raised.message
    assert raised.exit_code == 1
    assert "the same command again" in raised.remedy


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_set_is_refused_with_the_command_that_makes_it_again(tmp_path: Path, damage: bytes | None) -> None:
    small(tmp_path)
    victim = tmp_path / "class-0001" / "00000005.jpg"
    victim.write_bytes(damage) if damage is not None else victim.unlink()
    before = contents(tmp_path)
    refused(tmp_path, "has changed", f"bench data make --images 20 --size small --classes 4 --out {tmp_path}")
    assert contents(tmp_path) == before


def test_what_a_killed_process_left_is_no_part_of_the_set(tmp_path: Path) -> None:
    small(tmp_path / "whole")
    fill(tmp_path / ".set.unfinished", "class-0000/00000000.jpg", PLAN)
    small(tmp_path / "set")
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"set", "whole"}


@pytest.mark.parametrize(
    "arrange",
    [
        lambda path: fill(path, "thesis.txt"),
        lambda path: path.write_text("mine"),
        lambda path: path.symlink_to(fill(path.with_name("elsewhere"), PLAN)),
    ],
    ids=["a directory", "a file", "a link"],
)
def test_what_is_in_the_way_of_a_set_and_no_part_of_one_stays(
    tmp_path: Path, arrange: Callable[[Path], object]
) -> None:
    arrange(tmp_path / ".set.unfinished")
    before = contents(tmp_path)
    refused(tmp_path / "set", "is in the way", "move it elsewhere")
    assert contents(tmp_path) == before


ANOTHER = ("another plan", "--format imagefolder --images 20 --size small --seed 0 --classes 4")
NO_PLANS = ("", "{", "[]", '{"seed": 1}', '{"schema_version": 99}', "\x00")


@pytest.mark.parametrize(
    ("there", "options", "words"),
    [
        *(((), {name: value}, (*ANOTHER, name)) for name, value in (("seed", 9), ("classes", 5), ("size", "imagenet"))),
        ((), {"number": 19}, (*ANOTHER, "images")),
        *(((name, "mine"), {}, ("holds something else", name[:5])) for name in ("photo.jpg", "class-0/0.jpg", PLAN)),
        *(((MANIFEST, text), {}, (MANIFEST, "give another directory")) for text in NO_PLANS),
    ],
)
def test_a_directory_of_something_else_is_refused_and_left_alone(
    tmp_path: Path, there: tuple[str, ...], options: dict[str, Any], words: tuple[str, ...]
) -> None:
    if there:
        fill(tmp_path, there[0], content=there[1].encode())
    else:
        small(tmp_path)
    before = contents(tmp_path)
    refused(tmp_path, *words, **options)
    assert contents(tmp_path) == before


def test_a_mount_point_is_refused_because_no_set_can_be_renamed_to_it() -> None:
    refused(Path("/proc"), "mount point", "--out")


def test_nothing_is_made_of_what_no_set_can_be(tmp_path: Path) -> None:
    for options in ({"number": 0}, {"workers": 0}):
        refused(tmp_path / "set", "from 1 up", **options)
        assert not (tmp_path / "set").exists()


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "x")

    (tmp_path / "file").write_text("mine")
    refused(tmp_path / "file", "Not a directory", "--out")
    refused(tmp_path / "file" / "below", "--out")
    assert (tmp_path / "file").read_text() == "mine"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", denied)
        refused(tmp_path / "set", "Read-only file system", "--out")
    monkeypatch.setattr(Path, "chmod", denied)
    with pytest.raises(BenchError, match="Read-only file system"):
        small(tmp_path / "set")


def disk(blocks: int, files: int = 0, free_files: int = 0) -> SimpleNamespace:
    return SimpleNamespace(f_frsize=1000, f_bavail=blocks, f_files=files, f_favail=free_files)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (disk(114_000), ("1,000 files of about 115 kB are 115.0 MB", "114.0 MB free", "991 files fit")),
        (disk(10**6, 10**6, 999), ("1,000 files", "room for 999 more")),
    ],
)
def test_too_little_room_is_said_before_the_first_file_with_the_arithmetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: SimpleNamespace, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("os.statvfs", lambda _: found)
    refused(tmp_path / "new" / "set", *words, number=1000, size="imagenet")
    assert not (tmp_path / "new").exists()


def test_of_two_at_a_time_the_second_waits_and_says_so(tmp_path: Path) -> None:
    told: list[str] = []
    waiting = threading.Event()
    made: list[SetManifest] = []

    def note(said: str) -> None:
        told.append(said)
        waiting.set()

    second = threading.Thread(target=lambda: made.append(small(tmp_path / "set", note=note)))

    def progress(_done: int, _of: int) -> None:
        if not second.ident:
            second.start()
            assert waiting.wait(60)

    first = small(tmp_path / "set", progress=progress)
    second.join(60)
    assert made == [first]
    assert told == [f"another bench makes a set in {tmp_path}: waiting until it has ended"]


def die(_task: int) -> None:
    os.kill(os.getpid(), 9)


def fail(task: int) -> int:
    if task == 3:
        raise OSError(errno.ENOSPC, "No space left on device", f"/{task}")
    return task


def test_a_worker_that_is_killed_is_an_error_with_a_remedy() -> None:
    with pytest.raises(BenchError, match="was killed") as raised:
        list(spread(die, range(2), 2))
    assert "--workers" in str(raised.value.remedy)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_task_arrives_whole_and_no_process_stays(workers: int) -> None:
    with pytest.raises(OSError, match="No space") as raised:
        list(spread(fail, range(40), workers))
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/3")
    assert multiprocessing.active_children() == []
    assert sorted(spread(abs, range(100), workers)) == list(range(100))
    assert list(spread(abs, [], workers)) == []


def test_a_set_is_not_there_before_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[bool] = []
    monkeypatch.setattr("os.sync", lambda: there.append((tmp_path / "set").exists()))
    small(tmp_path / "set")
    assert there == [False]
