"""The result of a comparison as plain typed data. ``compare`` makes it; tables and figures render it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd

from analysis.load.computed import Kind
from analysis.load.metrics import METRICS, Metric
from analysis.statistics.alternating import Components, Design, SwitchingCost
from analysis.statistics.ratios import MARGIN, NoiseFloor, Verdict
from analysis.statistics.tails import SlowTrials
from analysis.warnings.types import AnalysisWarning
from suite.records.record import EPOCH, FIRST_EPOCH, SCALED_EPOCH
from suite.request.traits import Traits, traits_of


@dataclass(frozen=True)
class Expected:
    """The expected cost, which a long queue of jobs pays: the ratio of the mean times, with its 95 % interval.

    Of a rate it is that of the mean times per unit of work, written as a ratio of rates.
    """

    ratio: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """One metric of one target, of ``trials`` trials. ``value`` is the trimmed geometric mean over their blocks.

    ``ratio`` is value over bare metal's: the trimmed geometric mean of the ratios inside ``blocks`` blocks (see
    ``statistics``; nothing is trimmed below 5); None, with 0 blocks, where no block allows it. Over 1 is more images
    per second, or more time. ``interval`` is its 95 % t interval, which one block does not have; bare metal has neither
    interval nor verdict. ``ratio`` is what a typical trial costs, ``expected`` what a long queue pays.
    """

    value: float
    trials: int
    ratio: float | None
    blocks: int
    interval: tuple[float, float] | None = None
    verdict: Verdict | None = None
    expected: Expected | None = None
    slow: SlowTrials | None = None
    by_block: tuple[float, ...] = field(default=(), repr=False)
    dependent: float | None = None


@dataclass(frozen=True)
class Effect:
    """A ratio, block by block, with interval and verdict like those of an ``Estimate``.

    A ratio of ratios has neither an expected one nor slow trials.
    """

    ratio: float
    blocks: int
    interval: tuple[float, float] | None
    verdict: Verdict | None
    expected: Expected | None = None
    slow: SlowTrials | None = None
    by_block: tuple[float, ...] = field(default=(), repr=False)
    """The ratio of every block, of which this one is the mean."""
    dependent: float | None = None
    """The level at which blocks resemble the one before, adjusted for all ratios compared; None if they do not."""


@dataclass(frozen=True)
class TargetSummary:
    """The measurements on one target; ``estimates`` by the metric's name, absent where nothing was measured."""

    target: str
    ok: int
    failed: int
    substitutes: tuple[str, ...]
    """The substitutes for what the host lacks, such as ``accelerator:tcg``; shown wherever the numbers are."""
    marks: tuple[str, ...]
    """What changed between the trials, and how they differ from those of bare metal besides the target, such as
    ``AVX2 against AVX512``."""
    estimates: dict[str, Estimate]
    differences: tuple[str, ...] = ()
    """The differences that their one mark only counts: ``kernel 6.1 against 6.18``."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Each loss over the last steps, as the mean of the finished trials; empty where the workload has none."""

    @property
    def notes(self) -> tuple[str, ...]:
        return self.substitutes + self.marks


@dataclass(frozen=True, order=True)
class ComparedJob:
    """The job that was run, except for the model.

    ``variant`` holds the settings (envelope, distribution, sharing, host, ...) that are not the same in all
    records, as ``name=value, …``; empty where all are.
    """

    scenario: str
    data: str
    profile: str
    recipe: str
    variant: str

    @property
    def traits(self) -> type[Traits]:
        return traits_of(self.scenario)

    def __str__(self) -> str:
        words = {name: f"{value} {name}" for name, value in vars(self).items() if value}
        if self.variant:
            words["variant"] = self.variant
        if self.traits.probes:
            # A probe trains nothing: it has neither data nor a recipe that would tell jobs apart.
            words = {name: text for name, text in words.items() if name not in ("data", "recipe")}
        return ", ".join(words.values())


