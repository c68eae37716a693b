"""Training on a data set: what the job reads is decoded, cropped and normalised while it trains."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from scenarios.epochs import with_epochs
from scenarios.job import launch, prepare, recordable
from scenarios.turns import TrainingTurns
from suite.errors import MeasurementError, option
from suite.interfaces import Instance, Measurement, Observer, TurnTaker
from suite.job.datasets import Dataset
from suite.plan import Trial


class Real:
    """The paper's benchmark on real data, on one instance."""

    name = "real"

    def measure(
        self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: AbstractContextManager[object]
    ) -> Measurement:
        """Run the job. Raises MeasurementError unless it comes to its end, on the data set that was planned."""
        dataset = _dataset(trial)
        (instance,) = instances
        job = prepare(trial, instance.node, observer)
        measured = launch(job, account)
        with recordable(job.argv):
            return with_epochs(job, dataset, measured)

    def turn_taker(self, trial: Trial, instances: Sequence[Instance], observer: Observer) -> TurnTaker:
        """Prepare the job to take turns; the page cache is then in its planned state."""
        _dataset(trial)
        (instance,) = instances
        return TrainingTurns(prepare(trial, instance.node, observer))


def _dataset(trial: Trial) -> Dataset:
    if trial.job.dataset is None:
        raise MeasurementError(
            "training on real data was planned without a data set",
            kind="dataset",
            remedy=f"name one with {option('data')}",
        )
    return trial.job.dataset
