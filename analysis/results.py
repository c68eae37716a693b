"""What a comparison says, as plain typed data. ``compare`` makes it; tables and plots render it."""

from dataclasses import dataclass

from analysis.warnings import AnalysisWarning


@dataclass(frozen=True)
class Metric:
    """A number of a trial. ``column`` is its name in a record."""

    name: str
    column: str
    unit: str


METRICS = (
    Metric("throughput", "throughput_images_per_s", "images/s"),
    Metric("elapsed", "elapsed_s", "s"),
    Metric("opening", "open_s", "s"),
)


@dataclass(frozen=True)
class Estimate:
    """One metric of one target. ``value`` is the geometric mean of ``trials`` trials, in the metric's unit.

    ``ratio`` is value over bare metal's, the geometric mean of the ratios inside ``blocks`` blocks; None, with 0
    blocks, where no block allows it. Over 1 is more images per second, or more time.
    """

    value: float
    trials: int
    ratio: float | None
    blocks: int


@dataclass(frozen=True)
class TargetSummary:
    """What was measured on one target; ``estimates`` by the metric's name, absent where nothing was measured."""

    target: str
    ok: int
    failed: int
    substitutes: tuple[str, ...]
    """What stood in for what the host lacks, such as ``accelerator:tcg``: stands wherever the numbers stand."""
    marks: tuple[str, ...]
    """In what the trials differ from bare metal's besides the target, such as ``AVX2 against AVX512``."""
    estimates: dict[str, Estimate]

    @property
    def notes(self) -> tuple[str, ...]:
        return self.substitutes + self.marks


@dataclass(frozen=True, order=True)
class Job:
    """What was run, but for the model. ``variant`` holds the settings (workload, envelope, options, host) that are not
    the same in all records, as ``name=value, …``; empty where they are."""

    scenario: str
    data: str
    profile: str
    recipe: str
    variant: str

    def __str__(self) -> str:
        named = (f"{self.scenario} scenario", f"{self.data} data", f"{self.profile} profile", f"{self.recipe} recipe")
        return ", ".join(filter(None, (*named, self.variant)))


@dataclass(frozen=True)
class Group:
    """The targets of one job and model: alike in everything else."""

    job: Job
    model: str
    targets: tuple[TargetSummary, ...]


@dataclass(frozen=True)
class Comparison:
    """The result of ``compare``: pure data, ready for any renderer."""

    runs: tuple[str, ...]
    groups: tuple[Group, ...]
    warnings: tuple[AnalysisWarning, ...]
