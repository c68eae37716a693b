"""The surroundings of a command: what is copied for it, what is linked, and the limits in place of those it lacks."""

import os
import resource
import socket
from pathlib import Path

import pytest

from worker import surroundings
from worker.surroundings import level, writable_copy

SHARED_BYTES = 1 << 30


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    for name, size in (("train.py", 5), ("data/large", 90), ("data/small", 10), ("lib/net.py", 20), ("frames/1", 1)):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"x" * size)
    (place / "train.py").chmod(0o555)
    (place / "lost+found").mkdir()
    return place


def test_programs_are_copied_and_data_that_fill_no_memory_are_linked(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "COPIED_BYTES", 40)
    with writable_copy(str(mine), str(tmp_path)) as copy:
        directory = Path(copy.directory)
        assert directory.parent == tmp_path
        links = {
            str(path.relative_to(directory)): path.readlink() for path in directory.rglob("*") if path.is_symlink()
        }
        assert links == {"data/large": mine / "data/large"}
        assert {path.name for path in directory.iterdir()} == {"train.py", "data", "lib", "frames"}
        assert (copy.copied_bytes, copy.linked) == (36, 1)
        assert (directory / "train.py").stat().st_mode & 0o777 == 0o755
        (directory / "data/cache").touch()
    assert not directory.exists()
    assert not (mine / "data/cache").exists()


def test_a_directory_of_too_many_files_is_linked_as_a_whole(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "MOST_ENTRIES", 5)
    with writable_copy(str(mine), str(tmp_path)) as copy:
        directory = Path(copy.directory)
        assert (directory / "train.py").read_bytes() == b"xxxxx"
        assert sorted(path.name for path in directory.iterdir() if path.is_symlink()) == ["data", "lib"]
        assert (directory / "lib").readlink() == mine / "lib"


def test_virtual_environments_and_runs_are_linked(mine: Path, tmp_path: Path) -> None:
    for name in ("venv/pyvenv.cfg", "results/one/plan.json", "results/one/trials/a.json", "conf/plan.json"):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).touch()
    with writable_copy(str(mine), str(tmp_path)) as copy:
        directory = Path(copy.directory)
        links = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_symlink()}
    assert links == {"venv", "results/one"}


def test_a_limit_that_cannot_be_had_is_named_with_the_most_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    granted: dict[int, tuple[int, int]] = {}

    def refuse(kind: int, limits: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_NOFILE and limits[1] > 4096:
            raise ValueError("not allowed to raise maximum limit")
        granted[kind] = limits

    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-name.invalid")
    mask = os.umask(0o077)  # as some sessions have it
    try:
        lacks = dict(level(SHARED_BYTES))
    finally:
        left = os.umask(mask)
    assert left == 0o022
    assert (lacks["open-files"], lacks["host-name"]) == ("4096", "unresolved")
    assert granted[resource.RLIMIT_NOFILE] == (4096, 4096)
    assert granted[resource.RLIMIT_MEMLOCK] == (8 << 20, 8 << 20)
