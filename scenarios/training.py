"""The trainings on one instance, synthetic and real, with their epochs, checkpoints and preemptions.

A job with preemptions is trained once more while its instance is killed at random moments and opened again. The moments
follow from the trial's seed, and are those of all targets of its block. The training goes on from the checkpoint on the
scratch volume, and must end with the weights of the undisturbed one before it.
"""

import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from scenarios.datasets import resolve as datasets
from scenarios.events import Transcript
from scenarios.job import AttestedJob, launch, prepare, recordable, scratch_of, workload_sizes
from scenarios.probes.resizing import Resizer, check_resizable
from scenarios.reading import TEMPORARY, mounted_at
from scenarios.turns import TrainingTurns
from suite.errors import MeasurementError, RequestError, option
from suite.interfaces import Context, Instance, Measurement, Node, Note, Observer, TurnTaker
from suite.job.datasets import GENERATED, SYNTHETIC, Dataset
from suite.job.envelope import Envelope, parse_cpu_changes
from suite.job.profiles import PROFILES
from suite.job.sharing import architecture
from suite.plan import Trial
from suite.records.fields import checked_part
from suite.records.record import LOST_STEPS, MAKESPAN, OPENINGS, Epochs, MetricValue, Timeline
from suite.registries import WORKLOADS
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from suite.targets import VMS

CHECKPOINT_BYTES = 4 << 30
"""The room for two checkpoints of any workload: a new one is whole before it takes the place of the one before."""
_PATIENCE = 50
"""The most times that a preempted job may take of an undisturbed one and the mean between preemptions."""


class ReadingScenario(PlannedScenario):
    """A training that reads a data set; see ``needs_data`` for whether it always does."""

    reads = True

    def trainers(self, request: RunRequest) -> int:  # noqa: ARG002 (of some scenarios)
        """Return the number of instances that train, each on images of its own."""
        return 1

    def _data(self, request: RunRequest) -> str:
        return request.data.data or (GENERATED if self.needs_data else SYNTHETIC)

    def images_read(self, request: RunRequest) -> tuple[str, int]:
        return self._data(request), self.trainers(request) * _images_of(request)

    def data_set(self, request: RunRequest, home: Path, note: Note) -> tuple[str, Dataset | None]:
        chosen, images = self.images_read(request)
        if chosen != SYNTHETIC:
            return datasets.resolve(chosen, home, request.data.frame_stride, note, images=images)
        if self.needs_data:
            raise RequestError(
                f"{option('data')} {chosen} with {option('scenario')} {self.name}",
                remedy=f"use {option('scenario')} {SYNTHETIC} for it",
            )
        return SYNTHETIC, None


def _images_of(request: RunRequest) -> int:
    """Return the images that a rank of the largest job of a request takes: in all steps, or in one of whole epochs."""
    profile = PROFILES.get(request.measurement.profile)
    options = {name: request.value(name) for name in ("batch", "steps", "warmup_steps")}
    changed = {}
    for name, value in options.items():
        if value is not None:
            changed[name] = int(value)
    most = 0
    for model in request.models:
        if profile and architecture(model) in WORKLOADS:
            sizes = profile.sizes_of(architecture(model)).model_copy(update=changed)
            steps = 1 if request.value("epochs") else sizes.warmup_steps + sizes.steps
            most = max(most, sizes.batch * steps)
    return most * (request.gpus.devices or 1)


class TrainingScenario(PlannedScenario):
    """The base of the scenarios that train on one instance, perhaps once more while it is preempted."""

    inventory = checkpoints = generates = keeps = resizes = True

    def check_shares(
        self,
        request: RunRequest,
        envelope: Envelope,
        targets: Sequence[str],
        note: Note,
    ) -> None:
        """Raise RequestError for CPUs that the envelope has not, and for targets that keep theirs."""
        super().check_shares(request, envelope, targets, note)
        text = request.measurement.resize_at
        if text is None:
            return
        check_resizable(option("resize_at"), request, targets, envelope)
        most = max(parse_cpu_changes(text).values())
        guests = [target for target in targets if target in VMS]
        if most > len(envelope.cpus):
            remedy = f"give {option('cpus')} {most}, or fewer"
            raise RequestError(
                f"{option('resize_at')} {text}: every target has {len(envelope.cpus)} CPUs", remedy=remedy
            )
        if guests:
            message = f"{option('resize_at')} does not go with {guests[0]}: a guest keeps the CPUs it was booted with"
            raise RequestError(message, remedy=f"choose other targets with {option('target')}")

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: Context,
    ) -> Measurement:
        """Run the job. Raises MeasurementError unless it comes to its end, on the data set that was planned."""
        (instance,) = instances
        job = self._prepared(trial, instance, observer)
        resizer = Resizer.of(trial, instance, job)
        measured = launch(job, account)
        with recordable(job.argv):
            measured = _with_epochs(job, measured)
        if resizer:
            measured = measured.changed(metrics={**measured.metrics, **resizer.metrics()})
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
        if request.measurement.checkpoint == "off":
            return {}
        return dict.fromkeys(models, CHECKPOINT_BYTES)