@dataclass(frozen=True)
class Disturbed:
    """The trials of one target that something on the host has disturbed; see ``warnings.conditions``."""

    kind: str
    finding: str
    noticed: str
    """From where a disturbance counts, in words: ``over 2 % of the CPU time``; empty if any does."""
    trials: int
    of: int
    spoiled: int
    """The number of trials that were disturbed beyond ``bound``."""
    bound: str
    """The bound beyond which a trial decides nothing, in words: ``over 10 % of the CPU time``."""


@dataclass(frozen=True)
class Circumstances:
    """The place and the way in which the trials of a group ran. Unknown values are empty."""

    engine: str = ""
    hosts: tuple[str, ...] = ()
    block_s: float | None = None
    """The seconds that one more block takes, with all targets and models of its run."""
    decided: bool = False
    """Whether the run went on until it had verdicts, after which an interval covers less often."""
    disturbed: Mapping[str, tuple[Disturbed, ...]] = field(default_factory=dict)
    """The disturbances by target."""


@dataclass(frozen=True)
class BurstVariation:
    """The variation of a target's bursts at each level, and the cost of switching, beside its ratio.

    The variances are of log(target / bare metal) of the throughput, from ``blocks`` blocks.
    """

    target: str
    blocks: int
    components: Components
    switching: SwitchingCost | None
    best: Design | None
    """The arrangement that narrows the interval fastest; None where the blocks do not show how they vary."""


@dataclass(frozen=True)
class SameImage:
    """How the generated images of one arm agree with those of bare metal of their blocks."""

    trials: int
    """The trials that were held against bare metal."""
    other_weights: int
    """Those whose generator ended with other weights."""
    other_pixels: int
    most: int | None = None
    """The greatest difference of a pixel in the grids, of 255; None where no pixels differ, or there are no grids."""
    mean: float | None = None
    records: tuple[str, str] = ("", "")
    """The records of bare metal and of the arm whose images differ most, or the first."""


@dataclass(frozen=True)
class SameWork:
    """How the trials of one arm agree with bare metal of their blocks in their work."""

    arm: str
    """The target, with its replica, ablation and aggressor."""
    kind: Kind
    """The least of the agreements of its trials; see ``load.computed.Agreement``."""
    trials: int
    """The trials that were held against bare metal."""
    other: int = 0
    """Those that did other work."""
    text: str = ""
    """How they differ: ``computed other losses``."""
    apart: float | None = None
    """How far the early losses of the worst trial are apart, as a share; None where they are the same, or unknown."""
    seeds_apart: float | None = None
    """How far those of other seeds are apart; None where none is known, or the losses of no trial are apart."""
    drawn: bool = False
    """Whether the trials have drawn the same data, order and seed."""
    rounding: str = ""
    """Why equal work may end in other bits: ``other CPU model, other accelerator``; empty where it may not."""
    image: SameImage | None = None
    """None where no images were generated."""


@dataclass(frozen=True)
class Group:
    """The targets of one job and model: alike in everything else."""

    job: ComparedJob
    model: str
    targets: tuple[TargetSummary, ...]
    noise_floors: Mapping[str, NoiseFloor] = field(default_factory=dict)
    """The noise floors by the metric's name; absent where bare metal has too few trials."""
    interactions: Mapping[str, Effect] = field(default_factory=dict)
    """Container-vm's ratio over the product of container's and vm's, by the metric's name. At 1, the layers add up."""
    metrics: tuple[Metric, ...] = METRICS
    aa: Mapping[str, Effect] = field(default_factory=dict)
    """The second bare-metal trial of the blocks over the first, by the metric's name. Empty without A/A."""
    ablations: "tuple[AblationEffect, ...]" = ()
    costs: "tuple[Cost, ...]" = ()
    """The cost of each target on the host, where something is known."""
    circumstances: Circumstances = field(default_factory=Circumstances)
    turns: tuple[BurstVariation, ...] = ()
    """The turns of each target whose trials took them with those of bare metal."""
    same_work: tuple[SameWork, ...] = ()
    """The proof that all arms did the same work; empty where no record says what was computed."""

    @property
    def key(self) -> tuple[ComparedJob, str]:
        return self.job, self.model

    @property
    def measured(self) -> frozenset[str]:
        """The names of the metrics that any target has."""
        return frozenset(name for summary in self.targets for name in summary.estimates)

    @property
    def deciding(self) -> list[Metric]:
        """The metrics that claims are about: all of a probe, else the first of the scenario's that was measured."""
        candidates = self.job.traits.deciding
        first = next((name for name in candidates if name in self.measured), candidates[0])
        return [one for one in self.metrics if not one.supporting and (one.of_probe or one.name == first)]

    @property
    def epoch(self) -> Metric | None:
        """The metric of the time per epoch: of whole ones, of the first, or scaled; None for a job without epochs."""
        measured_first = next((name for name in (EPOCH, FIRST_EPOCH, SCALED_EPOCH) if name in self.measured), None)
        return next((metric for metric in self.metrics if metric.name == measured_first), None)


