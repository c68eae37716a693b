"""The host's side of the worker's protocols: parses lines, and checks the order of events."""

import bisect
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suite.errors import MeasurementError
from suite.interfaces import Observer
from suite.job.profiles import Sizes
from suite.plan import Trial
from suite.records.fields import checked_part
from suite.records.record import Timeline, TrialRecord
from suite.records.usage import Usage
from suite.untrusted.parse import parse_object

_BEFORE = ("started", "imported", "environment", "built", "warmup", "measuring")
_AFTER = ("measured", "steps")
ORDER = (*_BEFORE, "resize", *_AFTER, "model", "generating", "generated", "done")
TURNS_ORDER = (*_BEFORE, "computed", "burst", *_AFTER, "done")
"""The events of a job that takes turns: ``measuring`` says that it is ready for the first. In every turn ``computed``
comes after its last step, and ``burst`` when the job is at rest."""
SERVER_ORDER = ("started", "imported", "environment", "built", "done")
"""The events of a parameter server, which trains nothing."""
PROBE_PHASES = {
    "started": "preparing",
    "environment": "measuring",
    "metrics": "finishing",
    "done": "finishing",
}
"""The events of a probe in their order, and the phase that begins with each."""
TRAINING_PHASES = {
    "started": "importing",
    "imported": "building",
    "measured": "finishing",
    "generating": "generating",
}
AGGRESSOR_PHASES = {name: name for name in ("started", "environment", "measuring", "progress", "measured", "done")}
TURNS = "taking turns"
PROBE_TURNS_PHASES = {
    "started": "preparing",
    "environment": "warm-up",
    **dict.fromkeys(("measuring", "computed", "burst", "metrics", "done"), TURNS),
}
REPEATED = {"warmup", "resize", "computed", "burst", "model", "generating", "generated", "progress"}
"""The events that come any number of times in their places, or not at all."""
LEAST_BEFORE_S = 2.0
LEAST_PROGRESS_BEFORE = 2
"""An aggressor works at least this long, and reports this often, before the victim starts: that is its own speed."""
_QUOTED_CHARACTERS = 200


@dataclass(frozen=True)
class Event:
    """One line of the worker. ``t_s`` is on its clock, ``arrived_s`` on the host's."""

    name: str
    t_s: float
    arrived_s: float
    fields: Mapping[str, object]


class Silent:
    """An observer that tells nobody."""

    def trial_started(self, trial: Trial, number: int, of: int) -> None: ...
    def phase(self, name: str, detail: str = "") -> None: ...
    def trial_finished(self, record: TrialRecord) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(kw_only=True)
class EventLog:
    """The events of a worker so far, each of which comes once, and in ``order``; a subclass knows more of them."""

    phases: Mapping[str, str]
    """The phase that begins with an event."""
    order: Sequence[str] = ()
    """Empty for that of the ``phases``."""
    heard: Callable[[str], object] = lambda _: None
    """Called with the name of each event that is told."""
    observer: Observer = field(default_factory=Silent)
    clock: Callable[[], float] = time.monotonic
    phase: str = "launching"
    events: dict[str, Event] = field(default_factory=dict)
    begun_s: float = 0.0

    def __post_init__(self) -> None:
        self.order = self.order or tuple(self.phases)

    def begin(self) -> None:
        """Start the clock, right before the launch."""
        self._enter("launching")
        self.begun_s = self.clock()

    def hear(self, line: str) -> Event:
        """Take in a line, and return its event. Raises MeasurementError for one out of order, or of a failure."""
        arrived_s = self.clock()
        try:
            fields = parse_object(line)
        except ValueError:
            fields = {}
        name = fields.pop("event", None)
        t_s = fields.pop("t", None)
        if name == "error":
            remedy = fields.get("remedy")
            why = str(fields.get("message"))
            kind = str(fields.get("kind"))
            raise MeasurementError(why, kind=kind, remedy=None if remedy is None else str(remedy))
        if not self._may_follow(name) or not isinstance(t_s, float | int):
            raise MeasurementError(
                f"the worker said in the phase {self.phase!r}: {line[:_QUOTED_CHARACTERS]!r}",
                kind="protocol",
                remedy="something else writes to the standard output of the job; bench image verify checks the image",
            )
        event = Event(str(name), float(t_s), arrived_s, fields)
        self.events[event.name] = event
        if self.takes_turns and "measuring" in self.events:  # from then on another job may compute: nothing is told
            self.phase = TURNS
        else:
            self._take(event)
        return event

    @property
    def takes_turns(self) -> bool:
        return "burst" in self.order

    def _may_follow(self, name: object) -> bool:
        if name not in self.order:
            return False
        positions = (self.order.index(name_of_event) for name_of_event in self.events)
        reached = max(positions, default=-1)
        position = self.order.index(str(name))
        skipped = set(self.order[reached + 1 : position]) - REPEATED
        repeats = position <= reached and set(self.order[position : reached + 1]) <= REPEATED
        return not skipped and (position > reached or repeats)

    def _take(self, event: Event) -> None:
        phase = self.phases.get(event.name, self.phase)
        if phase != self.phase:
            self._enter(phase)
        self.heard(event.name)

    def _enter(self, phase: str, detail: str = "") -> None:
        self.phase = phase
        self.observer.phase(phase, detail)

    def said(self, event: str, key: str) -> Mapping[str, object]:
        """Return an object that an event carries; empty where it is none."""
        value = None
        if event in self.events:
            value = self.events[event].fields.get(key)
        if isinstance(value, Mapping):
            return value
        return {}

    def usage(self) -> Usage | None:
        """Return what the whole job used, as the worker counted it at its end."""
        reported = self.said("done", "usage")
        if reported:
            return checked_part(Usage, reported)
        return None

    def ends(self, elapsed_s: float) -> dict[str, float]:
        """Return the two ends of ``elapsed_s``, on the host's clock, as fields of a timeline."""
        launch_s, ended_s = (self.events[name].arrived_s - self.begun_s for name in ("started", "done"))
        return {"launch_s": launch_s, "exit_s": max(0.0, elapsed_s - ended_s)}

    def between(self, first: str, last: str) -> float:
        """Seconds on the worker's clock. Raises MeasurementError when its clock went backwards."""
        seconds = self.events[last].t_s - self.events[first].t_s
        if seconds < 0:
            raise MeasurementError(f"the worker's clock went back by {-seconds} s from {first} to {last}", kind="clock")
        return seconds

    def clocks(self, first: str, last: str) -> dict[str, Any]:
        """Return a span on the host's clock, and the worker's over it, as fields of a record.

        The host's is from line to line as they arrived, so that it is off by how late these were read: short spans tell
        less of a clock, which whoever judges it has to allow for.
        """
        span_s = self.between(first, last)
        host_s = self.events[last].arrived_s - self.events[first].arrived_s
        return {"clock_span_s": host_s, "clock_ratio": span_s / host_s if span_s and host_s > 0 else None}