class Real(ReadingScenario, TrainingScenario):
    """The paper's benchmark on real data, which is decoded, cropped and normalised while the job trains."""

    name = "real"
    needs_data = epochs = True

    def scratch_bytes(self, request: RunRequest, models: Sequence[str]) -> dict[str, int]:
        if request.measurement.preempt:
            return dict.fromkeys(models, CHECKPOINT_BYTES)
        return {}

    def hinders_turns(self, request: RunRequest) -> tuple[str, str] | None:
        if request.data.cache == "warm":
            return None
        why = "a cold page cache is cold once, and not in every turn"
        return why, f"add {option('cache')} warm, or leave {option('design')} out"


def _with_epochs(job: AttestedJob[Transcript], measured: Measurement) -> Measurement:
    """Return the measurement with its epochs, or with what a whole one would take by the share that was measured.

    Epochs of drawn data are the steps between checkpoints.
    """
    sizes = job.log.workload
    dataset = job.trial.job.dataset
    if not (dataset or sizes.epochs):
        return measured
    if sizes.epochs:
        return with_whole_epochs(job, measured)
    steps = job.trial.job.epoch_steps
    timeline = measured.timeline or Timeline()
    epochs = Epochs(steps=steps, scaled_share=sizes.steps / steps if steps else None)
    scaled = epochs.metrics(timeline.measured_s or 0.0, of_data=True)
    with_epochs = {**measured.metrics, **scaled}
    return measured.changed(epochs=epochs, metrics=with_epochs)


def with_whole_epochs(job: AttestedJob[Transcript], measured: Measurement) -> Measurement:
    """Return the measurement of a job, or of one of its ranks, with its whole epochs; unchanged if it has none."""
    sizes = job.log.workload
    dataset = job.trial.job.dataset
    if not sizes.epochs:
        return measured
    timeline = measured.timeline or Timeline()
    reported = job.log.events["steps"].fields
    checkpoints = job.log.said("steps", "checkpoints")
    directory = scratch_of(job.trial, job.node) or TEMPORARY
    written = None
    if checkpoints:
        written = {**checkpoints, "filesystem": mounted_at(job.node, directory)[0]}
    seconds = reported.get("epochs_s")
    steps = job.trial.job.epoch_steps
    epochs = checked_part(Epochs, {"steps": steps, "seconds": seconds, "checkpoints": written})
    if len(epochs.seconds) != sizes.epochs:
        message = f"the worker measured {len(epochs.seconds)} epochs, and {sizes.epochs} were asked for"
        raise MeasurementError(message, kind="protocol")
    measured_s = math.fsum(epochs.seconds)
    between_s = max(0.0, job.log.between("measuring", "measured") - measured_s)
    return measured.changed(
        epochs=epochs,
        throughput_per_s=sizes.batch * job.trial.job.devices.devices * sizes.steps / measured_s,
        timeline=replace(timeline, measured_s=measured_s, between_epochs_s=between_s),
        metrics={**measured.metrics, **epochs.metrics(measured_s, of_data=dataset is not None)},
    )


class _PreemptedError(Exception):
    """The instance was killed."""


