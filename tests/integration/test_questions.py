"""The commands of the README and of docs/guide/own-training.md, typed as they stand there.

A question is answered in the first three lines.
"""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.test_worker import OWN_TRAINING, example
from tests.integration.bench import REPOSITORY, bench, inside, records
from tests.integration.machine import require, require_fast_guests, require_image, require_root_and_image

pytestmark = pytest.mark.integration

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
ELSEWHERE = ("--scenario serve", "--fail-above")
"""What stands in the commands with other tests: they need a server, or the runs of two branches."""
BUDGET = ("--budget", "1m")
"""What is added to a run that takes up to ten minutes to decide: its first lines are the same."""


def typed() -> list[str]:
    """Return the commands of the README's table, in its order."""
    text = (REPOSITORY / "README.md").read_text()
    table = re.search(r"^\| question \|.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    assert table, "the README has no table of questions"
    rows = re.findall(r"^\| [^|]+\? \| (.*`bench .*) \|$", table[0], re.MULTILINE)
    assert len(rows) == 8, "a command answers each of eight questions"
    commands = re.findall(r"`(bench [^`]+)`", table[0])
    return [command for command in commands if not any(words in command for words in ELSEWHERE)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory where the commands are typed one after the other: results/ is made in it."""
    require_image()
    require("target", "container")
    found = tmp_path_factory.mktemp("questions")
    (found / "my_model.py").write_text(example("A workload in a file", OWN_TRAINING))
    return found


def parameters() -> Iterator[Any]:
    """Give the commands; of those that measure, make test runs the first."""
    measuring = [command for command in typed() if command.startswith("bench run")]
    for command in typed():
        yield pytest.param(command, marks=pytest.mark.thorough if command in measuring[1:] else ())


@pytest.mark.parametrize("command", list(parameters()))
def test_each_command_answers_in_its_first_three_lines(command: str, place: Path) -> None:
    _, *words = shlex.split(command)
    measures = words[0] == "run" and "--budget" not in words
    done = bench(*words, *(BUDGET if measures else ()), cwd=place, env={"COLUMNS": "80"})
    name = next(name for name in ANSWERS if " ".join(words).startswith(name))
    first = " ".join(line.strip() for line in done.stdout.splitlines()[:3])
    assert re.search(ANSWERS[name], first), f"{command} began with: {first}\n{done.stderr}"


def listed() -> list[str]:
    """Return the commands of the README's list, except three with other tests: an hour, removes images, serves."""
    text = (REPOSITORY / "README.md").read_text().partition("\n## Commands\n")[2]
    lines = re.findall(r"^    bench (.*?)(?: +#.*)?$", text, re.MULTILINE)
    assert len(lines) > 9
    return [line for line in lines if line not in ("selftest", "clean --all", "web") and "|" not in line]


@pytest.mark.parametrize("command", listed())
def test_each_listed_command_is_accepted(command: str, place: Path) -> None:
    runs = {"before": "turns", "after": "turns", "cellar": "synthetic-podman", "rack": "synthetic-podman-later"}
    runs["night"] = "turns"
    for number, (name, sample) in enumerate(runs.items()):
        run = shutil.copytree(REPOSITORY / "tests/samples/runs" / sample, place / "results" / name, dirs_exist_ok=True)
        for file in (run / "plan.json", *run.glob("trials/*.json")):  # copies are one run
            file.write_text(re.sub(r'("run_id": *)"[^"]*"', rf'\1"{number:016x}"', file.read_text()))
        for record in run.glob("trials/*.json") if name in ("cellar", "rack") else ():  # as if each had its host
            record.write_text(re.sub(r'("hostname": *)"[^"]*"', rf'\1"{name}"', record.read_text()))
    words = [*shlex.split(command), *(["--dry-run"] if command.startswith(DRY) else [])]
    done = bench(*words, code=None, cwd=place)
    judged = command.startswith("compare results/before")
    assert done.returncode in ((0, 3, 4) if judged else (0,)), done.stdout + done.stderr


WAYS = {"A workload in a file": "my_model.py", "A command": "mine/train.py"}
"""The sections, and the file that each says to save."""


@pytest.mark.parametrize("targets", [("bare-metal", "container"), ("vm",), ("container-vm",)], ids="+".join)
@pytest.mark.parametrize("heading", WAYS)
def test_the_example_runs_as_it_is_documented(heading: str, targets: tuple[str, ...], tmp_path: Path) -> None:
    require_root_and_image()
    if "container" not in targets:
        require_fast_guests()
    section = OWN_TRAINING.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (tmp_path / "mine").mkdir()
    (tmp_path / WAYS[heading]).write_text(example(heading, OWN_TRAINING))
    (documented,) = re.findall(r"^    bench (run .* --target all .*)$", section, re.MULTILINE)
    words = shlex.split(documented.replace("--target all", " ".join(f"--target {name}" for name in targets)))
    bench(*words, "--out", "out", cwd=tmp_path)
    found = records(tmp_path / "out")
    assert set(found) == set(targets)
    for record in found.values():
        assert record.outcome.status == "ok"
        assert record.job.model == Path(WAYS[heading]).name
        assert not inside(record).userland_differences
        assert heading != "A command" or record.details["steps"] == 40
