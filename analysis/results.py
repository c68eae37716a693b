"""What a comparison says, as plain typed data. ``compare`` makes it; tables and plots render it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.statistics import MARGIN, NoiseFloor, Verdict
from analysis.warnings import AnalysisWarning


@dataclass(frozen=True)
class Metric:
    """A number of a trial. ``column`` is its name in a record."""

    name: str
    column: str
    unit: str

    @property
    def more_is_faster(self) -> bool:
        return self.name == "throughput"


METRICS = (
    Metric("throughput", "throughput_images_per_s", "images/s"),
    Metric("elapsed", "elapsed_s", "s"),
    Metric("opening", "open_s", "s"),
)


@dataclass(frozen=True)
class Estimate:
    """One metric of one target. ``value`` is the geometric mean of ``trials`` trials, in the metric's unit.

    ``ratio`` is value over bare metal's: the trimmed geometric mean of the ratios inside ``blocks`` blocks (see
    ``statistics``; nothing is trimmed below 5); None, with 0 blocks, where no block allows it. Over 1 is more images
    per second, or more time. ``interval`` is its 95 % t interval, which one block does not have; bare metal has neither
    interval nor verdict.
    """

    value: float
    trials: int
    ratio: float | None
    blocks: int
    interval: tuple[float, float] | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Effect:
    """A ratio that is made of other ratios, block by block; interval and verdict as those of an ``Estimate``."""

    ratio: float
    blocks: int
    interval: tuple[float, float] | None
    verdict: Verdict | None


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
    noise_floors: Mapping[str, NoiseFloor] = field(default_factory=dict)
    """By the metric's name; absent where bare metal has too few trials."""
    interactions: Mapping[str, Effect] = field(default_factory=dict)
    """By the metric's name: container-vm's ratio over the product of container's and vm's. 1 is layers that add up."""


@dataclass(frozen=True)
class Overall:
    """One target over all models of a job: the geometric mean of their ratios, in the blocks that hold every model.

    The models of a block are averaged first, so the block stays the sample and what its models share is kept.
    """

    job: Job
    target: str
    models: tuple[str, ...]
    effects: Mapping[str, Effect]
    """By the metric's name."""
    notes: tuple[str, ...] = ()
    """Substitutes and marks of any of its trials: they stand wherever the numbers stand."""


@dataclass(frozen=True)
class Comparison:
    """The result of ``compare``: pure data, ready for any renderer."""

    runs: tuple[str, ...]
    groups: tuple[Group, ...]
    warnings: tuple[AnalysisWarning, ...]
    overall: tuple[Overall, ...] = ()
    """Empty for a single model."""
    margin: float = MARGIN


def known_first(known: Sequence[str], name: str) -> tuple[int, str]:
    """A sort key: names in the order of ``known``, the others after them by the alphabet."""
    return (known.index(name) if name in known else len(known), name)