@dataclass(frozen=True)
class AblationEffect:
    """A target with an ablation, over the same target of the same block without."""

    job: ComparedJob
    model: str
    target: str
    ablation: str
    effects: Mapping[str, Effect]
    """The effects by the metric's name."""
    notes: tuple[str, ...] = ()
    """Substitutes of the trials with the ablation, and how else they differ where the comparison was forced."""


@dataclass(frozen=True)
class Interference:
    """A victim beside an aggressor, over the same victim alone on the same target in the same blocks."""

    job: ComparedJob
    model: str
    target: str
    ablation: str
    """The ablation of both; empty where there is none."""
    aggressor: str
    effects: Mapping[str, Effect]
    """The effects by the metric's name: throughput, elapsed, step-p99 (the 99th percentile of a trial's steps),
    cpu-time and llc-misses. A CPU time that grows less than elapsed means waiting for CPUs; one that grows with it
    means slower computing."""
    noise_floors: Mapping[str, NoiseFloor] = field(default_factory=dict)
    """The noise of the victim alone against itself, by the metric's name."""
    kept: Effect | None = None
    """The aggressor's own speed beside the victim, over that of the same aggressor before the victim was launched."""
    steal_shares: tuple[float | None, float | None] = (None, None)
    """The shares of the envelope's CPU time that a hypervisor below this machine took: alone, and beside."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Isolation:
    """The share of its throughput that a victim keeps on a target. The first of a job isolates best.

    ``effect`` is the geometric mean of the throughput ratios over the ``cells`` (a victim and an aggressor) that every
    target has.
    """

    job: ComparedJob
    target: str
    cells: int
    effect: Effect
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """The cost of one target on the host, per trial; that of the measured steps alone is per ``unit``.

    All-in is everything that serves the target, the job included, by the host's accounting; inside is the job by its
    own. Under emulation the two clocks need not agree. CPU seconds and energy are geometric means over the trials, disk
    bytes arithmetic ones; memory is the highest peak. What is not known is None.
    """

    job: ComparedJob
    model: str
    target: str
    unit: str
    cpu_steps_s: float | None
    """The measured steps, inside, per ``unit``."""
    cpu_startup_s: float | None
    """The rest of the job, inside: imports, building, warm-up, teardown."""
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
    """The energy of the whole host."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Overall:
    """One target over all models of a job: the geometric mean of their ratios, in the blocks that hold every model.

    The models of a block are averaged first, so the block stays the sample and what its models share is kept.
    """

    job: ComparedJob
    target: str
    models: tuple[str, ...]
    effects: Mapping[str, Effect]
    """The effects by the metric's name."""
    notes: tuple[str, ...] = ()
    """Substitutes and marks of any of its trials; they are shown wherever the numbers are."""


ClaimVerdict = Literal["confirmed", "contradicted", "undecided", "not testable"]


