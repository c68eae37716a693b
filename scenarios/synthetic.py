"""Synthetic training: one batch in memory, used in every step, so that only computing is measured."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from scenarios.job import prepare, run_job
from scenarios.turns import TrainingTurns
from suite.interfaces import Instance, Measurement, Observer, TurnTaker
from suite.plan import Trial
from suite.request.scenario import PlannedScenario


class Synthetic(PlannedScenario):
    """The paper's synthetic benchmark on one instance."""

    name = "synthetic"
    inventory = True

    def measure(
        self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: AbstractContextManager[object]
    ) -> Measurement:
        """Run the job. Raises MeasurementError unless it comes to its end."""
        (instance,) = instances
        return run_job(trial, instance.node, observer, account)

    def turn_taker(self, trial: Trial, instances: Sequence[Instance], observer: Observer) -> TurnTaker:
        """Prepare the job to take turns."""
        (instance,) = instances
        return TrainingTurns(prepare(trial, instance.node, observer))
