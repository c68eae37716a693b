"""The stages of the GPU day as on a machine with two H200: what they ask of the suite is planned, and nothing runs."""

import itertools
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from provisioning.gpus import Card
from provisioning.images import image as images
from provisioning.images.image import Image
from provisioning.sites import here as site
from suite.records.usage import GpuUsage, Resources
from tests.analysis.test_same_work import work
from tests.commands.conftest import Bench, Machine
from tests.integration.bench import REPOSITORY
from tests.sites import IMAGE
from tests.suite.conftest import make_record

H200 = [Card(str(number), "H200", "580.1", f"GPU-{number}0000000", (9, 0)) for number in range(2)]
STRANGERS = Resources(gpus=[GpuUsage(strangers=["python (process 7)"])])
RECORD = make_record(**work(), resources=STRANGERS)
RATES = {"free": "1 20", "synchronised": "1 10", "tf32": "1 15", "suite": "nan 10"}


@pytest.fixture
def asked(bench: Bench, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a day on two H200, and what it asked of the suite."""
    assert machine.usable["runc"]
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    monkeypatch.setattr(site, "examined", lambda: (H200, None, None))
    monkeypatch.setattr(Image, "cuda", "13.0")
    monkeypatch.setattr(images, "find", lambda _: IMAGE)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(H200))
    made = import_module("gpu_stages.day")

    @dataclass
    class DryDay(made.Day):  # type: ignore[misc, name-defined]
        """A day whose runs are planned; each has a record of every model and target."""

        runs: list[tuple[str, ...]] = field(default_factory=list)
        exits: list[int] = field(default_factory=list)
        most_s: float = 0.0
        """What the runs may take together, by their forecasts."""

        def program(self, *argv: str) -> "CompletedProcess[str]":
            script, *words = argv
            if script.endswith("cuda_loop.py"):
                return CompletedProcess(argv, 0, RATES[words[0]], "")
            if words[0] == "compare":
                return CompletedProcess(argv, 0, '{"rows": []}', "")
            more = ["--images", "512", "--size", "small"] if words[0] == "data" else ["--dry-run", "--json"]
            ended = bench(*words, *more)
            self.exits.append(ended.exit_code)
            if words[0] == "run" and not ended.exit_code:
                self.most_s += json.loads(ended.stdout)["most_s"]
                self.runs.append(tuple(words))
            return CompletedProcess(argv, ended.exit_code, ended.stdout, ended.stderr)

        def kept(self, name: str) -> list[dict[str, Any]]:
            record = json.loads(RECORD.model_dump_json())
            named = next((run for run in self.runs if str(self.options.state / "runs" / name) in run), ())
            given = [*itertools.pairwise(named)]
            models = [value for word, value in given if word == "--model"]
            targets = [value for word, value in given if word == "--target"]
            found = []
            for model, target in itertools.product(models or [""], targets):
                found.append({**record, "job": {**record["job"], "model": model}, "target": target})
            return found

    truth = import_module("gpu_stages.truth")
    there = SimpleNamespace(poll=lambda: None)
    monkeypatch.setattr(truth, "planted", lambda _: nullcontext([there]))
    monkeypatch.setattr(truth, "sampling", lambda _: {})
    options = SimpleNamespace(state=tmp_path / "state", out=tmp_path / "out", rehearse=False, sites=[])
    for directory in (options.state, options.out):
        directory.mkdir()
    return DryDay(options, math.inf, facts={"P": {"image": IMAGE.digest, "took_s": 0.0}})


@pytest.mark.parametrize("name", "BDCEURFHVWG")
def test_what_a_stage_asks_of_the_suite_is_planned_on_a_gpu(name: str, asked: Any) -> None:
    results = import_module("gpu_stages.results")
    results.take(asked, name)
    facts = asked.facts[name]
    assert "error" not in facts, facts
    assert set(asked.exits) <= {0}
    assert all("cuda" in run for run in asked.runs)
    estimate_s = import_module("gpu_stages.stages").STAGES[name].seconds
    assert asked.most_s < 1.5 * estimate_s, "it is chosen by this estimate"


def test_wrong_requests_are_refused_on_a_machine_with_gpus(asked: Any) -> None:
    truth = import_module("gpu_stages.truth")
    assert truth.accepted(asked) == {"wrong requests that were accepted": 0}
    assert asked.exits == [2] * len(truth.WRONG)


SLEEPS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit("undone"))
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(0 if os.path.exists(sys.argv[2]) else 600)
"""
DAY = f"""
import sys
sys.path[:0] = [{str(REPOSITORY / "benchmarks")!r}, {str(REPOSITORY)!r}]
import gpu_day
from gpu_stages.stages import STAGES, Stage

def stage(day):
    yield {{"first": 1, "image": "made"}}
    day.program("-c", {SLEEPS!r}, str(day.options.state / "pid"), str(day.options.state / "quick"))
    yield {{"second": 2}}

STAGES.update(dict.fromkeys(STAGES, Stage(stage, 1)))
sys.argv[0] = "gpu_day.py"
gpu_day.main()
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_day_that_is_ended_keeps_what_it_found_leaves_no_program_and_is_gone_on_with(
    ending: signal.Signals, tmp_path: Path
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    state = tmp_path / "state"
    argv = [sys.executable, "-c", DAY, "--rehearse", "--state", str(state), "--stages", "AP"]

    def stages() -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = json.loads((state / "out/facts.json").read_text())["stages"]
        return found

    day = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    end_s = time.monotonic() + 60
    while not (state / "pid").exists() or not (state / "pid").read_text():
        assert time.monotonic() < end_s
        time.sleep(0.05)
    program = int((state / "pid").read_text())
    day.send_signal(ending)
    printed, _ = day.communicate(timeout=60)
    assert day.returncode == (-signal.SIGKILL if ending == signal.SIGKILL else 1)
    while Path("/proc", str(program)).exists():
        assert time.monotonic() < end_s
        time.sleep(0.05)
    assert stages()["A"].keys() == {"first", "image", "took_s"}
    if ending != signal.SIGKILL:
        assert "interrupted: a call with the same --state goes on" in printed
        assert "CUT OFF" in (state / "out/summary.md").read_text()
        assert "undone" in (state / "out/log").read_text()

    (state / "quick").touch()
    again = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert all(facts["second"] == 2 for facts in stages().values())


def test_a_stage_that_takes_three_times_its_estimate_is_cut_off_for_the_others(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = import_module("gpu_stages.day")
    stages = import_module("gpu_stages.stages")
    results = import_module("gpu_stages.results")
    monkeypatch.setattr(day, "LEAST_S", 0.2)
    slow = day.Day(asked.options, time.monotonic() + 600, facts={})

    def sleeps(day: Any) -> Any:
        day.program("-c", "import time; time.sleep(600)")
        yield {}

    monkeypatch.setitem(stages.STAGES, "A", stages.Stage(sleeps, 0))
    begin_s = time.monotonic()
    results.take(slow, "A")
    assert time.monotonic() - begin_s < 60
    assert "timed out after 0.2" in slow.facts["A"]["error"]
