"""The command line in this process, and what must hold of everything that it says."""

import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cli
from worker.serving.http_server import BoundedServer

RUNS = Path(__file__).parents[1] / "samples" / "runs"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST_S = 120.0
Bench = Callable[..., Result]


def said(*words: str) -> Result:
    """Run ``bench`` with these words: it ends by an exit code of its own, soon, and steers no terminal."""
    begin_s = time.process_time()  # who waits for ever is ended by pytest
    # A limit that is low enough for what recurses, and the same in every test.
    done = CliRunner().invoke(cli.main, list(words), prog_name="bench", env={"COLUMNS": "100"})
    where = "".join(traceback.format_exception(*done.exc_info)) if done.exc_info else ""
    assert done.exception is None or isinstance(done.exception, SystemExit), f"{words}: {where}"
    assert done.exit_code in (0, 1, 2), (words, done.output)
    assert time.process_time() - begin_s < LONGEST_S, words
    assert not (found := STEERING.search(done.output)), (words, done.output[max(0, found.start() - 80) :][:200])
    return done


def until_closed(serve: Callable[..., object], *arguments: object) -> None:
    """Serve until the test closes the listening socket, and close what the server has opened."""
    try:
        serve(*arguments)
    except (OSError, ValueError) as error:
        holders = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
        server = next(holder for holder in holders if isinstance(holder, BoundedServer))
        for opened in list(server._map.values()):
            opened.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, which is not there yet."""
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def bench(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """``bench("compare", RUN)`` in a directory of its own, with a home of its own."""
    assert not home.exists()
    monkeypatch.delenv("VIRTBENCH_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    assert sys.getrecursionlimit() <= 3000
    return said