@dataclass(kw_only=True)
class Transcript(EventLog):
    """The events of a training worker."""

    phases: Mapping[str, str] = field(default_factory=lambda: TRAINING_PHASES)
    order: Sequence[str] = ORDER
    workload: Sizes
    fixes_steps: bool = False
    """Whether the worker chooses how many steps it measures; ``workload`` has that number from ``measuring`` on."""
    fixed_sizes: Sizes | None = None
    """The workload once the worker has chosen its steps."""
    models: list[tuple[Mapping[str, object], bytes]] = field(default_factory=list)
    """The facts and the file of each model that was said."""

    def _take(self, event: Event) -> None:
        """Tell the observer which phase begins.

        ``measuring`` is told at the end of the warm-up, which the worker follows with a garbage collection, so that the
        display is at rest before the clock starts; between the events ``measuring`` and ``measured`` nothing is told.
        """
        super()._take(event)
        if event.name in ("built", "warmup"):
            done = event.fields.get("step", 0)
            of = self.workload.warmup_steps
            if done != of:
                self._enter("warm-up", f"{done}/{of}")
            elif not (self.takes_turns and of):
                self._enter("measuring", self._steps_in_words)
        elif event.name == "measuring" and self.fixes_steps:
            self.workload = self.workload.fixed(event.fields.get("steps"))
            self.fixed_sizes = self.workload
        elif event.name == "model":
            facts = dict(event.fields)
            text = facts.pop("text", None)
            try:
                file = b64decode(text if isinstance(text, str) else "?", validate=True)
            except ValueError as error:
                raise MeasurementError("the worker said a model that is not base64", kind="protocol") from error
            self.models.append((facts, file))

    @property
    def _steps_in_words(self) -> str:
        if self.fixes_steps:
            return ""
        return f"{self.workload.steps} steps"

    def timeline(self, elapsed_s: float) -> Timeline:
        """Return where ``elapsed_s`` went: begin and end on the host's clock, the rest on the worker's."""
        if "generated" in self.events:
            generating_s = self.between("generating", "generated")
        else:
            generating_s = None
        return Timeline(
            **self.ends(elapsed_s),
            imports_s=self.between("started", "imported"),
            build_s=self.between("imported", "built"),
            warmup_s=self.between("built", "measuring"),
            measured_s=self.between("measuring", "measured"),
            generating_s=generating_s,
            teardown_s=self.between("measured", "done") - (generating_s or 0.0),
        )


@dataclass(frozen=True)
class Progress:
    """The work that was done when the line came in."""

    arrived_s: float
    steps: int
    work: float | None


@dataclass(kw_only=True)
class AggressorLog(EventLog):
    """The events of one aggressor, whose phases are its events. Calls ``ready`` once the victim can be launched."""

    phases: Mapping[str, str] = field(default_factory=lambda: AGGRESSOR_PHASES)
    ready: Callable[[], None]
    progress: list[Progress] = field(default_factory=list)

    def _take(self, event: Event) -> None:
        super()._take(event)
        if event.name not in ("measuring", "progress", "measured"):
            return
        steps = event.fields.get("steps", 0)
        work = event.fields.get("work", 0.0)
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
    index = bisect.bisect_left([report.arrived_s for report in progress], moment_s)
    if not 0 < index < len(progress):
        if index < len(progress) and progress[index].arrived_s == moment_s:
            return progress[index].work
        return None
    before = progress[index - 1]
    after = progress[index]
    if before.work is None or after.work is None:
        return None
    share = (moment_s - before.arrived_s) / (after.arrived_s - before.arrived_s)
    return before.work + share * (after.work - before.work)
