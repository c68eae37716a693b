"""The host's side of what an aggressor says: when its measured steps began and ended, and how far it was when."""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scenarios.events import Event, EventLog
from suite.errors import MeasurementError

ORDER = ("started", "environment", "measuring", "progress", "measured", "done")
LEAST_BEFORE_S = 2.0
LEAST_PROGRESS_BEFORE = 2
"""An aggressor works at least this long, and reports this often, before the victim starts: that is its own speed."""


@dataclass(frozen=True)
class Progress:
    """The work that was done when the line came in."""

    arrived_s: float
    steps: int
    work: float | None


@dataclass
class AggressorLog(EventLog):
    """The events of one aggressor. Calls ``ready`` as soon as the victim can be launched."""

    ready: Callable[[], None]
    progress: list[Progress] = field(default_factory=list)

    def _may_follow(self, name: object) -> bool:
        """``progress`` comes any number of times between ``measuring`` and ``measured``."""
        if name == "progress":
            return self.phase in ("measuring", "progress")
        return name == next((each for each in ORDER if each not in self.events and each != "progress"), "")

    def _take(self, event: Event) -> None:
        self.phase = event.name
        if event.name not in ("measuring", "progress", "measured"):
            return
        steps, work = event.fields.get("steps", 0), event.fields.get("work", 0.0)
        if not isinstance(steps, int) or not isinstance(work, float | int | None):
            raise MeasurementError(f"it told of {steps!r} steps and {work!r} of work", kind="protocol")
        self.progress.append(Progress(event.arrived_s, steps, None if work is None else float(work)))
        long_enough = event.arrived_s - self.progress[0].arrived_s >= LEAST_BEFORE_S
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
