"""A training job that takes turns: launched and warmed up, then a burst of steps for each line that it is given."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO

from pydantic import BaseModel

from scenarios.events import Event
from scenarios.failure import failure_of_exit
from scenarios.job import data_use_of, measurement, order, prepare, recordable
from suite.errors import MeasurementError
from suite.interfaces import Measurement, Node, Observer, Process, Turn
from suite.plan import Trial
from suite.records.record import Steps, Timeline
from suite.records.usage import Usage
from worker.protocol import BURST

_LAST_WORDS_S = 5.0


class _Used(BaseModel):
    user_s: float
    system_s: float
    minor_faults: int

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


class _Burst(BaseModel):
    """The worker's message about a burst."""

    span_s: float
    steps: Steps
    usage: _Used
    waited: _Used


class WorkerTurns:
    """The worker on one instance. See ``suite.interfaces.TurnTaker``."""

    def __init__(self, trial: Trial, node: Node, observer: Observer) -> None:
        self._job = prepare(trial, node, observer)
        self._orders: IO[bytes] | None = None
        self._bursts: list[_Burst] = []

    def begin(self) -> None:
        """See ``suite.interfaces.TurnTaker``."""
        self._orders = self._job.launch_ordered()
        self._hear(self._process, "measuring")

    def turn(self) -> Turn:
        """See ``suite.interfaces.TurnTaker``."""
        if self._orders:
            order(self._orders, BURST.encode())
        said = self._hear(self._process, "burst")
        with recordable(self._job.argv):
            burst = _Burst.model_validate(said.fields)
        self._bursts.append(burst)
        return Turn(
            span_s=burst.span_s,
            steps=len(burst.steps.elapsed_s),
            own_cpu_s=burst.usage.cpu_s,
            own_waiting_cpu_s=burst.waited.cpu_s,
            faults=burst.usage.minor_faults,
        )

    def end(self) -> Measurement:
        """See ``suite.interfaces.TurnTaker``. The measured span is that of the bursts."""
        self._close()
        job = self._job
        elapsed_s = job.follow()
        span_s = math.fsum(burst.span_s for burst in self._bursts)
        used = [burst.usage for burst in self._bursts]
        with recordable(job.argv):
            measured = measurement(job, elapsed_s, self._steps(), span_s)
            timeline = measured.timeline or Timeline()
            return replace(
                measured,
                timeline=timeline.model_copy(update={"measured_s": span_s}),
                usage=Usage(
                    cpu_s=math.fsum(one.cpu_s for one in used), minor_faults=sum(one.minor_faults for one in used)
                ),
                data_use=data_use_of(job),
            )

    def kill(self) -> None:
        """See ``suite.interfaces.TurnTaker``."""
        self._close()
        self._job.kill()

    @property
    def _process(self) -> Process:
        if self._job.process is None:
            raise MeasurementError("a turn before the job was launched", kind="plan")
        return self._job.process

    def _close(self) -> None:
        with suppress(BrokenPipeError):
            if self._orders:
                self._orders.close()

    def _hear(self, process: Process, awaited: str) -> Event:
        """Hear the worker up to this event. Raises MeasurementError where it does not come in time."""
        trial, log = self._job.trial, self._job.log
        with self._job.explained(process, "been ready" if awaited == "measuring" else "ended its burst"):
            for line in process.lines(trial.trial_timeout_s):
                if (event := log.hear(line)).name == awaited:
                    return event
            raise failure_of_exit(process.wait(_LAST_WORDS_S), log.phase, trial.job.envelope.memory_bytes)

    def _steps(self) -> Steps:
        """Return the steps of all bursts, one after the other."""
        bursts = [burst.steps.model_dump() for burst in self._bursts]
        phases = [burst.pop("phases") for burst in bursts]
        columns = {name: _joined(bursts, name) for name, values in (bursts[0] if bursts else {}).items() if values}
        named = {name: _joined(phases, name) for name in (phases[0] if phases else ())}
        losses = self._job.log.said("steps", "losses")
        return Steps.model_validate({**columns, "phases": named, "losses": losses})


def _joined(bursts: Sequence[Mapping[str, Sequence[float]]], name: str) -> list[float]:
    """Return a column of all bursts, one after the other."""
    return [each for burst in bursts for each in burst[name]]