@dataclass(frozen=True, kw_only=True)
class PublishedClaim:
    """A claim of a paper, and what tests it; ``published.toml`` explains the fields."""

    sentence: str
    paper: str
    kind: Literal["ratio", "order", "equality", "not testable"]
    advice: str
    published: str = ""
    cited: str = ""
    """The paper by its title, authors, year and DOI, as far as they are known."""
    metric: str = "throughput"
    between: Sequence[float] = ()
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    over: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class ClaimEvidence:
    """A comparison that a claim selects. ``text``: why its ratio has no verdict, or how weights agree."""

    what: str
    verdict: ClaimVerdict
    effect: Effect | Estimate | None
    text: str


@dataclass(frozen=True)
class JudgedClaim:
    """A published claim, and its verdict by the comparisons that it selects."""

    claim: PublishedClaim
    verdict: ClaimVerdict
    evidence: tuple[ClaimEvidence, ...]


@dataclass(frozen=True)
class Uncertain:
    """A value with its 95 % interval, which takes two blocks or more."""

    value: float
    interval: tuple[float, float] | None = None

    def mapped(self, function: Callable[..., float], *more: float) -> "Uncertain":
        """Return a monotone function of the value and of the ends of its interval."""
        ends = sorted(function(end, *more) for end in self.interval or ())
        return Uncertain(function(self.value, *more), (ends[0], ends[1]) if ends else None)


@dataclass(frozen=True)
class Division:
    """One way to divide a distributed job's work on one target, beside a first one."""

    job: ComparedJob
    """The job that divided it in the first way, which has the smallest number of workers."""
    model: str
    target: str
    workers: int
    batch: int
    """The batch of one device of a rank."""
    global_batch: int
    losses: Mapping[str, float]
    notes: tuple[str, ...]
    """Substitutes, and why there is no efficiency or the trials decide nothing."""


@dataclass(frozen=True)
class Scaling(Division):
    """A number of workers, beside the smallest one of jobs that agree in everything else."""

    kind: Literal["strong", "weak"]
    blocks: int
    values: Mapping[str, Uncertain]
    """What ``compare.scaling.NAMES`` names, as far as it is known."""


@dataclass(frozen=True)
class Quality(Division):
    """The images that jobs learned to make."""

    strategy: str
    images_seen: int
    """The images that were trained with, generated ones and warm-up included: steps times the global batch."""
    estimates: dict[str, Estimate]
    """By the metric's name. The ratios are to the first way, which has none."""


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
    scaling: tuple[Scaling, ...] = ()
    quality: tuple[Quality, ...] = ()
    claims: tuple[JudgedClaim, ...] = ()
    """The published claims; empty unless they were judged."""
    margin: float = MARGIN
    warmup_trials: int = 0
    """The number of trials that are left out of everything because they belong to warm-up blocks."""
    trials: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False, repr=False)
    """The finished trials of the targets as they are, with ``variant``, for figures that show single trials."""

    def of(self, job: ComparedJob) -> "Comparison":
        """Return the results of one job; the warnings stay."""
        trials = self.trials
        for name, value in vars(job).items() if len(trials) else ():
            trials = trials[trials[name] == value]
        lists = ("groups", "overall", "interference", "isolation", "scaling", "quality")
        of_job: dict[str, Any] = {
            name: tuple(result for result in getattr(self, name) if result.job == job) for name in lists
        }
        return replace(self, trials=trials, **of_job)

    @property
    def decided(self) -> bool:
        """Whether a run of these went on until it had verdicts."""
        return any(group.circumstances.decided for group in self.groups)

    @property
    def jobs(self) -> tuple[ComparedJob, ...]:
        return tuple(dict.fromkeys(group.job for group in self.groups))

    @property
    def ablations(self) -> tuple[AblationEffect, ...]:
        return tuple(effect for group in self.groups for effect in group.ablations)

    @property
    def costs(self) -> tuple[Cost, ...]:
        return tuple(cost for group in self.groups for cost in group.costs)


def known_first(known: Sequence[str], name: str) -> tuple[int, str]:
    """Return a sort key: names in the order of ``known``, all others after them in alphabetical order."""
    return (known.index(name) if name in known else len(known), name)
