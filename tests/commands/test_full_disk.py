"""Commands whose files cannot be written, as on a full disk: a sentence, no half files, and the earlier file stays."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from suite.process_identity import ProcessIdentity
from suite.results.files import is_temporary, temporary_name
from tests.commands.conftest import Bench
from tests.hostile.conftest import RUNS

REPOSITORY = Path(__file__).parents[2]
OUT = "out.tar.gz"
"""What each command writes here: only a pack minds the name."""
BOUNDED = """
import resource, sys
import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
cli.main()
"""
"""A command none of whose files may be longer than this: it fails in the middle of a file, and needs no other disk."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS / "epochs", tmp_path / "run"))


def bounded(*words: str, place: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command that can write no file, and hold what is true of each."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "VIRTBENCH_HOME": str(place / "home")}
    environment |= {"TMPDIR": str(place)}
    argv = [sys.executable, "-c", BOUNDED, *words]
    done = subprocess.run(argv, check=False, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr
    assert [path for path in place.rglob("*") if is_temporary(path.name)] == []
    return done


WRITING = [
    ("report", "--html", OUT),
    ("results", "export", "--out", OUT),
    ("results", "export", "--format", "parquet", "--out", OUT),
    ("results", "pack", "--out", OUT),
]


@pytest.mark.parametrize("words", WRITING, ids=" ".join)
def test_what_a_killed_command_has_left_of_its_file_goes_with_the_next(
    words: tuple[str, ...], run: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    left = temporary_name(ProcessIdentity.own().model_copy(update={"pid": ended.pid}))
    writing = temporary_name(ProcessIdentity.own())
    for name in (left, writing):
        (run.parent / name).write_text("half a file")
    monkeypatch.chdir(run.parent)
    assert bench(*words, str(run)).exit_code == 0
    assert [(run.parent / name).exists() for name in (left, writing, OUT)] == [False, True, True]


@pytest.mark.parametrize("words", WRITING, ids=" ".join)
def test_a_file_that_cannot_be_written_is_named_and_the_earlier_one_stays(words: tuple[str, ...], run: Path) -> None:
    earlier = run.parent / OUT
    earlier.write_text("earlier")
    done = bounded(*words, str(run), place=run.parent)
    assert done.returncode in (1, 2), done.stderr
    assert "File too large" in done.stderr
    assert earlier.read_text() == "earlier"


def test_what_a_comparison_cannot_draw_or_keep_is_named_and_its_answer_is_printed(run: Path) -> None:
    done = bounded("compare", "--force", str(run), place=run.parent)
    assert "container (podman)" in done.stdout, done.stderr
    assert "File too large" in done.stderr
