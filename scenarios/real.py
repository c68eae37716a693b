"""Training on a data set: what the job reads is decoded, cropped and normalised while it trains."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from scenarios.datasets import resolve as datasets
from scenarios.epochs import run_epochs
from scenarios.job import prepare
from scenarios.preemption import CHECKPOINT_BYTES, with_preemption
from scenarios.turns import TrainingTurns
from suite.errors import MeasurementError, RequestError, option
from suite.interfaces import Instance, Measurement, Note, Observer, TurnTaker
from suite.job.datasets import GENERATED, SYNTHETIC, Dataset
from suite.plan import Trial
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario


class ReadingScenario(PlannedScenario):
    """A training that reads a data set; see ``needs_data`` for whether it always does."""

    reads = True

    def data_set(self, request: RunRequest, home: Path, note: Note) -> tuple[str, Dataset | None]:
        asked = request.data.data or (GENERATED if self.needs_data else SYNTHETIC)
        if asked != SYNTHETIC:
            return datasets.resolve(asked, home, request.data.frame_stride, note)
        if self.needs_data:
            raise RequestError(
                f"{option('data')} {asked} with {option('scenario')} {self.name}",
                remedy=f"use {option('scenario')} {SYNTHETIC} for it",
            )
        return SYNTHETIC, None


class Real(ReadingScenario):
    """The paper's benchmark on real data, on one instance."""

    name = "real"
    needs_data = epochs = checkpoints = generates = keeps = inventory = True

    def scratch_bytes(self, request: RunRequest, models: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(models, CHECKPOINT_BYTES) if request.measurement.preempt else {}

    def hinders_turns(self, request: RunRequest) -> tuple[str, str] | None:
        if request.data.cache == "warm":
            return None
        why = "a cold page cache is cold once, and not in every turn"
        return why, f"add {option('cache')} warm, or leave {option('design')} out"

    def measure(
        self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: AbstractContextManager[object]
    ) -> Measurement:
        """Run the job. Raises MeasurementError unless it comes to its end, on the data set that was planned."""
        _check_data_set(trial)
        (instance,) = instances
        return with_preemption(trial, instance, observer, run_epochs(trial, instance.node, observer, account))

    def turn_taker(self, trial: Trial, instances: Sequence[Instance], observer: Observer) -> TurnTaker:
        """Prepare the job to take turns; the page cache is then in its planned state."""
        _check_data_set(trial)
        (instance,) = instances
        return TrainingTurns(prepare(trial, instance.node, observer))


def _check_data_set(trial: Trial) -> None:
    if trial.job.dataset is None:
        raise MeasurementError(
            "training on real data was planned without a data set",
            kind="dataset",
            remedy=f"name one with {option('data')}",
        )
