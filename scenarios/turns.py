"""A process that takes turns: launched and warmed up, then a burst for each line that it is given."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from time import monotonic
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel

from scenarios.events import Event, Transcript
from scenarios.failure import failure_of_exit
from scenarios.job import AttestedJob, data_use_of, measurement, recordable
from suite.errors import MeasurementError
from suite.interfaces import Measurement
from suite.plan import planned
from suite.records.columns import counted_steps
from suite.records.fields import checked_part
from suite.records.record import Steps, Timeline, Turn
from suite.records.usage import Usage
from worker.protocol import BURST

_LAST_WORDS_S = 5.0
_Said = TypeVar("_Said", bound="BurstMessage")


class _Used(BaseModel):
    user_s: float
    system_s: float
    minor_faults: int

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


class BurstMessage(BaseModel):
    span_s: float
    usage: _Used
    waited: _Used


class StepsBurst(BurstMessage):
    """The message of a training, which tells its steps."""

    steps: Steps


class WorkerTurns(Generic[_Said]):
    """One worker, whose bursts are ``message``. See ``suite.interfaces.TurnTaker``."""

    message: ClassVar[type[BurstMessage]]

    def __init__(self, job: AttestedJob[Any]) -> None:
        self.job = job
        self.bursts: list[_Said] = []
        self.last_order_s = math.nan
        """The moment, on the host's clock, at which its input was closed."""
        self.left_s = float(job.trial.trial_timeout_s)
        """What is left of the trial's limit. The turns of others do not count."""

    @property
    def finished(self) -> bool:
        return False

    def ready(self) -> None:
        """Return when it is ready for its first turn. Raises MeasurementError where it does not come so far."""
        self._hear("measuring")

    def begin(self) -> None:
        self.job.launch_ordered()
        self.ready()

    def turn(self) -> Turn:
        begun_s = self.job.log.clock()
        self.job.order(BURST.encode())
        said = self._hear("burst", f"ended burst {len(self.bursts) + 1}")
        computed = self.job.log.events.pop("computed", None)
        if computed is None:
            raise MeasurementError("the worker did not say when its burst had ended", kind="protocol")
        with recordable(self.job.argv):
            burst: _Said = self.message.model_validate(said.fields)  # type: ignore[assignment]  # a subclass says which
            turn = Turn(
                span_s=burst.span_s,
                heard_s=computed.arrived_s - begun_s,
                steps=self.steps_of(burst),
                # Of a command what has ended and nobody has waited for yet may be missing for a turn.
                own_cpu_s=max(0.0, burst.usage.cpu_s),
                own_waiting_cpu_s=max(0.0, burst.waited.cpu_s),
                faults=max(0, burst.usage.minor_faults),
            )
        self.bursts.append(burst)
        return turn

    def end(self) -> Measurement:
        """See ``suite.interfaces.TurnTaker``. The measured span is that of the bursts."""
        self.last_order_s = self.job.log.clock()
        self.job.end_orders()
        elapsed_s = self.job.follow(max(self.left_s, _LAST_WORDS_S))
        span_s = math.fsum(burst.span_s for burst in self.bursts)
        with recordable(self.job.argv):
            measured = self.measurement(elapsed_s, span_s)
            timeline = replace(measured.timeline or Timeline(), measured_s=span_s)
            return measured.changed(timeline=timeline, usage=self.usage())

    def kill(self) -> None:
        self.job.kill()

    def usage(self) -> Usage | None:
        """Return what was used in the turns."""
        used = [burst.usage for burst in self.bursts]
        return Usage(
            cpu_s=math.fsum(usage.cpu_s for usage in used),
            minor_faults=sum(usage.minor_faults for usage in used),
        )

    def steps_of(self, burst: _Said) -> int:
        """Return the steps of a burst; 0 of a slice of time."""
        raise NotImplementedError

    def measurement(self, elapsed_s: float, span_s: float) -> Measurement:
        """Return what was measured in the bursts, which took ``span_s`` together. Raises MeasurementError."""
        raise NotImplementedError

    def _hear(self, awaited: str, done: str = "been ready") -> Event:
        """Hear the worker up to this event. Raises MeasurementError where it does not come in time."""
        log = self.job.log
        process = planned(self.job.process, "a launch before its turns")
        begun_s = monotonic()
        with self.job.explained(process, done):
            for line in process.lines(max(self.left_s, 0.0)):
                event: Event = log.hear(line)
                if event.name == awaited:
                    self.left_s -= monotonic() - begun_s
                    return event
            status = process.wait(_LAST_WORDS_S)
            memory_bytes = self.job.trial.job.envelope.memory_bytes
            raise failure_of_exit(status, log.phase, memory_bytes, self.job.node)


class TrainingTurns(WorkerTurns[StepsBurst]):
    """A training, of which the steps of all bursts are the measured ones."""

    message = StepsBurst
    job: AttestedJob[Transcript]

    def steps_of(self, burst: StepsBurst) -> int:
        return counted_steps(burst.steps)

    def measurement(self, elapsed_s: float, span_s: float) -> Measurement:
        """Return the measurement of the steps of all bursts, one after the other."""

        def joined(parts: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
            columns: dict[str, list[float]] = {}
            for name in [name for name, column in parts[0].items() if column] if parts else []:
                columns[name] = [value for part in parts for value in part[name]]
            return columns

        bursts = [asdict(burst.steps) for burst in self.bursts]
        phases = joined([burst.pop("phases") for burst in bursts])
        losses = self.job.log.said("steps", "losses")
        fields = {**joined(bursts), "phases": phases, "losses": losses}
        steps = checked_part(Steps, fields)
        measured = measurement(self.job, elapsed_s, steps, span_s)
        return measured.changed(data_use=data_use_of(self.job))
