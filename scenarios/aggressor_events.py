"""The host's side of what an aggressor says: when its measured steps began and ended, and how far it was when."""

import bisect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scenarios.events import Event, error_of
from scenarios.probe_events import fields_of
from suite.errors import MeasurementError

ORDER = ("started", "environment", "measuring", "progress", "measured", "done")
LEAST_BEFORE_S = 2.0
LEAST_PROGRESS_BEFORE = 2
"""An aggressor works at least this long, and reports this often, before the victim starts: that is its own speed."""
_QUOTED_CHARACTERS = 200


@dataclass(frozen=True)
class Progress:
    """How much was done when the line came in."""

    arrived_s: float
    steps: int
    work: float | None


@dataclass
class AggressorLog:
    """What one aggressor has said so far. Calls ``ready`` as soon as the victim can be launched."""

    ready: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    phase: str = "launching"
    events: dict[str, Event] = field(default_factory=dict)
    progress: list[Progress] = field(default_factory=list)
    begun_s: float = 0.0

    def begin(self) -> None:
        """Start the clock, right before the launch."""
        self.begun_s = self.clock()

    def hear(self, line: str) -> None:
        """Take in one line. Raises MeasurementError on one that does not belong here, or that says that it failed."""
        arrived_s, fields = self.clock(), fields_of(line)
        name, t_s = fields.pop("event", None), fields.pop("t", None)
        if name == "error":
            raise error_of(fields)
        if not self._may_follow(name) or not isinstance(t_s, float | int):
            raise MeasurementError(
                f"it said in the phase {self.phase!r}: {line[:_QUOTED_CHARACTERS]!r}", kind="protocol"
            )
        self.phase = str(name)
        self.events[self.phase] = Event(self.phase, float(t_s), arrived_s, fields)
        if name in ("measuring", "progress", "measured"):
            self._note(arrived_s, fields)

    def _may_follow(self, name: object) -> bool:
        """``progress`` comes any number of times between ``measuring`` and ``measured``."""
        if name == "progress":
            return self.phase in ("measuring", "progress")
        expected = next((each for each in ORDER if each not in self.events and each != "progress"), None)
        return name == expected

    def _note(self, arrived_s: float, fields: dict[str, object]) -> None:
        steps, work = fields.get("steps", 0), fields.get("work", 0.0)
        if not isinstance(steps, int) or not isinstance(work, float | int | None):
            raise MeasurementError(f"it told of {steps!r} steps and {work!r} of work", kind="protocol")
        self.progress.append(Progress(arrived_s, steps, None if work is None else float(work)))
        long_enough = arrived_s - self.progress[0].arrived_s >= LEAST_BEFORE_S
        if self.phase == "progress" and long_enough and len(self.progress) > LEAST_PROGRESS_BEFORE:
            self.ready()

    def per_s(self, begin_s: float, end_s: float) -> float | None:
        """Return the work per second between two moments of the host's clock; None where it is not known."""
        done = [work_at(self.progress, moment_s) for moment_s in (begin_s, end_s)]
        if done[0] is None or done[1] is None or end_s <= begin_s:
            return None
        return (done[1] - done[0]) / (end_s - begin_s)


def work_at(progress: Sequence[Progress], moment_s: float) -> float | None:
    """Return the work done by then, interpolated between two lines; None outside of them, or where it is unknown."""
    place = bisect.bisect_left([each.arrived_s for each in progress], moment_s)
    if not 0 < place < len(progress):
        return progress[place].work if place < len(progress) and progress[place].arrived_s == moment_s else None
    before, after = progress[place - 1], progress[place]
    if before.work is None or after.work is None:
        return None
    share = (moment_s - before.arrived_s) / (after.arrived_s - before.arrived_s)
    return before.work + share * (after.work - before.work)
