"""A history as plain typed data. ``history_of`` makes it; the table, the figures and JSON show it."""

from dataclasses import dataclass
from typing import Final, Literal

from analysis.compare.matching import place_of
from analysis.compare.results import ComparedJob
from suite.targets import BASELINE

SCHEMA_VERSION: Final = 1
"""The version of the JSON: that of ``History`` as its fields stand here, described in ``docs/guide/nightly.md``."""


@dataclass(frozen=True)
class Point:
    """One run: the trimmed geometric mean of its blocks, in the unit of the series, with its 95 % interval."""

    run: str
    """Its directory."""
    started_at: str
    value: float
    interval: tuple[float, float] | None
    """None for a single block."""
    blocks: int


@dataclass(frozen=True)
class Shift:
    """A change of the level, from the runs before it to those after it, up to the next change on each side."""

    run: str
    """The first run of the new level."""
    started_at: str
    before: float
    after: float
    runs: tuple[int, int]
    """The runs of both levels."""
    ratio: float
    interval: tuple[float, float] | None
    """The 95 % interval of the ratio, with runs as samples; None where one side has a single run."""
    slower: float
    """The change as a share; negative is faster."""
    machine: tuple[str, ...]
    """What changed on the machine, ``old -> new``: kernel, engine, suite, image and every other fact of a record."""
    machine_at: str | None
    """The run at which that changed: the first of the new level, or its neighbour, since a place is known to within a
    run. None where nothing changed."""


@dataclass(frozen=True)
class Series(ComparedJob):
    """One number of a job on one target, over all runs of one machine in the order of time."""

    model: str
    target: str
    arm: str
    """The ablation of the trials and the aggressor in their blocks; empty for neither."""
    metric: str
    normalised: bool
    """Whether it is the ratio to bare metal, which does not move when the whole machine changes."""
    host: str
    """The name of the machine; empty where all runs are of one."""
    unit: str
    points: tuple[Point, ...]
    shifts: tuple[Shift, ...]

    @property
    def place(self) -> str:
        """Return ``resnet50 on vm (engine=podman)``."""
        return f"{self.model} on {place_of(self.target, self.variant, self.arm, self.host)}"

    @property
    def what(self) -> str:
        """Return ``throughput``, or ``throughput, relative to bare-metal``."""
        return f"{self.metric}{f', relative to {BASELINE}' if self.normalised else ''}"


@dataclass(frozen=True)
class History:
    """All series of a directory, in the order of the paper."""

    schema_version: Literal[1]
    runs: int
    series: tuple[Series, ...]

    @property
    def shifts(self) -> int:
        """The number of changes in all series together."""
        return sum(len(series.shifts) for series in self.series)
