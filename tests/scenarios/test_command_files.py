"""The directory that a command is given: its digest, and what targets would see differently."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scenarios import command_files
from scenarios.command import MOST_IMPLIED_BYTES, command_data_set
from scenarios.command_files import files_of
from scenarios.datasets import resolve
from suite.errors import RequestError
from suite.request.request import RunRequest
from tests.scenarios.conftest import fill
from worker.surroundings import writable_copy


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    names = ("train.py", "lib/model.py", ".hidden", "__pycache__/train.pyc", ".git/HEAD")
    return fill(tmp_path / "mine", *names, content=b"12345")


def test_the_digest_is_that_of_names_and_contents(mine: Path) -> None:
    before = files_of(mine)
    assert (before.kind, before.directory, before.images, before.size_bytes) == ("files", str(mine), 4, 20)
    (mine / "__pycache__/train.pyc").write_text("54321")
    (mine / ".git/HEAD").unlink()
    assert files_of(mine).sha256 == before.sha256, "what changes by itself"
    seen = {before.sha256}
    for change in (
        lambda: (mine / "train.py").write_text("54321"),
        lambda: (mine / "train.py").rename(mine / "t.py"),
        lambda: (mine / ".hidden").unlink(),
        lambda: (mine / "lib/new.py").touch(),
    ):
        change()
        assert files_of(mine).sha256 not in seen
        seen.add(files_of(mine).sha256)


def test_a_link_within_the_directory_is_taken_and_its_target_is_part_of_the_digest(mine: Path) -> None:
    plain = files_of(mine).sha256
    (mine / "latest").symlink_to("lib")
    (mine / "lib/own.py").symlink_to("../train.py")
    (mine / ".git/link").symlink_to("HEAD")
    before = files_of(mine)
    assert (before.images, before.size_bytes) == (7, 20)
    assert before.sha256 != plain
    (mine / ".git/link").unlink()
    assert files_of(mine).sha256 == before.sha256
    (mine / "latest").unlink()
    (mine / "latest").symlink_to(".git")
    assert files_of(mine).sha256 != before.sha256


def test_virtual_environments_and_runs_are_no_part_of_it(mine: Path) -> None:
    before = files_of(mine)
    fill(mine, "venv/pyvenv.cfg", "results/one/plan.json", "results/one/trials/a.json")
    fill(mine, "results/interrupted/plan.json", "results/interrupted/.lock", "results/interrupted/bench.log")
    (mine / "venv/python").symlink_to("/usr/bin/python3")
    assert files_of(mine) == before
    (mine / "results/plan.json").write_text("12345")
    assert files_of(mine).sha256 != before.sha256


def test_the_file_that_its_own_output_goes_to_is_no_part_of_it(mine: Path) -> None:
    before = files_of(mine).sha256
    program = "import sys; from scenarios.command_files import *; sys.stderr.write(files_of(Path(sys.argv[1])).sha256)"
    with (mine / "log").open("w") as log:
        log.write("the run begins")
        log.flush()
        argv = [sys.executable, "-c", program, str(mine)]
        told = subprocess.run(argv, stdout=log, stderr=subprocess.PIPE, text=True, check=True).stderr
    assert told == before
    assert files_of(mine).sha256 != before


def test_an_environment_of_conda_is_left_out_and_named(mine: Path, tmp_path: Path) -> None:
    before = files_of(mine)
    fill(mine, "env/conda-meta/history")
    (mine / "env/ssl").symlink_to("/etc/ssl")
    said: list[str] = []
    taken = files_of(mine, said.append, tmp_path / "copy")
    assert (taken.sha256, taken.images) == (before.sha256, before.images)
    assert "left out of the command's files (an environment: the targets have the image's): env" in said
    assert not (tmp_path / "copy/env").exists()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.mknod(path, stat.S_IFSOCK | 0o644)])
def test_what_is_no_file_is_left_out_named_and_never_opened(
    mine: Path, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(mine / "lib/pipe")
    make(mine / ".git/fsmonitor--daemon.ipc")
    said: list[str] = []
    taken = files_of(mine, said.append, tmp_path / "copy")
    assert [note for note in said if "pipe" in note] == [
        "left out of the command's files (a pipe, socket or device): lib/pipe"
    ]
    assert taken.images == 4
    assert not (tmp_path / "copy/lib/pipe").exists()


def link(place: Path) -> None:
    place.symlink_to("lib")


@pytest.mark.parametrize("made", [os.mkfifo, os.mkdir, link])
def test_what_takes_the_place_of_a_file_is_not_waited_for(
    made: Callable[[Path], None], mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = command_files._Tree.walk

    def replaced(tree: Any) -> None:
        walk(tree)
        (mine / "train.py").unlink()
        made(mine / "train.py")

    monkeypatch.setattr(command_files._Tree, "walk", replaced)
    monkeypatch.setattr(command_files, "PAUSE_S", 0.0)
    assert files_of(mine).images == 3


def test_a_folder_that_is_replaced_while_it_is_listed_is_what_it_has_become(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_apart = command_files._Tree._is_apart

    def replaced(tree: Any, path: Path) -> bool:
        found = is_apart(tree, path)
        if path == Path("lib"):
            (mine / "lib").rename(tmp_path / "lib")
            (mine / "lib").write_text("a file")
        return found

    monkeypatch.setattr(command_files._Tree, "_is_apart", replaced)
    files_of(mine, copy=tmp_path / "copy")
    assert (tmp_path / "copy/lib").read_text() == "a file"


def test_a_snapshot_keeps_contents_times_modes_and_links(mine: Path, tmp_path: Path) -> None:
    (mine / "lib").joinpath("step-300.pt").write_text("x")
    os.utime(mine / "lib/step-300.pt", ns=(5, 7_000_000_001))
    os.utime(mine / "lib", ns=(5, 9_000_000_001))
    (mine / "train.py").chmod(0o700)
    (mine / ".hidden").chmod(0o600)
    (mine / "latest").symlink_to(mine / "lib/step-300.pt")
    copy = tmp_path / "copy"
    old_mask = os.umask(0o077)
    try:
        taken = files_of(mine, copy=copy)
    finally:
        os.umask(old_mask)
    assert taken.directory == str(copy)
    assert taken.sha256 == files_of(mine).sha256 == files_of(copy).sha256
    assert (copy / "lib/step-300.pt").stat().st_mtime_ns == 7_000_000_001
    assert (copy / "lib").stat().st_mtime_ns == 9_000_000_001
    modes = {path: stat.S_IMODE((copy / path).stat().st_mode) for path in ("", "lib", "train.py", ".hidden")}
    assert modes == {"": 0o755, "lib": 0o755, "train.py": 0o755, ".hidden": 0o644}, "the job is another user"
    assert str((copy / "latest").readlink()) == "lib/step-300.pt"
    assert (copy / ".git/HEAD").read_bytes() == b"12345", "scripts ask git for their version"


def test_names_that_are_no_text_are_kept(mine: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"notes M\xe4rz.txt")
    (mine / name).write_text("x")
    taken = files_of(mine, copy=tmp_path / "copy")
    assert (tmp_path / "copy" / name).read_text() == "x"
    with writable_copy(taken.directory, str(tmp_path)) as copy:
        assert Path(copy.directory, name).read_text() == "x"


def test_a_link_that_leads_out_is_refused(mine: Path) -> None:
    (mine / "data").symlink_to("/etc")
    with pytest.raises(RequestError, match="data is a link that leads out of") as refused:
        files_of(mine)
    assert "cp -rL" in str(refused.value.remedy)


def test_a_file_that_changes_is_read_again(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def write(pause_s: float) -> None:
        if not pauses:
            (mine / "train.py").write_text("saved again")
        pauses.append(pause_s)

    read = command_files._Snapshot._read

    def edited(snapshot: Any, path: Path) -> None:
        read(snapshot, path)
        if path == Path("train.py") and not pauses:
            (mine / "train.py").write_text("saved")

    monkeypatch.setattr(command_files._Snapshot, "_read", edited)
    monkeypatch.setattr("scenarios.command_files.time.sleep", write)
    taken = files_of(mine, copy=tmp_path / "copy")
    assert (tmp_path / "copy/train.py").read_text() == "saved again"
    assert taken.sha256 == files_of(tmp_path / "copy").sha256
    assert len(pauses) == 1


def test_what_keeps_changing_is_left_out_and_named(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_of(mine).sha256
    read = command_files._Snapshot._read

    def grown(snapshot: Any, path: Path) -> None:
        read(snapshot, path)
        if path.name == "events.log":
            with (mine / path).open("a") as file:
                file.write("more")

    (mine / "events.log").write_text("begin")
    monkeypatch.setattr(command_files._Snapshot, "_read", grown)
    monkeypatch.setattr(command_files, "PAUSE_S", 0.0)
    said: list[str] = []
    taken = files_of(mine, said.append, tmp_path / "copy")
    assert taken.sha256 == before
    assert said == [
        "left out of the command's files (a cache): __pycache__",
        "left out of the command's files (it keeps changing): events.log",
    ]
    assert not (tmp_path / "copy/events.log").exists()


def test_a_file_that_goes_meanwhile_is_no_part_of_it(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_of(mine).sha256
    walk = command_files._Tree.walk

    def emptied(tree: Any) -> None:
        (mine / "swap.tmp").touch()
        walk(tree)
        (mine / "swap.tmp").unlink()

    monkeypatch.setattr(command_files._Tree, "walk", emptied)
    assert files_of(mine).sha256 == before


def test_a_working_directory_that_nobody_has_named_and_that_is_large_is_refused_before_it_is_read(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (mine / "data.bin").open("wb") as file:
        file.truncate(1 << 40)  # to read it would take longer than the test may
    with pytest.raises(RequestError, match="mine holds 1,100 GB in 5 files") as raised:
        files_of(mine, most_bytes=MOST_IMPLIED_BYTES)
    assert str(raised.value.remedy).endswith(f"--command-files {mine}")
    monkeypatch.chdir(mine)
    options = {"command": "env", "command_files": Path()}
    with pytest.raises(RequestError, match="holds 1,100 GB"):
        command_data_set(RunRequest.of({"scenario": "command", **options}), [["env"]], lambda _: None)


def test_long_hashing_tells_how_far_it_is(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    files_of(mine, said.append)
    assert said == []
    monkeypatch.setattr(resolve, "_SILENT_S", -1.0)
    files_of(mine, said.append)
    assert said[-1] == f"hashing {mine}: 0.0 of 0.0 GB"


def test_a_name_that_engines_would_misread_is_refused(tmp_path: Path) -> None:
    (tmp_path / 'a"b').mkdir()
    with pytest.raises(RequestError, match="quotation mark"):
        files_of(tmp_path / 'a"b')
