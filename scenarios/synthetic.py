"""Synthetic training: one batch in memory, used in every step, so that only computing is measured."""

from collections.abc import Sequence

from scenarios.preemption import CHECKPOINT_BYTES
from scenarios.training import TrainingScenario
from suite.request.request import RunRequest


class Synthetic(TrainingScenario):
    """The paper's synthetic benchmark on one instance."""

    name = "synthetic"

    def scratch_bytes(self, request: RunRequest, models: Sequence[str]) -> dict[str, int]:
        return {} if request.measurement.checkpoint == "off" else dict.fromkeys(models, CHECKPOINT_BYTES)
