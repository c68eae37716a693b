"""The epochs of a training on a data set: what the worker says of them, and the metrics that are made of it."""

import math
import statistics
from collections.abc import Mapping

from scenarios.events import Transcript
from scenarios.job import AttestedJob
from suite.errors import MeasurementError
from suite.interfaces import Measurement
from suite.job.datasets import Dataset
from suite.records.record import CHECKPOINT, EPOCH, FIRST_EPOCH, SCALED_EPOCH, Epochs, MetricValue, Timeline
from worker.data.sets import steps_of_epoch


def with_epochs(job: AttestedJob[Transcript], dataset: Dataset, measured: Measurement) -> Measurement:
    """Return the measurement with its epochs, or with what a whole one would take by the share that was measured.

    Raises ValidationError on what cannot be recorded, and MeasurementError.
    """
    sizes, step_images = job.log.workload, job.log.workload.batch * job.trial.job.devices.devices
    steps = steps_of_epoch(dataset.images, step_images)
    timeline = measured.timeline or Timeline()
    if not sizes.epochs:
        epochs = Epochs(steps=steps, scaled_share=sizes.steps / steps if steps else None)
        return measured.changed(epochs=epochs, metrics={**measured.metrics, **_scaled(epochs, timeline)})
    said = job.log.events["steps"].fields
    checkpoints = job.log.said("steps", "checkpoints")
    written = {**checkpoints, "filesystem": job.seen and job.seen.temporary_filesystem} if checkpoints else None
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
        metrics={**measured.metrics, **_whole(epochs)},
    )


def _scaled(epochs: Epochs, timeline: Timeline) -> Mapping[str, MetricValue]:
    if not timeline.measured_s or not epochs.scaled_share:
        return {}
    return {SCALED_EPOCH: MetricValue(value=timeline.measured_s / epochs.scaled_share, unit="s", better="less")}


def _whole(epochs: Epochs) -> Mapping[str, MetricValue]:
    first_s, *others_s = epochs.seconds
    written_s = epochs.checkpoints.seconds if epochs.checkpoints else []
    found = {FIRST_EPOCH: [first_s], EPOCH: others_s, CHECKPOINT: written_s}
    return {
        name: MetricValue(value=statistics.median(seconds), unit="s", better="less", samples=seconds)
        for name, seconds in found.items()
        if seconds
    }
