"""Show a run while it works. Nothing is written between the phase ``measuring`` and the one after it."""

import time
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from suite.plan import Trial
from suite.records.record import TrialRecord


class Lines:
    """Prints one plain line per phase, for logs, pipes and CI. See ``suite.interfaces.Observer``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._clock = Clock()
        self._head = ""

    def trial_started(self, trial: Trial, number: int, of: int) -> None:
        self._clock.started(number, of)
        self._head = f"[{number}/{of}] {name(trial)}"
        self._say(f"{self._head}: {block(trial)}, {trial.job.profile}{self._clock.left()}")

    def phase(self, name: str, detail: str = "") -> None:
        # Every step of the warm-up would be a line.
        if not (name == "warm-up" and not detail.startswith("0/")):
            self._say(f"{self._head}: {name} {detail}".rstrip())

    def trial_finished(self, record: TrialRecord) -> None:
        self._clock.finished()
        self._say(f"{self._head}: {summary(record)}")

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Display:
    """Shows one live line on a terminal, redrawn on each call and never by itself."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clock = Clock()
        self._head = ""
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def trial_started(self, trial: Trial, number: int, of: int) -> None:
        self._clock.started(number, of)
        self._head = f"[{number}/{of}] {name(trial)}, {block(trial)}"

    def phase(self, name: str, detail: str = "") -> None:
        line = Text(f"{self._head}: {name} {detail}".rstrip() + self._clock.left(), "cyan")
        self._live.update(self._shown(line), refresh=True)

    def trial_finished(self, record: TrialRecord) -> None:
        self._clock.finished()
        style = "green" if record.outcome.status == "ok" else "red"
        self._live.update(Text(""), refresh=True)
        self._console.print(Text(f"{self._head}: {summary(record)}", style))

    def _shown(self, line: Text) -> RenderableType:
        return line

    def note(self, text: str) -> None:
        self._console.print(Text(text, "dim"))

    def close(self) -> None:
        self._live.stop()


class Clock:
    """Estimates the time left from how long trials have taken so far."""

    def __init__(self) -> None:
        self._durations_s: list[float] = []
        self._begin_s = 0.0
        self._remaining = 0

    def started(self, number: int, of: int) -> None:
        self._begin_s = time.monotonic()
        self._remaining = of - number + 1

    def finished(self) -> None:
        self._durations_s.append(time.monotonic() - self._begin_s)

    def left(self) -> str:
        """Return `` (about 3 min left)``, or nothing before the first trial has ended."""
        if not self._durations_s:
            return ""
        seconds = self._remaining * sum(self._durations_s) / len(self._durations_s)
        return f" (about {seconds / 60:.0f} min left)" if seconds >= 90 else f" (about {seconds:.0f} s left)"


def name(trial: Trial) -> str:
    """Return what runs where: ``resnet50 on vm, beside disk``."""
    switched = f", {trial.ablation} switched" if trial.ablation else ""
    beside = "" if not trial.job.sharing else f", beside {trial.aggressor}" if trial.aggressor else ", alone"
    return f"{trial.job.model} on {trial.target}{switched}{beside}"


def block(trial: Trial) -> str:
    """Return ``block 3`` or ``warm-up block 0``."""
    return f"warm-up block {trial.block}" if trial.warm_up else f"block {trial.block}"


def summary(record: TrialRecord) -> str:
    """Return the result of a trial in one line."""
    if record.outcome.status == "failed":
        return f"FAILED ({record.outcome.kind}): {record.outcome.message}"
    marks = f"  [{', '.join(record.substitutes)}]" if record.substitutes else ""
    numbers = [f"{name} {metric.value:.3g} {metric.unit}" for name, metric in record.metrics.items()]
    if record.throughput_images_per_s is not None:
        numbers.append(f"{record.throughput_images_per_s:.3g} images/s")
    return f"{', '.join(numbers)}, elapsed {record.elapsed_s:.1f} s, opened in {record.open_s:.2f} s{marks}"