def with_preemption(trial: Trial, instance: Instance, observer: Observer, undisturbed: Measurement) -> Measurement:
    """Return the measurement with the course of the preempted job, if the trial has one. Raises MeasurementError."""
    if trial.job.preemption is None:
        return undisturbed
    scratch = scratch_of(trial, instance.node)
    if instance.reopen is None or scratch is None:
        raise MeasurementError("this target cannot be opened again with its checkpoint", kind="preemption")
    mean_s = trial.job.preemption.mean_s
    spent = undisturbed.timeline or Timeline()
    job_s = _sum_s(spent.launch_s, spent.imports_s, spent.build_s)
    start_s = instance.node.opening.seconds + job_s
    measured_s = _sum_s(spent.measured_s, spent.between_epochs_s)
    longer = f"give {option('preempt')} a longer mean, or write checkpoints more often"
    if mean_s < start_s:
        message = f"a mean of {mean_s:g} s is shorter than opening and starting the job, {start_s:.1f} s"
        raise MeasurementError(message, kind="preemption", remedy=longer)
    instance.node.run(["find", scratch, "-mindepth", "1", "-delete"])
    step_s = measured_s / workload_sizes(trial).steps
    kill = instance.kill or (lambda: None)
    course = _Course(trial, instance.node, instance.reopen, kill, observer, step_s)
    moments = random.Random(trial.seed)  # noqa: S311 (no secret)
    weights = None
    while weights is None:
        if course.spent_s > _PATIENCE * (start_s + measured_s + mean_s):
            message = f"it has not ended after {course.spent_s:.0f} s"
            raise MeasurementError(message, kind="preemption", remedy=longer)
        weights = course.live(moments.expovariate(1 / mean_s))
    if weights != undisturbed.weights_sha256:
        message = (
            f"it ended with other weights ({weights}) than the undisturbed training ({undisturbed.weights_sha256})"
        )
        raise MeasurementError(message, kind="preemption")
    metrics = {**undisturbed.metrics, **course.metrics()}
    return undisturbed.changed(metrics=metrics)


def _sum_s(*spans_s: float | None) -> float:
    return math.fsum(filter(None, spans_s))


@dataclass
class _Course:
    """The course of a preempted job. Attesting is left out of its time, as it is of elapsed times."""

    trial: Trial
    node: Node
    reopen: Callable[[], Node]
    kill: Callable[[], None]
    observer: Observer
    step_s: float
    """The time of an undisturbed step, with its share of the checkpoint."""
    spent_s: float = 0.0
    openings: int = 0
    lost: float = 0.0
    done: float = 0.0
    """The steps that were taken when the instance was killed."""

    def live(self, life_s: float) -> object:
        """Open the instance and run the job until its end, or until the instance is killed. Return the last weights."""
        before_s = self.node.opening.seconds
        self.node = self.reopen()
        self.openings += 1
        opening_s = self.node.opening.seconds - before_s
        left_s = life_s - opening_s
        if left_s > 0:
            job = prepare(self.trial, self.node, self.observer, f"opening {self.openings}")
            events = job.log.events
            try:
                with _killed_after(job, self.kill, left_s):
                    job.follow()
                self._begin(job)
                self.spent_s += opening_s + events["measured"].arrived_s - job.log.begun_s
                return events["steps"].fields.get("weights_sha256", "")
            except _PreemptedError:
                if "measuring" in events:
                    ran_s = left_s - (events["measuring"].arrived_s - job.log.begun_s)
                    most = workload_sizes(self.trial).steps
                    ran_steps = max(0.0, ran_s) / self.step_s
                    self.done = min(float(most), self._begin(job) + ran_steps)
        self.spent_s += life_s
        return None

    def _begin(self, job: AttestedJob[Transcript]) -> int:
        """Return the steps that the checkpoint held from which a job has gone on; those after it were lost."""
        left = job.log.events["measuring"].fields.get("steps")
        sizes = workload_sizes(self.trial)
        begun = sizes.steps - left if isinstance(left, int) else 0
        # After more steps than are between two checkpoints there would be another one, however slow the machine is now.
        epoch_steps = sizes.steps / (sizes.epochs or 1)
        self.lost += min(epoch_steps, max(0.0, self.done - begun))
        return begun

    def metrics(self) -> dict[str, MetricValue]:
        """Return the makespan, the openings and the lost steps."""
        return {
            MAKESPAN: MetricValue(value=self.spent_s, unit="s", better="less"),
            OPENINGS: MetricValue(
                value=self.openings,
                unit="",
                better="less",
                compared="difference",
            ),
            LOST_STEPS: MetricValue(
                value=self.lost,
                unit="steps",
                better="less",
                compared="difference",
            ),
        }


@contextmanager
def _killed_after(job: AttestedJob[Transcript], kill_instance: Callable[[], None], seconds: float) -> Iterator[None]:
    """Launch the job, and kill it after so long, unless its training has ended. Raises _PreemptedError if killed."""
    killed = threading.Event()

    def kill() -> None:
        if "measured" not in job.log.events:
            killed.set()
            kill_instance()
            job.kill()

    timer = threading.Timer(seconds, kill)
    job.launch()
    timer.start()
    try:
        yield
    except MeasurementError as error:
        if killed.is_set():
            raise _PreemptedError from error
        raise
    finally:
        timer.cancel()
