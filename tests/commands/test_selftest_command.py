"""``bench selftest`` without a machine: what it plans and says, and that it finds nothing where nothing was done."""

import json
from pathlib import Path

import pytest

from scenarios.job import specification
from suite.results.store import Run
from suite.selftest.certificate import FILE, Certificate
from tests.commands.conftest import Bench, Machine
from worker.spec import parse_spec

TWO = ("selftest", "--target", "bare-metal", "--injury", "late-steps", "--blocks", "2")


def certificate(place: Path) -> Certificate:
    return Certificate.model_validate_json((place / FILE).read_text())


def test_an_injury_that_is_not_applied_is_reported_as_not_found_and_measured_once(
    bench: Bench, machine: Machine, here: Path
) -> None:
    """The fake scenario trains as if nothing had been done to it."""
    result = bench(*TWO, "--out", "control")
    assert result.exit_code == 1, result.output
    made = certificate(here / "control")
    assert {one.injury: one.found for one in made.findings} == {"nothing": True, "late-steps": False}
    assert "it was not there in 2 of 2 blocks, by the worker's clock" in made.findings[1].note
    assert certificate(here / "home") == made
    assert "6 trials, about 82 s, ROUGH, within a factor of 5" in result.stderr
    assert "found 1 of 2 injuries" in " ".join(result.stdout.split())
    assert sum(event.startswith("measure") for event in machine.events) == 6
    names = [f"synthetic-resnet50-bare-metal{arm}-b000" for arm in ("+late-steps", "+nothing", "")]
    assert sorted(record.trial_id for record in Run(here / "control/synthetic").records() if not record.block) == names
    machine.events.clear()
    assert json.loads(bench(*TWO, "--out", "control", "--json").stdout)["blocks"] == 2
    assert machine.events == []
    told = bench("compare", "control/synthetic").stdout
    assert made.line() not in told, "the fake does not attest the image that the certificate names"


@pytest.mark.usefixtures("machine")
def test_what_cannot_be_done_is_said_with_the_reason(bench: Bench, here: Path) -> None:
    result = bench(*TWO, "--injury", "cpu-quota-10", "--target", "vm", "--out", "control")
    reasons = {one.injury: (one.targets, one.reason) for one in certificate(here / "control").absent}
    assert reasons["cpu-quota-10"][0] == ("vm",)
    assert "cpu-quota-10 on vm is left out" in result.stderr


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("slow", [False, True])
def test_what_it_plans_the_worker_takes(bench: Bench, here: Path, monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    monkeypatch.setattr("commands.selftest.emulated", lambda _made: slow)
    bench(*TWO, "--injury", "held-memory", "--target", "vm", "--out", "control")
    plan = Run(here / "control/synthetic").plan()
    assert plan is not None
    sizes = [parse_spec(specification(trial).encoded().decode()) for trial in plan.trials()]
    assert {one.steps for one in sizes} == {10 if slow else 30}
