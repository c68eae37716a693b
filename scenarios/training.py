"""The trainings on one instance, synthetic and real, with their epochs and checkpoints."""

import math
from collections.abc import Sequence
from pathlib import Path

from scenarios.datasets import resolve as datasets
from scenarios.events import Transcript
from scenarios.job import AttestedJob, launch, prepare, recordable, scratch_of
from scenarios.preemption import CHECKPOINT_BYTES, with_preemption
from scenarios.reading import TEMPORARY, mounted_at
from scenarios.turns import TrainingTurns
from suite.errors import MeasurementError, RequestError, option
from suite.interfaces import Context, Instance, Measurement, Note, Observer, TurnTaker
from suite.job.datasets import GENERATED, SYNTHETIC, Dataset
from suite.plan import Trial
from suite.records.record import Epochs, Timeline
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


class TrainingScenario(PlannedScenario):
    """The base of the scenarios that train on one instance, perhaps once more while it is preempted."""

    inventory = checkpoints = generates = keeps = True

    def measure(self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: Context) -> Measurement:
        """Run the job. Raises MeasurementError unless it comes to its end, on the data set that was planned."""
        (instance,) = instances
        job = self._prepared(trial, instance, observer)
        measured = launch(job, account)
        with recordable(job.argv):
            measured = _with_epochs(job, measured)
        return with_preemption(trial, instance, observer, measured)

    def turn_taker(self, trial: Trial, instances: Sequence[Instance], observer: Observer) -> TurnTaker:
        """Prepare the job to take turns; the page cache is then in its planned state."""
        (instance,) = instances
        return TrainingTurns(self._prepared(trial, instance, observer))

    def _prepared(self, trial: Trial, instance: Instance, observer: Observer) -> AttestedJob[Transcript]:
        if self.needs_data and trial.job.dataset is None:
            raise MeasurementError(
                "training on real data was planned without a data set",
                kind="dataset",
                remedy=f"name one with {option('data')}",
            )
        return prepare(trial, instance.node, observer)


class Synthetic(TrainingScenario):
    """The paper's synthetic benchmark: one batch in memory, used in every step, so that only computing is measured."""

    name = "synthetic"

    def scratch_bytes(self, request: RunRequest, models: Sequence[str]) -> dict[str, int]:
        return {} if request.measurement.checkpoint == "off" else dict.fromkeys(models, CHECKPOINT_BYTES)


class Real(ReadingScenario, TrainingScenario):
    """The paper's benchmark on real data, which is decoded, cropped and normalised while the job trains."""

    name = "real"
    needs_data = epochs = True

    def scratch_bytes(self, request: RunRequest, models: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(models, CHECKPOINT_BYTES) if request.measurement.preempt else {}

    def hinders_turns(self, request: RunRequest) -> tuple[str, str] | None:
        if request.data.cache == "warm":
            return None
        why = "a cold page cache is cold once, and not in every turn"
        return why, f"add {option('cache')} warm, or leave {option('design')} out"


def _with_epochs(job: AttestedJob[Transcript], measured: Measurement) -> Measurement:
    """Return the measurement with its epochs, or with what a whole one would take by the share that was measured.

    Epochs of drawn data are the steps between checkpoints.
    """
    sizes, dataset = job.log.workload, job.trial.job.dataset
    if not (dataset or sizes.epochs):
        return measured
    step_images = sizes.batch * job.trial.job.devices.devices
    steps = job.trial.job.epoch_steps
    timeline = measured.timeline or Timeline()
    if not sizes.epochs:
        epochs = Epochs(steps=steps, scaled_share=sizes.steps / steps if steps else None)
        scaled = epochs.metrics(timeline.measured_s or 0.0, of_data=True)
        return measured.changed(epochs=epochs, metrics={**measured.metrics, **scaled})
    said = job.log.events["steps"].fields
    checkpoints = job.log.said("steps", "checkpoints")
    place = scratch_of(job.trial, job.node) or TEMPORARY
    written = {**checkpoints, "filesystem": mounted_at(job.node, place)[0]} if checkpoints else None
    epochs = Epochs.model_validate({"steps": steps, "seconds": said.get("epochs_s"), "checkpoints": written})
    if len(epochs.seconds) != sizes.epochs:
        told = f"the worker measured {len(epochs.seconds)} epochs, and {sizes.epochs} were asked for"
        raise MeasurementError(told, kind="protocol")
    measured_s = math.fsum(epochs.seconds)
    between_s = max(0.0, job.log.between("measuring", "measured") - measured_s)
    return measured.changed(
        epochs=epochs,
        throughput_per_s=step_images * sizes.steps / measured_s,
        timeline=timeline.model_copy(update={"measured_s": measured_s, "between_epochs_s": between_s}),
        metrics={**measured.metrics, **epochs.metrics(measured_s, of_data=dataset is not None)},
    )
