"""The host's side of the worker's protocol: lines to events, and events to what they say together."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from suite.errors import MeasurementError
from suite.interfaces import Observer
from suite.job.profiles import Sizes
from suite.records.record import Timeline

ORDER = ("started", "imported", "environment", "built", "warmup", "measuring", "measured", "steps", "done")
SERVER_ORDER = ("started", "imported", "environment", "built", "done")
"""The events of a parameter server, which trains nothing."""
_QUOTED_CHARACTERS = 200


@dataclass(frozen=True)
class Event:
    """One line of the worker. ``t_s`` is on its clock, ``arrived_s`` on the host's."""

    name: str
    t_s: float
    arrived_s: float
    fields: Mapping[str, object]


def parse_event(line: str, arrived_s: float) -> Event:
    """Return the event of a line. Raises MeasurementError of kind ``protocol`` that quotes any other line."""
    try:
        fields = json.loads(line)
        name, t = fields.pop("event"), fields.pop("t")
        if name not in (*ORDER, "error") or not isinstance(t, float | int) or not math.isfinite(t):
            raise ValueError(line)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise MeasurementError(
            f"the worker's output is no event of it: {line[:_QUOTED_CHARACTERS]!r}",
            kind="protocol",
            remedy="something else writes to the standard output of the job; bench image verify checks the image",
        ) from None
    return Event(name, float(t), arrived_s, fields)


def error_of(fields: Mapping[str, object]) -> MeasurementError:
    """Return the failure that the worker reports by its event ``error``."""
    remedy = fields.get("remedy")
    kind, message = str(fields.get("kind")), str(fields.get("message"))
    return MeasurementError(message, kind=kind, remedy=None if remedy is None else str(remedy))


class Heard(Protocol):
    """What hears a worker, line by line, whatever its protocol is."""

    phase: str
    events: dict[str, Event]
    begun_s: float

    def hear(self, line: str) -> None:
        """Take in one line. Raises MeasurementError on one that is out of order, or that reports a failure."""


@dataclass
class Transcript:
    """What the worker has said so far, in the order that the protocol wants."""

    workload: Sizes
    observer: Observer
    clock: Callable[[], float] = time.monotonic
    phase: str = "launching"
    order: Sequence[str] = ORDER
    events: dict[str, Event] = field(default_factory=dict)
    begun_s: float = 0.0

    def begin(self) -> None:
        """Start the clock, right before the launch."""
        self._enter("launching")
        self.begun_s = self.clock()

    def hear(self, line: str) -> None:
        """Take in one line. Raises MeasurementError on one that does not belong here, or that says the job failed."""
        event = parse_event(line, self.clock())
        if event.name == "error":
            raise error_of(event.fields)
        reached = max((self.order.index(name) for name in self.events), default=-1)
        place = self.order.index(event.name) if event.name in self.order else -1
        again = event.name == "warmup" and place == reached
        skipped = [name for name in self.order[reached + 1 : place] if name != "warmup"]
        if (place <= reached and not again) or skipped:
            raise MeasurementError(
                f"the worker said {event.name!r} in the phase {self.phase!r}: {line[:_QUOTED_CHARACTERS]!r}",
                kind="protocol",
            )
        self.events[event.name] = event
        self._tell(event)

    def _tell(self, event: Event) -> None:
        """Tell the observer which phase begins.

        ``measuring`` is told at the end of the warm-up, which the worker follows with a garbage collection, so that the
        display is at rest before the clock starts; between the events ``measuring`` and ``measured`` nothing is told.
        """
        match event.name:
            case "started":
                self._enter("importing")
            case "imported":
                self._enter("building")
            case "built" | "warmup":
                done, of = event.fields.get("step", 0), self.workload.warmup_steps
                if done == of:
                    self._enter("measuring", f"{self.workload.steps} steps")
                else:
                    self._enter("warm-up", f"{done}/{of}")
            case "measured":
                self._enter("finishing")

    def _enter(self, phase: str, detail: str = "") -> None:
        self.phase = phase
        self.observer.phase(phase, detail)

    def between(self, first: str, last: str) -> float:
        """Seconds on the worker's clock. Raises MeasurementError when its clock went backwards."""
        seconds = self.events[last].t_s - self.events[first].t_s
        if seconds < 0:
            raise MeasurementError(f"the worker's clock went back by {-seconds} s from {first} to {last}", kind="clock")
        return seconds

    def arrived_between(self, first: str, last: str) -> float:
        """Seconds on the host's clock."""
        return self.events[last].arrived_s - self.events[first].arrived_s

    def timeline(self, elapsed_s: float) -> Timeline:
        """Return where ``elapsed_s`` went: begin and end on the host's clock, the rest on the worker's."""
        launch_s = self.events["started"].arrived_s - self.begun_s
        return Timeline(
            launch_s=launch_s,
            imports_s=self.between("started", "imported"),
            build_s=self.between("imported", "built"),
            warmup_s=self.between("built", "measuring"),
            measured_s=self.between("measuring", "measured"),
            teardown_s=self.between("measured", "done"),
            exit_s=max(0.0, elapsed_s - (self.events["done"].arrived_s - self.begun_s)),
        )
