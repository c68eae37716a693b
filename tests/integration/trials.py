"""Trials that a test runs without the command line, and the records that either way leaves."""

from pathlib import Path

from provisioning.metrics.accounting import open_account
from scenarios.events import Silent
from suite.interfaces import OpenTarget, Scenario
from suite.loop import Loop
from suite.plan import Plan
from suite.records.environment import Environment
from suite.records.record import TrialRecord
from suite.results.store import Run
from worker.environment import collect


def run_plan(plan: Plan, scenario: Scenario, opened: OpenTarget, place: Path) -> list[TrialRecord]:
    """Run the trials of a plan in targets that ``opened`` gives, into the directory of a run."""
    loop = Loop(scenario, opened, Run(place), Silent(), lambda: Environment.model_validate(collect()), open_account)
    return loop.run(plan)


def records_in(run: Path) -> list[TrialRecord]:
    paths = sorted((run / "trials").glob("*.json"))
    return [TrialRecord.model_validate_json(path.read_bytes()) for path in paths]
