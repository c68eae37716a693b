"""The epochs and checkpoints of a training: what the worker says of them, and the metrics that are made of it."""

import math

from scenarios.events import Transcript
from scenarios.job import AttestedJob, launch, prepare, recordable, scratch_of
from scenarios.reading import TEMPORARY, mounted_at
from suite.errors import MeasurementError
from suite.interfaces import Context, Measurement, Node, Observer
from suite.plan import Trial
from suite.records.record import Epochs, Timeline


def run_epochs(trial: Trial, node: Node, observer: Observer, account: Context) -> Measurement:
    """Run a training. Returns the measurement with its epochs, if it has any. Raises MeasurementError."""
    job = prepare(trial, node, observer)
    measured = launch(job, account)
    with recordable(job.argv):
        return _with_epochs(job, measured)


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
