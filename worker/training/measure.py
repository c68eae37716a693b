"""The measured steps of a job: in one piece, or in turns with other jobs."""

import gc
import io
import math
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import torch

from worker.environment import between, usage
from worker.probes.probe import Reading, median
from worker.process_tree import live_children
from worker.protocol import Events, JobError
from worker.serving.generator import model_content
from worker.spec import Spec, Turns
from worker.training.checkpoint import CheckpointStore
from worker.training.step import ALL, Samples
from worker.training.trainer import Trainer
from worker.turns import come_to_rest, each_turn
from worker.weights import weights_sha256
from worker.workloads.workload import Workload

LONGEST_TEXT_BYTES = 31 << 20
MOST_TEXT_BYTES = 60 << 20
"""The bounds of one line and of all that a job says, less what stands around a model."""
_STEP_TEXT_BYTES = 320
"""The text of one step with all its phases and losses."""


def measure(spec: Spec, trainer: Trainer, events: Events, checkpoints: CheckpointStore | None = None) -> dict[str, Any]:
    """Warm up, take the measured steps, and emit everything from ``warmup`` to the last ``model``. Raises JobError.

    An epoch is from asking for its first batch to the end of its last step; what is done after it is no part of it.
    Returns what the file of a model tells of its training.
    """
    own = OwnMetrics(spec.load_workload(), trainer)
    keeper = ModelKeeper(spec, trainer.network) if spec.keep_model else None
    samples = warm_up(spec, trainer, events)
    before = usage()
    children = live_children()
    of_epoch = spec.steps // (spec.epochs or 1)
    begun = checkpoints.epochs * of_epoch if checkpoints else 0
    epochs_s: list[float] = []
    begun_s = time.monotonic()
    events.emit("measuring", steps=spec.steps - begun)
    end_s = time.monotonic()  # also if a checkpoint was written after the last step
    for first in range(begun, spec.steps, of_epoch):
        begin_s = time.monotonic()
        _take_epoch(spec, trainer, samples, range(first, first + of_epoch), events, own)
        end_s = time.monotonic()
        if spec.epochs:
            epochs_s.append(end_s - begin_s)
            _between_epochs(spec, checkpoints, keeper, epochs_s)
            end_s = time.monotonic()
    gc.enable()
    after = usage()
    events.emit("measured", t=end_s)
    unfinished_s = come_to_rest(lambda: bool(live_children() - children))
    training_s = math.fsum(epochs_s) or end_s - begun_s
    _check_length(spec, begun, training_s)
    if keeper:
        keeper.keep_last(training_s)
    course = _Course(begun, epochs_s, unfinished_s, between(before, after))
    losses = _emit_steps(spec, trainer, events, checkpoints, samples, own, course)
    if keeper:
        keeper.emit(events)
    return {"epoch_s": epochs_s, "training_s": training_s, "steps": spec.steps, "losses": losses}


@dataclass(frozen=True)
class _Course:
    """The measured steps as a whole."""

    begun: int
    """The steps that an earlier process of this training has taken."""
    epochs_s: list[float]
    unfinished_s: float
    usage: dict[str, float]


def _emit_steps(
    spec: Spec,
    trainer: Trainer,
    events: Events,
    checkpoints: CheckpointStore | None,
    samples: Samples,
    own: "OwnMetrics",
    course: _Course,
) -> dict[str, list[float]]:
    """Check the losses and the workload's own metrics, and emit ``steps``. Returns the losses. Raises JobError."""
    events.step = "after the last step"
    recorded = slice(course.begun, None)
    losses = finite_losses(samples, recorded)
    metrics = own.columns(samples) if course.begun < spec.steps else {}
    if not spec.model_file:  # nobody analyses its single steps, and those of 50 epochs would fill the log of a pod
        events.emit(
            "steps",
            steps={} if spec.sync else samples.columns(recorded),  # without times where the host has not waited
            losses=losses,
            weights_sha256=weights_sha256(trainer.network),
            unfinished_s=course.unfinished_s,
            usage=course.usage,
            metrics=metrics,
            epochs_s=course.epochs_s,
            checkpoints=checkpoints and checkpoints.said(),
        )
    return losses


