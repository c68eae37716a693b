"""The walk along ``next``: from a smoke run of each kind to a verdict, typed by bash as 80 columns show it."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.comparison import compare
from analysis.load.records import load
from analysis.report.answers.answer import answer
from analysis.report.answers.claim import NO_NUMBER, NO_VERDICT, UNDECIDED
from suite.interfaces import Measurement
from suite.plan import Trial
from suite.records.record import MetricValue
from tests.commands.conftest import Bench, Machine, ended_well

OPEN = {UNDECIDED, NO_VERDICT, NO_NUMBER, ""}
MOST_STEPS = 3
SCREEN = {"COLUMNS": "80"}
SMOKE = ("--profile", "smoke", "--memory", "2G", "--cpus", "2")
BOTH = ("--target", "bare-metal", "--target", "container")
SEQUENTIAL = ("--design", "sequential", *BOTH)
"""The fakes take no turns."""
PROGRAM = ("--", "python", "train.py", "--name", "it's $HOME")
KINDS: Mapping[str, tuple[str, ...]] = {
    "training": SEQUENTIAL,
    "command": (*SEQUENTIAL, *PROGRAM),
    "two commands": ("--design", "sequential", *PROGRAM, "--versus", *PROGRAM),
    "probe": ("--probe", "cpu", *BOTH),
    "one target": ("--design", "sequential", "--target", "bare-metal"),
}


def pasted(screen: str, stub: Path) -> list[str]:
    """Return the words that bash gives ``bench`` for the line below ``next:``."""
    lines = screen.splitlines()
    line = lines[next(number for number, text in enumerate(lines) if text.strip() == "next:") + 1]
    script = stub.parent / "pasted.sh"
    script.write_text(line + "\n")
    subprocess.run(["bash", "-n", str(script)], check=True)
    path = {"PATH": f"{stub.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=True, env={**os.environ, **path})
    return done.stdout.split("\0")[:-1]


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A ``bench`` that prints the words that it is given."""
    program = tmp_path / "bin" / "bench"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def measuring(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each kind of job measure what its records need."""
    measure = machine.scenario.measure

    def measured(trial: Trial, *rest: Any) -> Measurement:
        found = measure(trial, *rest)
        nothing = dict.fromkeys(("throughput_per_s", "steps", "weights_sha256"))
        metrics = {"cpu-time": MetricValue(value=1.0, unit="s", better="less")}
        if trial.job.command:
            return found.model_copy(update={**nothing, "metrics": metrics})
        if trial.job.scenario == "probe":
            rate = {"events-per-s": MetricValue(value=9.0, unit="/s", better="more")}
            return found.model_copy(update={**nothing, "metrics": rate})
        return found

    monkeypatch.setattr(machine.scenario, "measure", measured)


def words_of_answer(run: Path) -> set[str]:
    return {row.word for row in answer(compare(load([run]))).rows} or {""}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("unaudited", "measuring")
def test_three_pasted_steps_lead_from_a_smoke_run_of_each_kind_to_a_verdict(
    kind: str, bench: Bench, stub: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    run = Path("results/smoke")
    shown = ended_well(bench("run", "--out", str(run), *SMOKE, *KINDS[kind], env=SCREEN))
    steps = []
    for number in range(MOST_STEPS):
        words = pasted(shown.stdout, stub)
        steps.append(words)
        assert words[0] == "run", steps
        if "--continue" not in words:
            assert ended_well(bench(*words, "--dry-run", env=SCREEN)).stdout.startswith("plan: ")
            # A shell's next command has a process and a second of its own, which name the directory.
            run = Path(f"results/step-{number}")
            words = [*words[:1], "--out", str(run), *SMOKE[2:], *words[1:]]
        shown = ended_well(bench(*words, env=SCREEN))
        if not words_of_answer(run) & OPEN:
            break
    assert not words_of_answer(run) & OPEN, (steps, shown.output)
    last = pasted(shown.stdout, stub)
    assert last[0] in ("compare", "report")
    ended_well(bench(*last, env=SCREEN))


@pytest.mark.usefixtures("unaudited", "measuring")
def test_the_step_of_instances_that_start_together_can_be_pasted(bench: Bench, stub: Path) -> None:
    words = ("--scenario", "startup", "--instances", "1,2", *BOTH)
    shown = ended_well(bench("run", *SMOKE, *words, env=SCREEN))
    if "next:" in shown.stdout:
        assert pasted(shown.stdout, stub)[0] in ("run", "compare")
