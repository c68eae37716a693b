"""Verification finds every difference between a set and its manifest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scenarios.datasets.generated import MANIFEST, PLAN
from scenarios.datasets.writer import make, verify
from suite.errors import BenchError, RequestError

VICTIM = "class-0001/00000001.jpg"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make(tmp_path, 8, "small", classes=3, workers=1)
    return tmp_path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (flip, f"{VICTIM}: other content"),
        (truncate, f"{VICTIM}: other content"),
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
    (directory / "zebra").mkdir()
    (directory / "zebra" / "1.jpg").write_bytes(b"1")
    (directory / "class-0000" / "00000000.jpg").unlink()
    flip(directory / VICTIM)
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
    (directory / MANIFEST).unlink()
    with pytest.raises(RequestError, match="is not finished"):
        verify(directory)


def test_a_file_that_cannot_be_read_is_an_error_and_no_difference(directory: Path) -> None:
    (directory / "class-0000" / "lost.jpg").symlink_to("nowhere")
    with pytest.raises(BenchError, match=r"cannot read .*lost\.jpg"):
        verify(directory, workers=1)


def test_progress_comes_to_its_end(directory: Path) -> None:
    told: list[tuple[int, int]] = []
    verify(directory, 1, lambda done, of: told.append((done, of)))
    assert told == [(8, 8)]
