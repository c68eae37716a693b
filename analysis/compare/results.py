"""What a comparison says, as plain typed data. ``compare`` makes it; tables and plots render it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.load.metrics import METRICS, PROBE, Metric
from analysis.statistics.ratios import MARGIN, NoiseFloor, Verdict
from analysis.warnings.types import AnalysisWarning


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
    """What was run, but for the model. ``variant`` holds the settings (workload, envelope, options, cluster, sharing,
    host) that are not the same in all records, as ``name=value, …``; empty where they are."""

    scenario: str
    data: str
    profile: str
    recipe: str
    variant: str

    def __str__(self) -> str:
        # A probe trains nothing: it has neither data nor a recipe that would tell jobs apart.
        trained = () if self.scenario == PROBE else (f"{self.data} data", f"{self.recipe} recipe")
        return ", ".join(
            filter(
                None, (f"{self.scenario} scenario", *trained[:1], f"{self.profile} profile", *trained[1:], self.variant)
            )
        )


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
    metrics: tuple[Metric, ...] = METRICS
    aa: Mapping[str, Effect] = field(default_factory=dict)
    """By the metric's name: the second bare-metal trial of the blocks over the first. Empty without A/A."""
    ablations: "tuple[AblationEffect, ...]" = ()
    costs: "tuple[Cost, ...]" = ()
    """Of the targets of which something is known."""


@dataclass(frozen=True)
class AblationEffect:
    """A target with one property switched, over the same target of the same block without."""

    job: Job
    model: str
    target: str
    ablation: str
    effects: Mapping[str, Effect]
    """By the metric's name."""
    notes: tuple[str, ...] = ()
    """Substitutes of the switched trials, and in what they differ besides the switch where that was forced."""


@dataclass(frozen=True)
class Interference:
    """A victim beside an aggressor, over the same victim alone on the same target in the same blocks."""

    job: Job
    model: str
    target: str
    ablation: str
    """Switched in both; empty where nothing is."""
    aggressor: str
    effects: Mapping[str, Effect]
    """By the metric's name: throughput, elapsed, step-p99 (the 99th percentile of a trial's steps), cpu-time and
    llc-misses. A CPU time that grows less than elapsed means waiting for CPUs; one that grows with it means slower
    computing."""
    noise_floors: Mapping[str, NoiseFloor] = field(default_factory=dict)
    """By the metric's name: what the victim alone shows against itself."""
    kept: Effect | None = None
    """The aggressor's own speed beside the victim, over that of the same aggressor before the victim was launched."""
    steal_shares: tuple[float | None, float | None] = (None, None)
    """Of the envelope's CPU time, alone and beside: what a hypervisor below this machine took."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Isolation:
    """How much a target's victims keep: the geometric mean of their throughput ratios over the ``cells`` (victims and
    aggressors) that every target has. The first of a job isolates best."""

    job: Job
    target: str
    cells: int
    effect: Effect
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """What one target takes of the host, per ``unit``: all-in is everything that serves the target, the job included,
    by the host's accounting; inside is the job by its own. Under emulation the two clocks need not agree.

    CPU seconds and energy are geometric means over the trials, disk bytes arithmetic ones, per trial; memory is the
    highest peak. What is not known is None.
    """

    job: Job
    model: str
    target: str
    unit: str
    cpu_inside_s: float | None
    cpu_all_in_s: float | None
    all_in_to_inside: float | None
    normalised: Effect | None
    """All-in over bare metal's all-in, inside blocks; it has no verdict."""
    memory_inside_bytes: float | None
    memory_all_in_bytes: float | None
    disk_read_inside_bytes: float | None
    disk_read_all_in_bytes: float | None
    disk_written_inside_bytes: float | None
    disk_written_all_in_bytes: float | None
    energy_j: float | None
    """Of the whole host."""
    notes: tuple[str, ...]


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
    interference: tuple[Interference, ...] = ()
    isolation: tuple[Isolation, ...] = ()
    margin: float = MARGIN
    warmup_trials: int = 0
    """Left out of everything, by the rule that says which blocks are warm-up."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(dict.fromkeys(group.job for group in self.groups))

    @property
    def ablations(self) -> tuple[AblationEffect, ...]:
        return tuple(one for group in self.groups for one in group.ablations)

    @property
    def costs(self) -> tuple[Cost, ...]:
        return tuple(one for group in self.groups for one in group.costs)


_SWITCHED = {
    "seccomp": "seccomp off",
    "network": "network of the node",
    "rootfs": "root file system bound in place",
    "huge-pages": "huge pages on",
    "pinning": "pinning off",
    "isa": "lower vector instructions",
    "virtiofs": "data by virtiofs",
    "data-layer": "data in a layer of its own",
    "disk-cache": "disk cache writeback",
    "memory-limit": "memory limit off",
    "disk-limit": "disk limit on",
}


def switched(ablation: str) -> str:
    """What an ablation makes of its property, in two or three words."""
    return _SWITCHED.get(ablation, f"{ablation} switched")


def known_first(known: Sequence[str], name: str) -> tuple[int, str]:
    """A sort key: names in the order of ``known``, the others after them by the alphabet."""
    return (known.index(name) if name in known else len(known), name)
