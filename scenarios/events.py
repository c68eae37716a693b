"""The host's side of the worker's protocols: parses lines, and checks the order of events."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from suite.errors import MeasurementError
from suite.interfaces import Observer
from suite.job.profiles import Sizes
from suite.records.record import Timeline

ORDER = ("started", "imported", "environment", "built", "warmup", "measuring", "measured", "steps", "done")
SERVER_ORDER = ("started", "imported", "environment", "built", "done")
"""The events of a parameter server, which trains nothing."""
PROBE_PHASES = {"started": "preparing", "environment": "measuring", "metrics": "finishing", "done": "finishing"}
"""The events of a probe in their order, and the phase that begins with each."""
SHORTEST_SPAN_FOR_CLOCKS_S = 2.0
"""An event comes up to some 10 ms late through a guest's channel: over a shorter span that is more than 1 %."""
_QUOTED_CHARACTERS = 200


@dataclass(frozen=True)
class Event:
    """One line of the worker. ``t_s`` is on its clock, ``arrived_s`` on the host's."""

    name: str
    t_s: float
    arrived_s: float
    fields: Mapping[str, object]


@dataclass(kw_only=True)
class EventLog:
    """The events of a worker so far. A subclass knows the order of its protocol."""

    clock: Callable[[], float] = time.monotonic
    phase: str = "launching"
    events: dict[str, Event] = field(default_factory=dict)
    begun_s: float = 0.0

    def begin(self) -> None:
        """Start the clock, right before the launch."""
        self._enter("launching")
        self.begun_s = self.clock()

    def hear(self, line: str) -> None:
        """Take in one line. Raises MeasurementError on one that is out of order, or that reports a failure."""
        arrived_s = self.clock()
        try:
            fields = dict(json.loads(line))
        except (ValueError, TypeError):
            fields = {}
        name, t_s = fields.pop("event", None), fields.pop("t", None)
        if name == "error":
            remedy = fields.get("remedy")
            raise MeasurementError(
                str(fields.get("message")),
                kind=str(fields.get("kind")),
                remedy=None if remedy is None else str(remedy),
            )
        if not self._may_follow(name) or not isinstance(t_s, float | int) or not math.isfinite(t_s):
            raise MeasurementError(
                f"the worker said in the phase {self.phase!r}: {line[:_QUOTED_CHARACTERS]!r}",
                kind="protocol",
                remedy="something else writes to the standard output of the job; bench image verify checks the image",
            )
        event = Event(str(name), float(t_s), arrived_s, fields)
        self.events[event.name] = event
        self._take(event)

    def _may_follow(self, name: object) -> bool:
        raise NotImplementedError

    def _take(self, event: Event) -> None:
        """Note what an event says, and enter the phase that begins with it."""
        raise NotImplementedError

    def _enter(self, phase: str, detail: str = "") -> None:
        del detail
        self.phase = phase

    def between(self, first: str, last: str) -> float:
        """Seconds on the worker's clock. Raises MeasurementError when its clock went backwards."""
        seconds = self.events[last].t_s - self.events[first].t_s
        if seconds < 0:
            raise MeasurementError(f"the worker's clock went back by {-seconds} s from {first} to {last}", kind="clock")
        return seconds

    def clock_ratio(self, first: str, last: str) -> float | None:
        """Return a span on the worker's clock over the same on the host's, as the two events came in."""
        span_s, host_s = self.between(first, last), self.events[last].arrived_s - self.events[first].arrived_s
        return span_s / host_s if min(host_s, span_s) >= SHORTEST_SPAN_FOR_CLOCKS_S else None


@dataclass
class Transcript(EventLog):
    """The events of a training worker."""

    workload: Sizes
    observer: Observer
    order: Sequence[str] = ORDER

    def _may_follow(self, name: object) -> bool:
        """Every event comes once and in order; ``warmup`` any number of times, or not at all."""
        if name not in self.order:
            return False
        reached = max((self.order.index(known) for known in self.events), default=-1)
        place = self.order.index(str(name))
        skipped = set(self.order[reached + 1 : place]) - {"warmup"}
        return not skipped and (place > reached or (name == "warmup" and place == reached))

    def _take(self, event: Event) -> None:
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


@dataclass
class ProbeTranscript(EventLog):
    """The events of a probing worker."""

    observer: Observer

    def _may_follow(self, name: object) -> bool:
        return name == next((each for each in PROBE_PHASES if each not in self.events), "")

    def _take(self, event: Event) -> None:
        if (phase := PROBE_PHASES[event.name]) != self.phase:
            self._enter(phase)

    def _enter(self, phase: str, detail: str = "") -> None:
        self.phase = phase
        self.observer.phase(phase, detail)

    def said(self, event: str, key: str) -> Mapping[str, object]:
        """Return an object that an event carries; empty where it is none."""
        found = self.events[event].fields.get(key)
        return found if isinstance(found, Mapping) else {}
