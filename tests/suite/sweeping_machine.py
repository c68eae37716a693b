"""``bench`` on a machine that is all fakes and takes milliseconds: a program of its own, so that it can be killed.

    python -m tests.suite.sweeping_machine sweep run plan.toml

Each trial is written to the file MEASURED (a line when it is measured). FAILING: targets that fail. SLOW_S: how long a
trial takes.
"""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import cli
from suite.errors import MeasurementError
from suite.interfaces import Instance, Measurement, Observer
from suite.plan import Trial
from tests.commands.conftest import Machine, answer_for, live_in
from tests.suite.conftest import FakeScenario, measuring_by


class Scenario(FakeScenario):
    """Takes SLOW_S, and says in MEASURED what it has measured."""

    def measure(
        self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: AbstractContextManager[object]
    ) -> Measurement:
        with Path(os.environ["MEASURED"]).open("a") as file:
            file.write(f"{trial.job.profile} {trial.trial_id}\n")
        time.sleep(float(os.environ.get("SLOW_S", "0.005")))
        return super().measure(trial, instances, observer, account)


def furnish(patch: pytest.MonkeyPatch, home: Path) -> None:
    """Answer everything that ``bench`` asks of the machine; see ``tests.commands.conftest.Machine``."""
    live_in(home, home / "run", patch)
    answer_for(Machine(), patch)


def measure_nothing(patch: pytest.MonkeyPatch) -> None:
    """Every scenario is one that trains nothing."""
    failing: dict[str, BaseException] = {
        target: MeasurementError(f"{target} is broken") for target in os.environ.get("FAILING", "").split()
    }
    scenario = Scenario([], failing)
    measuring_by(scenario, patch)


def main(words: Sequence[str]) -> None:
    furnish(pytest.MonkeyPatch(), Path(os.environ["MEASURED"]).parent / "home")
    measure_nothing(pytest.MonkeyPatch())
    cli.main(words)


if __name__ == "__main__":
    main(sys.argv[1:])
