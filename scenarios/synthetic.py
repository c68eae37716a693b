"""Synthetic training: one batch in memory, used in every step, so that only computing is measured."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from scenarios.epochs import run_epochs
from scenarios.job import prepare
from scenarios.preemption import CHECKPOINT_BYTES, with_preemption
from scenarios.turns import TrainingTurns
from suite.interfaces import Instance, Measurement, Observer, TurnTaker
from suite.plan import Trial
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario


class Synthetic(PlannedScenario):
    """The paper's synthetic benchmark on one instance."""

    name = "synthetic"
    inventory = checkpoints = generates = keeps = True

    def scratch_bytes(self, request: RunRequest, models: Sequence[str]) -> dict[str, int]:
        return {} if request.measurement.checkpoint == "off" else dict.fromkeys(models, CHECKPOINT_BYTES)

    def measure(
        self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: AbstractContextManager[object]
    ) -> Measurement:
        """Run the job. Raises MeasurementError unless it comes to its end."""
        (instance,) = instances
        return with_preemption(trial, instance, observer, run_epochs(trial, instance.node, observer, account))

    def turn_taker(self, trial: Trial, instances: Sequence[Instance], observer: Observer) -> TurnTaker:
        """Prepare the job to take turns."""
        (instance,) = instances
        return TrainingTurns(prepare(trial, instance.node, observer))
