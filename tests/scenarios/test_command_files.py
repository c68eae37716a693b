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
from scenarios.command_files import files_of
from scenarios.datasets import resolve
from suite.errors import RequestError
from tests.scenarios.conftest import fill
from worker.data.listing import hashes


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    names = ("train.py", "lib/model.py", ".hidden", "__pycache__/train.pyc", ".git/HEAD")
    return fill(tmp_path / "mine", *names, content=b"12345")


def test_the_digest_is_that_of_names_and_contents(mine: Path) -> None:
    before = files_of(mine)
    assert (before.kind, before.directory, before.images, before.size_bytes) == ("files", str(mine), 5, 25)
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
    assert (before.images, before.size_bytes) == (8, 25)
    assert before.sha256 != plain
    (mine / ".git/link").unlink()
    assert files_of(mine).sha256 == before.sha256
    (mine / "latest").unlink()
    (mine / "latest").symlink_to(".git")
    assert files_of(mine).sha256 != before.sha256


def test_virtual_environments_and_runs_are_no_part_of_it(mine: Path) -> None:
    before = files_of(mine)
    fill(mine, "venv/pyvenv.cfg", "results/one/plan.json", "results/one/trials/a.json")
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


def test_a_directory_that_targets_would_see_differently_is_refused(mine: Path) -> None:
    (mine / "lib/model.py").chmod(0o600)
    with pytest.raises(RequestError, match=r"lib/model\.py cannot be read by everybody") as told:
        files_of(mine)
    assert "chmod -R a+rX" in str(told.value.remedy)
    (mine / "lib").chmod(0o750)
    with pytest.raises(RequestError, match="mine/lib cannot be read"):
        files_of(mine)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.mknod(path, stat.S_IFSOCK | 0o644)])
def test_what_is_no_file_is_refused_and_never_opened(mine: Path, make: Callable[[Path], None]) -> None:
    make(mine / "lib/pipe")
    (mine / "lib/pipe").chmod(0o644)
    with pytest.raises(RequestError, match=r"lib/pipe is no file: reading a pipe, socket or device") as told:
        files_of(mine)
    assert told.value.remedy


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {path: path.stat().st_size for path in mine.rglob("*")}
    (mine / "train.py").unlink()
    os.mkfifo(mine / "train.py")
    as_it_was = os.stat_result((stat.S_IFREG | 0o644, 0, 0, 1, 0, 0, sizes[mine / "train.py"], 0, 0, 0))
    own = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda path: as_it_was if path.name == "train.py" else own(path))
    with pytest.raises(RequestError, match=r"train\.py: it is no regular file"):
        files_of(mine)


def test_what_grows_while_it_is_hashed_is_refused(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def grown(root: Path, *rest: Any) -> Any:
        with (mine / "train.py").open("a") as file:
            file.write("more")
        return hashes(root, *rest)

    monkeypatch.setattr(command_files, "hashes", grown)
    with pytest.raises(RequestError, match=r"train\.py: it changes while it is read"):
        files_of(mine)


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
