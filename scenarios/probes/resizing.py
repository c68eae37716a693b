"""CPUs that change while a job trains: the worker says at which step, and the host resizes its open instance.

A change takes as long as the engine does (see the probe ``resize``): the job does not wait for it, as it would not for
a controller.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from scenarios.events import Transcript
from scenarios.job import AttestedJob
from suite.errors import BenchError, MeasurementError, RequestError, option
from suite.interfaces import Instance, Resize, Shares
from suite.job.envelope import Envelope, parse_cpu_changes
from suite.plan import Trial
from suite.records.record import MetricValue
from suite.registries import ENGINES
from suite.request.request import RunRequest
from suite.targets import BASELINE

ALLOCATED = "allocated-cpu-time"
"""The metric of the CPU time that the instance was given during the measured steps, used or not."""
EVENT = "resize"


def check_resizable(what: str, request: RunRequest, targets: Sequence[str], envelope: Envelope) -> None:
    """Raise RequestError for an option that resizes instances, with what cannot be resized."""
    engine = request.targets.engine
    able = "runc, podman and docker"
    wrong = [
        (request.joining.inventory, option("inventory"), "leave it out: instances of this machine are resized"),
        (
            engine and not ENGINES.get(engine).update_argv("", "0", 1, None),
            f"{option('engine')} {engine}",
            f"choose another {option('engine')}: those of {able} can be resized while they are open",
        ),
        (len(envelope.cpus) < 2, "one CPU, of which none can be taken away", f"give {option('cpus')} 2 or more"),
        (os.geteuid() and BASELINE in targets, f"{option('target')} {BASELINE} without root", "run bench as root"),
    ]
    for holds, words, remedy in wrong:
        if holds:
            raise RequestError(f"{what} does not go with {words}", remedy=remedy)


@dataclass
class Resizer:
    """Resizes the instance of one job whenever the worker says that a step begins at which its CPUs change."""

    job: AttestedJob[Transcript]
    resize: Resize
    changes: dict[int, int]
    """The number of CPUs from each of these measured steps on."""
    resized: list[tuple[float, int]] = field(default_factory=list)
    """When each change had been made, on the host's clock, and the number of CPUs since then."""

    @classmethod
    def of(cls, trial: Trial, instance: Instance, job: AttestedJob[Transcript]) -> "Resizer | None":
        """Return what resizes the instance of a job, which it then hears; None for a job that keeps its CPUs."""
        if trial.job.resize_at is None:
            return None
        if instance.resize is None:
            raise MeasurementError(
                f"{trial.target} cannot be resized while it is open",
                kind="resize",
                remedy="use the engine runc, or podman or docker as root",
            )
        resizer = cls(job, instance.resize, parse_cpu_changes(trial.job.resize_at))
        job.log.heard = resizer.heard
        return resizer

    def heard(self, event: str) -> None:
        """Resize the instance at its event. Raises MeasurementError if it cannot be."""
        if event != EVENT:
            return
        step = self.job.log.events[EVENT].fields.get("step")
        count = self.changes.get(step) if isinstance(step, int) else None
        if count is None:
            raise MeasurementError(f"the worker said a change of CPUs at step {step}", kind="protocol")
        try:
            self.resize(Shares(self.job.node.cpus[:count]))
        except BenchError as error:
            message = f"the instance was not resized at step {step}: {error.message}"
            raise MeasurementError(message, kind="resize", remedy=error.remedy) from error
        self.resized.append((time.monotonic(), count))

    def metrics(self) -> dict[str, MetricValue]:
        """Return the CPU time that the instance was given from the first measured step to the last."""
        events = self.job.log.events
        since_s = events["measuring"].arrived_s
        end_s = events["measured"].arrived_s
        count = len(self.job.node.cpus)
        allocated_s = 0.0
        for moment_s, next_count in self.resized:
            until_s = min(moment_s, end_s)
            allocated_s += count * (until_s - since_s)
            since_s = until_s
            count = next_count
        allocated_s += count * (end_s - since_s)
        return {ALLOCATED: MetricValue(value=allocated_s, unit="s", better="less")}
