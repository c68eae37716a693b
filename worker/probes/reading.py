"""The metrics that a probe returns, and the error that it raises."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from worker.errors import JobError

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
        """Return the metrics as the protocol writes them."""
        return {name: asdict(reading) for name, reading in self.metrics.items()}


def median(samples: Sequence[float], unit: str, better: Better) -> Reading:
    """Return the median of repeated values, with the values as its samples."""
    return Reading(statistics.median(samples), unit, better, list(samples))


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the quantile by nearest rank, so that it is a sample that was measured."""
    ordered = sorted(samples)
    return ordered[max(0, -(-round(share * 1000) * len(ordered) // 1000) - 1)]
