"""Series of rates, one for each thing that an output counts, and the choice of the one that is the training's."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from worker.printed.lines import SUMMARIES, role_of
from worker.printed.units import STEPS

MOST_NUMBERS = 100_000
"""Beyond these every second number is dropped: the worker writes them in one line, whose length is bounded."""
MOST_SERIES = 16
UNREAD_ONE_IN = 20
"""More matches that cannot be read leave a series out: they may be the slow steps."""
SHORTEST_S = 2.0
"""Output may be late by less than this: no series is left out for a shorter time."""
EARLY_SHARE = 0.5
LATE_SHARE = 0.75
"""A rate that is last printed in the first half of the program, or first in its last quarter, is not the training's."""
_LINE_CHARACTERS = 200


@dataclass
class RateSeries:
    """The rates of one name. A number is kept if its count is a multiple of ``every``."""

    name: str
    """The value of ``--throughput`` that takes this series."""
    thing: str = ""
    label: str = ""
    known: bool = True
    numbers: list[float] = field(default_factory=list)
    every: int = 1
    rates: int = 0
    unread: int = 0
    unread_line: str = ""
    first_s: float = 0.0
    last_s: float = 0.0

    def add(self, per_s: float, at_s: float) -> None:
        if not self.rates:
            self.first_s = at_s
        self.last_s = at_s
        self.rates += 1
        if self.rates % self.every == 0:
            self.numbers.append(per_s)
        if len(self.numbers) > MOST_NUMBERS:
            self.numbers = self.numbers[1::2]
            self.every *= 2

    def miss(self, line: str, why: str = "") -> None:
        """Count a rate that cannot be read."""
        self.unread += 1
        if not self.unread_line:
            shown = line.strip()[:_LINE_CHARACTERS]
            self.unread_line = f"{shown} ({why})" if why else shown

    def is_doubtful(self) -> bool:
        return self.unread * UNREAD_ONE_IN > self.rates + self.unread

    def median(self) -> float:
        return statistics.median(self.numbers)

    def summary(self) -> str:
        """Return the name with count and median: ``val images/s (12 times, median 195)``."""
        times = "once"
        if self.rates != 1:
            times = f"{self.rates} times"
        if not self.numbers:
            return f"{self.name} (unread)"
        return f"{self.name} ({times}, median {self.median():.4g})"

    def unread_note(self) -> str:
        total = self.rates + self.unread
        return f"{self.unread} of {total} printed throughputs cannot be read, such as in: {self.unread_line}"

    def outside(self, begun_s: float, ended_s: float) -> str:
        """Return why it covers too little of the program's time to be its training's; empty if it does not."""
        if not self.rates:
            return ""
        run_s = ended_s - begun_s
        first_s = self.first_s - begun_s
        last_s = self.last_s - begun_s
        if last_s < EARLY_SHARE * run_s and run_s - last_s >= SHORTEST_S:
            return f"{self.name} was last printed after {last_s:.3g} s of {run_s:.3g} s"
        if first_s > LATE_SHARE * run_s and last_s - first_s >= SHORTEST_S:
            return f"{self.name} was first printed after {first_s:.3g} s of {run_s:.3g} s"
        return ""

    def gives_way_to(self, other: "RateSeries") -> bool:
        """Return whether the other has the same in more detail: samples for steps, each part for the whole."""
        if other is self:
            return False
        if self.thing in STEPS and other.thing not in STEPS:
            return self.label in ("", other.label)
        words = self.label.split()
        part = [word for word in words if word not in SUMMARIES]
        return self.thing == other.thing and part != words and other.label.split() == part


def main_series(printed: Iterable[RateSeries], begun_s: float, ended_s: float) -> list[RateSeries]:
    """Return the series that may be the training's, of a program that ran between these moments."""
    timely = []
    for candidate in printed:
        if candidate.known and not candidate.outside(begun_s, ended_s):
            timely.append(candidate)
    main = []
    for candidate in timely:
        if not any(map(candidate.gives_way_to, timely)):
            main.append(candidate)
    return main


def merged(paths: Sequence[RateSeries]) -> RateSeries:
    """Return series of JSON paths merged into one."""
    whole = RateSeries(paths[0].name, paths[0].thing)
    whole.every = max(candidate.every for candidate in paths)
    for candidate in paths:
        whole.numbers += candidate.numbers[:: whole.every // candidate.every]
        whole.rates += candidate.rates
        whole.unread += candidate.unread
        whole.unread_line = whole.unread_line or candidate.unread_line
    return whole


def parts_named(paths: Iterable[RateSeries]) -> set[str]:
    """Return the parts of a training that paths name, such as ``train`` and ``val``."""
    parts = set()
    for candidate in paths:
        words = candidate.label.replace("_", " ").replace(".", " ")
        parts.add(role_of(words))
    return parts


def listed(series: Iterable[RateSeries]) -> str:
    return ", ".join(map(RateSeries.summary, series))


def notes_on(series: RateSeries) -> Iterator[str]:
    """Yield a sentence on each part of the output that the median leaves out."""
    if series.unread:
        yield series.unread_note()
    if series.every > 1:
        yield f"the command printed {series.rates} throughputs; one in {series.every} is kept"
