"""The host's side of what a probing worker says."""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scenarios.events import Event, error_of
from suite.errors import MeasurementError
from suite.interfaces import Observer

# Each event, in the order that the protocol wants, and the phase that begins with it.
PHASES = {"started": "preparing", "environment": "measuring", "metrics": "finishing", "done": "finishing"}
_QUOTED_CHARACTERS = 200


@dataclass
class ProbeTranscript:
    """What the worker has said so far."""

    observer: Observer
    clock: Callable[[], float] = time.monotonic
    phase: str = "launching"
    events: dict[str, Event] = field(default_factory=dict)
    begun_s: float = 0.0

    def begin(self) -> None:
        """Start the clock, right before the launch."""
        self._enter("launching")
        self.begun_s = self.clock()

    def hear(self, line: str) -> None:
        """Take in one line. Raises MeasurementError on one that does not belong here, or that says the probe failed."""
        arrived_s = self.clock()
        fields = fields_of(line)
        name, t_s = fields.pop("event", None), fields.pop("t", None)
        if name == "error":
            raise error_of(fields)
        expected = next((each for each in PHASES if each not in self.events), "")
        if not expected or name != expected or not isinstance(t_s, float | int) or not math.isfinite(t_s):
            raise MeasurementError(
                f"the worker said in the phase {self.phase!r}: {line[:_QUOTED_CHARACTERS]!r}",
                kind="protocol",
                remedy="something else writes to the standard output of the job; bench image verify checks the image",
            )
        self.events[expected] = Event(expected, float(t_s), arrived_s, fields)
        if PHASES[expected] != self.phase:
            self._enter(PHASES[expected])

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.observer.phase(phase)

    def between(self, first: str, last: str) -> tuple[float, float]:
        """Seconds on the worker's clock, and on the host's."""
        one, other = self.events[first], self.events[last]
        return other.t_s - one.t_s, other.arrived_s - one.arrived_s

    def said(self, event: str, key: str) -> Mapping[str, object]:
        """Return an object that an event carries; empty where it is none."""
        found = self.events[event].fields.get(key)
        return found if isinstance(found, Mapping) else {}


def fields_of(line: str) -> dict[str, object]:
    """Return the object of a line; empty where it is none."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