def _take_epoch(
    spec: Spec,
    trainer: Trainer,
    samples: Samples,
    steps: range,
    events: Events,
    own: "OwnMetrics",
) -> None:
    for index in steps:
        if index in spec.threads_at:
            torch.set_num_threads(spec.threads_at[index])
            events.emit("resize", step=index)
        _take_step(trainer, samples, index, events, own)
    trainer.synchronize()  # after the last step, if not after each


def _check_length(spec: Spec, begun: int, training_s: float) -> None:
    """Raise JobError for measured steps that took less time than they must."""
    # The rest of a training is as short as it likes; steps that were chosen by their time need not last it exactly.
    if spec.least_s and not spec.most_steps and not begun and training_s < spec.least_s:
        longer = 1.1 * spec.least_s / training_s
        name, count = ("--epochs", spec.epochs) if spec.epochs else ("--steps", spec.steps)
        message = f"{spec.steps} steps took {training_s:.3g} s, and the profile measures {spec.least_s:g} s or more"
        raise JobError(message, kind="short", remedy=f"give {name} {math.ceil(count * longer)} or more")


def _take_step(
    trainer: Trainer,
    samples: Samples,
    index: int,
    events: Events,
    own: "OwnMetrics",
) -> None:
    events.step = f"measured step {index + 1}"
    trainer.step(samples, index)
    if own.per_step:
        finite_losses(samples, slice(index, index + 1))  # before a metric that is made from them
        own.after_step()


def _between_epochs(
    spec: Spec, checkpoints: CheckpointStore | None, keeper: "ModelKeeper | None", epochs_s: list[float]
) -> None:
    """Collect the garbage of an epoch, which is not done during it, write the checkpoint, and keep the model.

    Raises JobError if so many epochs as long as the first one would not end within ``spec.within_s``.
    """
    gc.collect()
    if spec.within_s and epochs_s[0] * (spec.epochs or 1) > spec.within_s:
        message = f"{spec.epochs} epochs of {epochs_s[0]:.1f} s do not fit into the {spec.within_s} s of the job"
        raise JobError(message, kind="timeout", remedy="train fewer epochs, or give the job more time")
    if checkpoints:
        checkpoints.write()
    if keeper and keeper.each:
        keeper.keep(len(epochs_s), math.fsum(epochs_s))


def warm_up(spec: Spec, trainer: Trainer, events: Events) -> Samples:
    """Take the steps before the measured ones. Returns the storage of the latter; garbage is not collected then."""
    scratch = Samples.allocate(1, trainer.phases, trainer.parts)
    for number in range(1, spec.warmup_steps + 1):
        events.step = f"warm-up step {number}"
        trainer.step(scratch, 0)
        events.emit("warmup", step=number, of=spec.warmup_steps)
    samples = Samples.allocate(spec.steps, trainer.phases, trainer.parts)
    # A collection in the middle would fall on a step at random: all garbage goes now, none is looked for until the end.
    gc.collect()
    gc.disable()
    trainer.synchronize()
    return samples


def finite_losses(samples: Samples, steps: slice = ALL) -> dict[str, list[float]]:
    """Return the losses of measured steps, by name. Raises JobError where one shows that they were no training."""
    losses = samples.lost(steps)
    for name, column in losses.items():
        first_step = (steps.start or 0) + 1
        for number, loss in enumerate(column, start=first_step):
            if not math.isfinite(loss):
                called = "the loss" if name == "loss" else f"the loss {name}"
                message = f"{called} is {loss} in measured step {number}: that was no training"
                raise JobError(message, kind="diverged", remedy="lower the learning rate, or use --recipe reference")
    return losses


