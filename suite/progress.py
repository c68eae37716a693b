"""Show a run while it works. Nothing is written while a job computes: between ``measuring`` and the phase after it."""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from suite.job.ablations import label_of
from suite.plan import Trial
from suite.records.record import TrialRecord
from suite.units import format_duration, number

SHOWN = 3
"""The most metrics of a trial in its line: a service has a dozen, and a line is to fit a terminal."""


class _Followed:
    """The trials that run now, by how lines about them begin."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._heads: dict[str, str] = {}

    def trial_started(self, trial: Trial, number: int, of: int) -> None:
        self.clock.started(trial, number, of)
        self._heads[trial.trial_id] = f"{_place(trial, number, of)}, {name(trial)}"

    def _ended(self, record: TrialRecord) -> str:
        self.clock.finished(record.trial_id)
        return f"{self._heads.pop(record.trial_id)}: {summary(record)}"


class Lines(_Followed):
    """Prints one plain line per trial, for logs, pipes and CI. See ``suite.interfaces.Observer``."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def phase(self, name: str, detail: str = "") -> None:
        """Say nothing: a line of a log is worth a result."""

    def trial_finished(self, record: TrialRecord) -> None:
        self.note(f"{self._ended(record)}{self.clock.left()}")

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Display(_Followed):
    """Shows one live line on a terminal, redrawn on each call and never by itself."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._head = ""
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def trial_started(self, trial: Trial, number: int, of: int) -> None:
        super().trial_started(trial, number, of)
        in_turns = f"{_place(trial, number, of)}, {trial.job.model} in turns"  # all targets at once
        self._head = in_turns if trial.job.turns else self._heads[trial.trial_id]

    def phase(self, name: str, detail: str = "") -> None:
        text = f"{self._head}: {name} {detail}".rstrip() + self.clock.left()
        text_shown = Text(text, "cyan", no_wrap=True, overflow="ellipsis")
        self._live.update(self._shown(text_shown), refresh=True)

    def trial_finished(self, record: TrialRecord) -> None:
        style = "green" if record.outcome.status == "ok" else "red"
        self._live.update(self._shown(Text("")), refresh=True)
        self._console.print(Text(self._ended(record), style))

    def _shown(self, line: Text) -> RenderableType:
        return line

    def note(self, text: str) -> None:
        self._console.print(Text(text, "dim"))

    def close(self) -> None:
        self._live.stop()


class Allowance:
    """Keeps the time that is spent on saying how far it is to a small share of the whole."""

    GRACE_S = 3.0
    """The first time imports what it needs."""
    SHARE = 0.05

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._spent_s = 0.0

    def left(self) -> bool:
        running_s = time.monotonic() - self._begun_s
        return self._spent_s <= self.GRACE_S + self.SHARE * running_s

    @contextmanager
    def spending(self) -> Iterator[None]:
        begin_s = time.monotonic()
        yield
        self._spent_s += time.monotonic() - begin_s


class Clock:
    """Estimates the time to go of the whole from how long each kind of trial has taken, or is expected to take.

    Blocks are balanced: of what is left, every kind has the same share. Trials that are open at once share their time.
    """

    def __init__(self) -> None:
        self._expected_s: dict[str, float] = {}
        self._taken_s: defaultdict[str, list[float]] = defaultdict(list)
        self._open: dict[str, tuple[str, float]] = {}
        self._together = 0
        self._remaining = 0
        self.deadline_s: float | None = None
        """The time, on the monotonic clock, after which no block begins; None for any."""

    def expect(self, trial: Trial, seconds: float) -> None:
        """Take it that such a trial lasts so long, until one has been measured."""
        self._expected_s[name(trial)] = seconds

    def started(self, trial: Trial, number: int, of: int) -> None:
        if not self._open:
            self._remaining = of - number + 1
            self._together = 0
        self._open[trial.trial_id] = name(trial), time.monotonic()
        self._together += 1

    def finished(self, trial_id: str) -> None:
        kind, begin_s = self._open.pop(trial_id)
        taken_s = time.monotonic() - begin_s
        self._taken_s[kind].append(taken_s / self._together)
        self._remaining -= 1

    def seconds_of(self, trials: int) -> float | None:
        """Return the seconds that so many trials take; None as long as nothing is known."""
        typical_s = {kind: statistics.median(durations_s) for kind, durations_s in self._taken_s.items()}
        typical = self._expected_s | typical_s
        if typical:
            return trials * statistics.fmean(typical.values())
        return None

    def left(self) -> str:
        """Return ``, about 3 min to go``; nothing at the end, and as long as nothing is known."""
        seconds = self.seconds_of(self._remaining)
        if seconds and self._open:  # as much of them as has passed, but no more than they should take
            begun = (begin_s for _, begin_s in self._open.values())
            passed_s = time.monotonic() - min(begun)
            seconds -= min(passed_s, self.seconds_of(len(self._open)) or 0.0)
        if seconds and self.deadline_s is not None:  # a block that has begun is finished: one trial of each kind
            block_s = self.seconds_of(len(self._expected_s | self._taken_s)) or 0.0
            left_s = max(0.0, self.deadline_s - time.monotonic())
            seconds = min(seconds, left_s + block_s)
        if seconds:
            return f", about {format_duration(seconds)} to go"
        return ""


def _place(trial: Trial, number: int, of: int) -> str:
    """Return ``[3/12] block 1``."""
    return f"[{number}/{of}] {'warm-up block' if trial.warm_up else 'block'} {trial.block}"


def name(trial: Trial) -> str:
    """Return what runs where: ``resnet50 on vm, beside disk``."""
    switched = ""
    if trial.ablation:
        switched = f", {label_of(trial.ablation)}"
    beside = "" if not trial.job.sharing else f", beside {trial.aggressor}" if trial.aggressor else ", alone"
    turns = ", in turns" if trial.job.turns else ""
    return f"{trial.job.model} on {trial.target}{switched}{beside}{turns}"


def summary(record: TrialRecord) -> str:
    """Return the result of a trial in one line."""
    if record.outcome.status == "failed":
        return f"FAILED ({record.outcome.kind}): {record.outcome.message}"
    marks = ""
    if record.substitutes:
        marks = f" [{', '.join(record.substitutes)}]"
    shown = list(record.metrics.items())[:SHOWN]
    numbers = [f"{name} {number(metric.value)} {metric.unit}".rstrip() for name, metric in shown]
    more = len(record.metrics) - len(shown)
    if more:
        numbers.append(f"{more} more")
    if record.throughput_per_s is not None:
        numbers.append(f"{number(record.throughput_per_s)} {record.unit}/s")
    times = []
    if record.elapsed_s is not None:
        times.append(f"{record.elapsed_s:.1f} s")
    if record.alternation:
        times.append(f"{len(record.alternation.bursts)} turns")
    numbers.append(" in ".join(times))
    if record.open_s is not None:
        numbers[-1] += f" + {record.open_s:.1f} s to open"
    return f"{', '.join(numbers)}{marks}"
