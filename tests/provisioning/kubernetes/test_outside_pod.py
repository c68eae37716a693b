"""The node's bench, started from a pod: here by a program that stands in for the one that enters the node."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioning.kubernetes.bench_pod import ALL_OF_THE_NODE, run_outside
from suite.errors import RequestError

POPEN = subprocess.Popen


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started, of which the words after ``--`` run on this machine."""
    found: list[list[str]] = []

    def start(argv: list[str], **options: Any) -> Any:
        found.append(argv)
        return POPEN(["env", *argv[argv.index("--") + 1 :]], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    return found


def test_the_lines_are_its_input_and_its_status_is_passed_on(started: list[list[str]], tmp_path: Path) -> None:
    said = tmp_path / "said"
    script = f"import os, sys; open({str(said)!r}, 'w').write(sys.stdin.readline() + os.environ['HOME']); sys.exit(3)"
    assert run_outside(sys.executable, ["-c", script], ["first", "second"]) == 3
    assert said.read_text() == "first\n/root"
    (argv,) = started
    assert argv[: argv.index("--")] == ["nsenter", "--target", "1", *ALL_OF_THE_NODE]


def test_its_input_stays_open_while_it_runs(started: list[list[str]]) -> None:
    script = "import select, sys; sys.stdin.readline(); sys.exit(bool(select.select([sys.stdin], [], [], 0.2)[0]))"
    assert run_outside(sys.executable, ["-c", script], ["only"]) == 0
    assert len(started) == 1


@pytest.mark.usefixtures("started")
def test_interrupted_it_waits_for_the_far_sides_end_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wait, waits = POPEN.wait, iter([KeyboardInterrupt])

    def interrupted(process: Any, *timeout: Any) -> int:
        for error in waits:
            raise error
        return int(wait(process, *timeout))

    monkeypatch.setattr(POPEN, "wait", interrupted)
    ended = tmp_path / "ended"
    script = f"import sys, time; sys.stdin.read(); time.sleep(0.5); open({str(ended)!r}, 'w').close()"
    with pytest.raises(KeyboardInterrupt):
        run_outside(sys.executable, ["-c", script], ["line"])
    assert ended.exists()


@pytest.mark.usefixtures("started")
def test_a_node_without_this_command_is_refused() -> None:
    with pytest.raises(RequestError, match="cannot start /opt/missing/bench"):
        run_outside("/opt/missing/bench", ["sweep"], ["line"] * 100)