class OwnMetrics:
    """The metrics that the workload has of its own, as they come in."""

    def __init__(self, workload: Workload, trainer: Trainer) -> None:
        self.per_step: dict[str, list[float]] = {metric.name: [] for metric in workload.metrics if metric.per == "step"}
        self._workload = workload
        self._trainer = trainer

    def after_step(self) -> None:
        """Ask the workload for the values of a step. Raises JobError where they are not those it declares."""
        loss = self._trainer.loss()
        values = self._workload.after_step(self._trainer.network, loss)
        self._check(values, set(self.per_step))
        for name, value in values.items():
            self.per_step[name].append(float(value))

    def columns(self, samples: Samples) -> dict[str, dict[str, object]]:
        """Return the metrics by name, as ``records.MetricValue``; none for most workloads. Raises JobError."""
        names = {metric.name for metric in self._workload.metrics if metric.per == "job"}
        if names:
            elapsed_s = samples.elapsed.tolist()
            of_job = self._workload.after_job(self._trainer.network, elapsed_s)
        else:
            of_job = {}
        self._check(of_job, names)
        measured = {
            metric.name: median(self.per_step[metric.name], metric.unit, metric.better)
            if metric.per == "step"
            else Reading(float(of_job[metric.name]), metric.unit, metric.better)
            for metric in self._workload.metrics
        }
        return {name: asdict(reading) for name, reading in measured.items()}

    def _check(self, values: Mapping[str, float], names: set[str]) -> None:
        """Raise JobError unless exactly these were measured, each above zero."""
        called = f"the workload {self._workload.name}"
        if set(values) != names:
            raise JobError(
                f"{called} declares the metrics {sorted(names)} and returns {sorted(values)}", kind="metrics"
            )
        wrong = [name for name, value in values.items() if not (math.isfinite(value) and value > 0)]
        if wrong:
            raise JobError(f"{called} measures {wrong[0]} as {values[wrong[0]]}; it must be above zero", kind="metrics")


class ModelKeeper:
    """Keeps the network that makes the images, as it is at the end of a training or of each epoch. Raises JobError.

    The copies, in the format of ``serving.generator.write_model``, stay in memory while steps are measured, and are
    said after the last, each in one line of the protocol.
    """

    def __init__(self, spec: Spec, network: torch.nn.Module) -> None:
        self._spec = spec
        self._copies = list[dict[str, Any]]()
        self._network = network.get_submodule(spec.load_workload().image_network)
        size_bytes = len(self._text())
        count = (spec.epochs or 1) if self.each else 1
        room_bytes = MOST_TEXT_BYTES - _STEP_TEXT_BYTES * spec.steps
        if size_bytes > LONGEST_TEXT_BYTES or count * size_bytes > room_bytes:
            message = (
                f"{count} models of {size_bytes / 2**20:.1f} MiB are {count * size_bytes / 2**20:.1f} MiB as text; one "
                f"may have {LONGEST_TEXT_BYTES >> 20} MiB, and all beside {spec.steps} steps {room_bytes >> 20} MiB"
            )
            raise JobError(message, kind="model", remedy="keep the last one, or train smaller images or fewer epochs")

    @property
    def each(self) -> bool:
        return self._spec.keep_model == "each"

    def keep(self, epoch: int | None, training_s: float) -> None:
        """Copy the network as it is after so many epochs and seconds of training."""
        weights = weights_sha256(self._network)
        self._copies.append(
            {
                "epoch": epoch,
                "training_s": training_s,
                "weights_sha256": weights,
                "text": self._text(),
            }
        )

    def keep_last(self, training_s: float) -> None:
        if not self.each:
            self.keep(self._spec.epochs, training_s)

    def emit(self, events: Events) -> None:
        for copy in self._copies:
            events.emit("model", **copy)

    def _text(self) -> str:
        file = io.BytesIO()
        content = model_content(self._spec.shape, self._network)
        torch.save(content, file)
        return b64encode(file.getvalue()).decode()


def take_turns(spec: Spec, turns: Turns, trainer: Trainer, events: Events, orders: TextIO) -> None:
    """Warm up, wait, take a burst of steps on each order, and emit everything from ``warmup`` to ``steps``.

    Raises JobError, above all where the orders end early.
    """
    metrics = OwnMetrics(spec.load_workload(), trainer)
    samples = warm_up(spec, trainer, events)

    def burst(number: int) -> slice:
        return slice(number * turns.burst_steps, (number + 1) * turns.burst_steps)

    def take(number: int) -> None:
        steps = burst(number)
        for index in range(steps.start, burst(number).stop):
            _take_step(trainer, samples, index, events, metrics)

    def told(number: int) -> dict[str, object]:
        return {"steps": samples.columns(burst(number))}

    used = each_turn(turns.rounds, orders, events, take, told)
    gc.enable()
    events.emit("measured")
    events.step = "after the last step"
    losses = finite_losses(samples)
    weights = weights_sha256(trainer.network)
    events.emit(
        "steps",
        losses=losses,
        weights_sha256=weights,
        usage=used,
        metrics=metrics.columns(samples),
    )
