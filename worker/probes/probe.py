"""A probe: what measures one cost of a layer, what it returns, and what the host must know of it beforehand.

The host reads declarations, and has no torch: a probe that needs torch imports it inside its functions, which run in
the target alone. A probe of another package is one module, of which the text is sent into the target.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TextIO

from worker.protocol import Events, JobError
from worker.spec import Request, Turns
from worker.turns import each_turn

Better = Literal["more", "less"]


class ProbeError(JobError):
    """The probe cannot be measured here. ``remedy`` says what to do next."""

    remedy: str

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message, kind="probe", remedy=remedy)


@dataclass(frozen=True)
class Reading:
    """One metric, as ``records.MetricValue``."""

    value: float
    unit: str
    better: Better
    samples: list[float] | None = None


@dataclass(frozen=True)
class Measured:
    """All metrics of one probe, and what explains them."""

    metrics: Mapping[str, Reading]
    details: dict[str, object] = field(default_factory=dict)

    def columns(self) -> dict[str, dict[str, object]]:
        return {name: asdict(reading) for name, reading in self.metrics.items()}


def median(samples: Sequence[float], unit: str, better: Better) -> Reading:
    return Reading(statistics.median(samples), unit, better, list(samples))


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the quantile by nearest rank, so that it is a sample that was measured."""
    ordered = sorted(samples)
    rank = -(-round(share * 1000) * len(ordered) // 1000)
    return ordered[max(0, rank - 1)]


def writes_nothing(size: str) -> None:
    """Return None: the probe needs no room on the data disk."""
    del size


@dataclass(frozen=True)
class Probe:
    """The declaration of a probe. ``measure`` raises ProbeError where nothing can be measured."""

    name: str
    measure: Callable[[Request], Measured]
    computes: bool = False
    """Whether it computes with torch, which is then given the threads of the envelope."""
    in_turns: bool = False
    """Whether it can be measured again and again, in turns with others, and leaves nothing behind that they would meet
    in theirs."""
    only_named: bool = False
    """Whether it runs where it is named alone, and not among all probes."""
    written_bytes: Callable[[str], int | None] = writes_nothing
    """How many bytes it writes to the data disk, by the profile; None for none."""


def measured_in_turns(probe: Probe, request: Request, turns: Turns, events: Events, orders: TextIO) -> Measured:
    """Measure once to warm up, then in each turn, and emit the bursts. Raises JobError.

    Returns the geometric mean of every metric over all turns. The logarithm of a ratio of two of these is the mean of
    the ratios of the turns of each round, as for the bursts of a training.
    """
    probe.measure(request)
    measured: list[Measured] = []

    def take(_: int) -> None:
        measured.extend(probe.measure(request) for _ in range(turns.burst_steps))

    each_turn(turns.rounds, orders, events, take)
    last = measured[-1]
    names = []
    for name in last.metrics:
        if all(name in report.metrics for report in measured):
            names.append(name)
    means = {}
    for name in names:
        values = [report.metrics[name].value for report in measured]
        means[name] = replace(last.metrics[name], value=statistics.geometric_mean(values), samples=values)
    return Measured(means, last.details)
