"""The README's commands, typed as they stand there; a question is answered in the first three lines."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.test_worker import OWN_TRAINING, example
from tests.integration.machine import require, require_image
from tests.integration.test_run import BENCH

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
COMPARED = r"^container \(\w+\) .*\b(slower|faster|equivalent|tail|typical-only|undecided|no verdict)\b.* why: \w+"
ANSWERS = {
    "run": COMPARED,
    "compare": COMPARED,
    "sweep schedule": r"# nightly would run at 02:00 daily, by cron; nothing is installed\.",
    "history": r"(No change found|No change can be found yet|\d+ changes? in).*\d+ numbers over \d+ runs?",
    "sweep run": r"# 10 blocks of 1 cell on bare-metal, container would go to Slurm, each to its own node\.",
}
"""What the answer of each command reads like."""
DRY = ("run", "sweep run")
"""Commands that only plan here; what they measure is measured by other tests."""
CODES = {"compare results/before": (0, 3, 4)}
"""Exit codes of commands that judge."""


def typed() -> list[str]:
    """Return the commands of the README's table, in its order."""
    text = (REPOSITORY / "README.md").read_text()
    table = re.search(r"^\| question \|.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    assert table, "the README has no table of questions"
    return re.findall(r"`(bench [^`]+)`", table[0])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory where the commands are typed one after the other: results/ is made in it."""
    require_image()
    require("target", "container")
    found = tmp_path_factory.mktemp("questions")
    (found / "my_model.py").write_text(example("A workload in a file", OWN_TRAINING))
    return found


def test_the_readme_answers_the_five_questions() -> None:
    rows = re.findall(r"^\| [^|]+\? \| (.+) \|$", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 5
    assert all("`bench " in row for row in rows)


def parameters() -> Iterator[Any]:
    """Give the commands; of those that measure, make test runs the first."""
    measuring = [command for command in typed() if command.startswith("bench run ")]
    for command in typed():
        yield pytest.param(command, marks=pytest.mark.thorough if command in measuring[1:] else ())


@pytest.mark.parametrize("command", list(parameters()))
def test_each_command_answers_in_its_first_three_lines(command: str, place: Path) -> None:
    _, *words = shlex.split(command)
    done = subprocess.run(
        [BENCH, *words], cwd=place, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr
    name = next(name for name in ANSWERS if " ".join(words).startswith(name))
    first = " ".join(line.strip() for line in done.stdout.splitlines()[:3])
    assert re.search(ANSWERS[name], first), f"{command} began with: {first}\n{done.stderr}"


def listed() -> list[str]:
    """Return the commands of the README's list, except three with other tests: an hour, removes images, serves."""
    lines = re.findall(r"^    bench (.*?)(?: +#.*)?$", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    return [line for line in lines if line not in ("selftest", "clean --all", "web") and "|" not in line]


def test_the_readme_lists_commands() -> None:
    assert len(listed()) > 6


@pytest.mark.parametrize("command", listed())
def test_each_listed_command_is_accepted(command: str, place: Path) -> None:
    runs = {"before": "turns", "after": "turns", "cellar": "synthetic-podman", "rack": "synthetic-podman-later"}
    for name, sample in runs.items():
        run = shutil.copytree(REPOSITORY / "tests/samples/runs" / sample, place / "results" / name, dirs_exist_ok=True)
        for record in run.glob("trials/*.json") if name in ("cellar", "rack") else ():  # as if each had its host
            record.write_text(re.sub(r'("hostname": *)"[^"]*"', rf'\1"{name}"', record.read_text()))
    words = [*shlex.split(command), *(["--dry-run"] if command.startswith(DRY) else [])]
    done = subprocess.run([BENCH, *words], cwd=place, capture_output=True, text=True, timeout=300)
    codes = next((codes for start, codes in CODES.items() if command.startswith(start)), (0,))
    assert done.returncode in codes, done.stdout + done.stderr
