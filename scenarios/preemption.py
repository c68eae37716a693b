"""Trains a job once more while its instance is killed at random moments and opened again.

The moments follow from the trial's seed, and are those of all targets of its block. The training goes on from the
checkpoint on the scratch volume, and must end with the weights of the undisturbed one before it.
"""

import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scenarios.events import Transcript
from scenarios.job import AttestedJob, prepare, scratch_of, workload_sizes
from suite.errors import MeasurementError, option
from suite.interfaces import Instance, Measurement, Node, Observer
from suite.plan import Trial
from suite.records.record import LOST_STEPS, MAKESPAN, OPENINGS, MetricValue, Timeline

CHECKPOINT_BYTES = 4 << 30
"""The room for two checkpoints of any workload: a new one is whole before it takes the place of the one before."""
_PATIENCE = 50
"""The most times that a preempted job may take of an undisturbed one and the mean between preemptions."""


class _PreemptedError(Exception):
    """The instance was killed."""


def with_preemption(trial: Trial, instance: Instance, observer: Observer, undisturbed: Measurement) -> Measurement:
    """Return the measurement with the course of the preempted job, if the trial has one. Raises MeasurementError."""
    if trial.job.preemption is None:
        return undisturbed
    scratch = scratch_of(trial, instance.node)
    if instance.reopen is None or scratch is None:
        raise MeasurementError("this target cannot be opened again with its checkpoint", kind="preemption")
    mean_s, spent = trial.job.preemption.mean_s, undisturbed.timeline or Timeline()
    start_s = instance.node.opening.seconds + _sum_s(spent.launch_s, spent.imports_s, spent.build_s)
    measured_s = _sum_s(spent.measured_s, spent.between_epochs_s)
    longer = f"give {option('preempt')} a longer mean, or write checkpoints more often"
    if mean_s < start_s:
        told = f"a mean of {mean_s:g} s is shorter than opening and starting the job, {start_s:.1f} s"
        raise MeasurementError(told, kind="preemption", remedy=longer)
    instance.node.run(["find", scratch, "-mindepth", "1", "-delete"])
    step_s = measured_s / workload_sizes(trial).steps
    course = _Course(trial, instance.node, instance.reopen, instance.kill or (lambda: None), observer, step_s)
    moments, weights = random.Random(trial.seed), None  # noqa: S311 (no secret)
    while weights is None:
        if course.spent_s > _PATIENCE * (start_s + measured_s + mean_s):
            told = f"it has not ended after {course.spent_s:.0f} s"
            raise MeasurementError(told, kind="preemption", remedy=longer)
        weights = course.live(moments.expovariate(1 / mean_s))
    if weights != undisturbed.weights_sha256:
        told = f"it ended with other weights ({weights}) than the undisturbed training ({undisturbed.weights_sha256})"
        raise MeasurementError(told, kind="preemption")
    return undisturbed.changed(metrics={**undisturbed.metrics, **course.metrics()})


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
                    self.done = min(float(most), self._begin(job) + max(0.0, ran_s) / self.step_s)
        self.spent_s += life_s
        return None

    def _begin(self, job: AttestedJob[Transcript]) -> int:
        """Return the steps that the checkpoint held from which a job has gone on; those after it were lost."""
        left = job.log.events["measuring"].fields.get("steps")
        sizes = workload_sizes(self.trial)
        begun = sizes.steps - left if isinstance(left, int) else 0
        # After more steps than are between two checkpoints there would be another one, however slow the machine is now.
        self.lost += min(sizes.steps / (sizes.epochs or 1), max(0.0, self.done - begun))
        return begun

    def metrics(self) -> dict[str, MetricValue]:
        """Return the makespan, the openings and, if there are any, the lost steps."""
        values = {MAKESPAN: (self.spent_s, "s"), OPENINGS: (self.openings, ""), LOST_STEPS: (self.lost, "steps")}
        return {
            name: MetricValue(value=value, unit=unit, better="less") for name, (value, unit) in values.items() if value
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
