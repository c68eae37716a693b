"""The result of a comparison as plain typed data. ``compare`` makes it; tables and figures render it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd

from analysis.compare.validity import shortened
from analysis.load.computed import Agreement
from analysis.load.metrics import METRICS, Metric, by_ratio
from analysis.load.plans import Terms
from analysis.statistics.alternating import Components, Design, SwitchingCost
from analysis.statistics.counts import MeanDifference
from analysis.statistics.failures import Failures
from analysis.statistics.ratios import NoiseFloor, Verdict
from analysis.statistics.tails import SlowTrials
from analysis.warnings.types import AnalysisWarning
from suite.errors import RequestError
from suite.records.record import EPOCH, FIRST_EPOCH, SCALED_EPOCH
from suite.request.repetitions import MARGIN
from suite.request.traits import Traits, traits_of
from suite.targets import base_of

ClaimVerdict = Literal["confirmed", "confirmed in part", "contradicted", "undecided", "not testable"]


UNMEASURED = "-"
"""The place of a stage of which no step was measured, among the members of a contrast."""
_NO_DATA = "none"
"""The data of a command that is not known to read any."""


@dataclass(frozen=True)
class Expected:
    """The expected cost, which a long queue of jobs pays: the ratio of the mean times, with its 95 % interval.

    Of a rate it is that of the mean times per unit of work, written as a ratio of rates.
    """

    ratio: float
    interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A ratio, block by block, with interval and verdict.

    It is the trimmed geometric mean of the ratios inside ``blocks`` blocks (see ``statistics``; nothing is trimmed
    below 5); None, with 0 blocks, where no block allows it. Over 1 is more images per second, or more time.
    ``interval`` is its 95 % t interval (that of the value where there is no ratio), which one block does not have.
    ``ratio`` is what a typical trial costs, ``expected`` what a long queue pays, which a ratio of ratios does not have.
    """

    ratio: float | None = None
    blocks: int = 0
    interval: tuple[float, float] | None = None
    verdict: Verdict | None = None
    expected: Expected | None = None
    slow: SlowTrials | None = None
    difference: MeanDifference | None = None
    """In place of a ratio, for a metric that can be zero: the mean over the blocks of own less base, in its unit."""
    by_block: tuple[float, ...] = field(default=(), repr=False)
    """The ratio of every block, of which this one is the mean."""
    dependent: float | None = None
    """The level at which blocks resemble the one before, adjusted for all ratios compared; None if they do not."""


@dataclass(frozen=True)
class TargetSummary:
    """The trials of one target; what they measured are contrasts."""

    target: str
    ok: int
    failed: int
    substitutes: tuple[str, ...]
    """The substitutes for what the host lacks, such as ``accelerator:tcg``; shown wherever the numbers are."""
    marks: tuple[str, ...]
    """What changed between the trials, and how they differ from those of bare metal besides the target, such as
    ``AVX2 against AVX512``."""
    differences: tuple[str, ...] = ()
    """The differences that their one mark only counts: ``kernel 6.1 against 6.18``."""
    failure: str = ""
    """The message that most of the failed trials have; empty without one."""
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

    @property
    def data_words(self) -> str:
        """Return ``mnist data``; empty for a job that reads none, or whose command alone knows what it reads."""
        return "" if self.data in ("", _NO_DATA) else f"{self.data} data"

    def __str__(self) -> str:
        words = {name: f"{value} {name}" for name, value in vars(self).items() if value}
        words["data"] = self.data_words
        if self.variant:
            words["variant"] = self.variant
        if self.traits.probes:
            # A probe trains nothing: it has neither data nor a recipe that would tell jobs apart.
            words = {name: text for name, text in words.items() if name not in ("data", "recipe")}
        return ", ".join(filter(None, words.values()))


class Division(NamedTuple):
    workers: int
    batch: int
    """The batch of one device of a rank."""
    global_batch: int
    strategy: str
    images_seen: int | None
    """The images that were trained with, generated ones and warm-up included: steps times the global batch."""
    losses: tuple[tuple[str, float], ...]
    """The mean of each loss over the last steps."""


class Arm(NamedTuple):
    """One job, model and target, as it is or changed; the model is empty for all models of a job together."""

    job: ComparedJob
    model: str
    target: str
    ablation: str = ""
    aggressor: str = ""
    division: Division | None = None
    """Of jobs with several workers; the job is then that of the first way, with the smallest number of them."""
    cell: tuple[str, ...] = ()
    """The values of the keys that are compared, as ``data=mnist``; job and model are empty wherever these differ."""


GroupKey = tuple[ComparedJob, str]


@dataclass(frozen=True, kw_only=True)
class Contrast(Effect):
    """One metric of one arm, over what its kind divides by; see ``compare.contrasts``.

    Bare metal, over itself, has neither interval nor verdict.
    """

    kind: str
    arm: Arm
    metric: Metric
    over: Arm | None = None
    """The arm that it is over, where the kind leaves open which; None elsewhere."""
    value: float | None = None
    """The trimmed geometric mean over the blocks of the arm's own trials; None where it is unknown, or only a ratio."""
    value_interval: tuple[float, float] | None = None
    """The 95 % interval of the value, as its blocks give it."""
    trials: int = 0
    failed: int = 0
    failures: Failures | None = None
    """The failed trials of the arm and of the other side, by block; None if no trial failed."""
    base: tuple[str, ...] = ()
    """The cell that ``arm.cell`` is compared with."""
    runs: tuple[int, int] | None = None
    """The runs of the base and its own, of a contrast between runs; None inside the blocks of one."""
    spread: float | None = None
    """The standard deviation between runs of one side, as a share, of a count in its unit; None where too few show it,
    and inside runs."""
    noise: NoiseFloor | None = None
    """The noise floor of the base's trials; None where they are too few."""
    members: tuple[str, ...] = ()
    """The models, or the victims beside aggressors, over which it is the mean; or the CPUs of each stage."""
    notes: tuple[str, ...] = ()
    """Substitutes, and marks without which the number must not be read."""

    @property
    def job(self) -> ComparedJob:
        return self.arm.job

    @property
    def model(self) -> str:
        return self.arm.model

    @property
    def target(self) -> str:
        return self.arm.target

    @property
    def measured(self) -> bool:
        return self.value is not None or self.ratio is not None or self.difference is not None


Settings = Mapping[str, str]


@dataclass(frozen=True)
class CellTrials:
    """The trials of one target that agree in all settings."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    """One for each key."""
    settings: Settings
    trials: pd.DataFrame
    metrics: Mapping[str, Metric]
    failed: pd.DataFrame
    """The trials of the target at these values that failed."""

    @property
    def name(self) -> tuple[str, ...]:
        """The values with their keys: ``("data=mnist",)``."""
        return tuple(f"{key}={shortened(value)}" for key, value in zip(self.keys, self.values, strict=True))

    @property
    def of_trials(self) -> int:
        """The number of trials; one that failed and was repeated has finished, too."""
        return len(self.trials) + int((~self.failed["ok"].astype(bool)).sum())

    def logs(self, name: str) -> "pd.Series[float]":
        """Return the logarithms of a metric by sweep and block; of one that can be zero the numbers."""
        metric = self.metrics[name]
        if metric.by_difference:
            numbers = self.trials[metric.column]
        else:
            numbers = metric.logs(self.trials)
        frame = [self.trials["sweep"].astype(str), self.trials["block"]]
        blocks: pd.Series[float] = numbers.groupby(frame).mean()
        return blocks.dropna()


Measured = Mapping[str, Contrast]
"""The contrasts of one arm by the metric's name."""


def by_arm(contrasts: Iterable[Contrast]) -> dict[Arm, Measured]:
    arms: dict[Arm, dict[str, Contrast]] = {}
    for one in contrasts:
        if one.measured:
            arms.setdefault(one.arm, {})[one.metric.name] = one
    return {**arms}


@dataclass(frozen=True, kw_only=True)
class Selection:
    contrasts: tuple[Contrast, ...] = ()

    def of_kind(self, kind: str) -> dict[Arm, Measured]:
        return by_arm(one for one in self.contrasts if one.kind == kind)


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
    by: Mapping[str, float] = field(default_factory=dict)
    """The share of the CPU time that each of the named processes took on average."""


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
    """The greatest difference of a pixel in the grids, of 255; None without grids, or where no pixels differ."""
    mean: float | None = None
    records: tuple[str, str] = ("", "")
    """The records of bare metal and of the arm whose images differ most, or the first."""


@dataclass(frozen=True, kw_only=True)
class SameWork(Agreement):
    """How the trials of one arm agree with bare metal of their blocks in their work: the least of their agreements."""

    arm: str
    """The target, with its replica, ablation and aggressor."""
    trials: int
    """The trials that were held against bare metal."""
    other: int = 0
    """Those that did other work."""
    rounding: str = ""
    """Why equal work may end in other bits: ``other CPU model, other accelerator``; empty where it may not."""
    image: SameImage | None = None
    """None where no images were generated."""


@dataclass(frozen=True, kw_only=True)
class Group(Selection):
    """The targets of one job and model: alike in everything else."""

    job: ComparedJob
    model: str
    targets: tuple[TargetSummary, ...]
    metrics: tuple[Metric, ...] = METRICS
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
        return frozenset(chain.from_iterable(self.of_kind("target").values()))

    def over_base(self, target: str, metric: Metric) -> Contrast:
        """Return a metric of a target over bare metal, also where it was not measured."""
        wanted = ("target", Arm(*self.key, target), metric)
        return next(contrast for contrast in self.contrasts if (contrast.kind, contrast.arm, contrast.metric) == wanted)

    @property
    def base(self) -> str:
        """Return the target, or the first of two commands, that the others are compared with."""
        return base_of(self.targets[0].target)

    def noise(self, metric: Metric) -> NoiseFloor | None:
        base = self.of_target(self.base).get(metric.name)
        return base.noise if base else None

    def of_target(self, target: str) -> Measured:
        return self.of_kind("target").get(Arm(*self.key, target), {})

    @property
    def deciding(self) -> list[Metric]:
        """The metrics that claims are about: all of a probe, else the first of the scenario's that was measured."""
        candidates = self.job.traits.deciding
        first = next((name for name in candidates if name in self.measured), candidates[0])
        speeds = [one for one in by_ratio(self.metrics) if not one.supporting]
        return [one for one in speeds if one.of_probe or one.name == first]

    @property
    def epoch(self) -> Metric | None:
        """The metric of the time per epoch: of whole ones, of the first, or scaled; None for a job without epochs."""
        measured_first = next((name for name in (EPOCH, FIRST_EPOCH, SCALED_EPOCH) if name in self.measured), None)
        return next((metric for metric in self.metrics if metric.name == measured_first), None)


@dataclass(frozen=True)
class Cost:
    """The cost of one target on the host, per trial; that of the measured steps alone is per ``unit``.

    All-in is everything that serves the target, the job included, by the host's accounting; inside is the job by its
    own. Under emulation the two clocks need not agree. CPU seconds and energy are geometric means over the trials, disk
    bytes arithmetic ones; memory is the highest peak. What is not known is None.
    """

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
    cpu_allocated_s: float | None
    """The CPUs of the envelope over the elapsed time; ``cpu_all_in_s`` is what was used of them."""
    memory_allocated_gib_s: float | None
    memory_used_gib_s: float | None
    """The peak of everything that serves the target, over the elapsed time: at least what was used."""
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PublishedClaim:
    """A claim of a paper, and what tests it; ``published.toml`` explains the fields."""

    sentence: str
    paper: str
    advice: str
    kind: str = ""
    """The kind of contrast that tests it; empty if nothing does."""
    expected: Literal["slower", "equivalent", ""] = ""
    """The verdict that confirms it; empty for a range."""
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
    effect: Effect | None
    text: str
    part: str
    """The target and model that the claim names, of which this is one: ``container, alexnet``."""


@dataclass(frozen=True)
class JudgedClaim:
    """A published claim, and its verdict by the comparisons that it selects."""

    claim: PublishedClaim
    verdict: ClaimVerdict
    evidence: tuple[ClaimEvidence, ...]
    missing: tuple[str, ...]
    """The parts of the claim that were not measured."""

    @property
    def word(self) -> str:
        """Return ``confirmed for container, alexnet; 8 of 9 not measured``, or the verdict."""
        if self.verdict != "confirmed in part":
            return self.verdict
        measured = dict.fromkeys(item.part for item in self.evidence)
        parts = len(measured) + len(self.missing)
        return f"confirmed for {' and '.join(measured)}; {len(self.missing)} of {parts} not measured"


@dataclass(frozen=True, kw_only=True)
class Comparison(Selection):
    """The result of ``compare``: pure data, ready for any renderer."""

    runs: tuple[str, ...]
    groups: tuple[Group, ...]
    warnings: tuple[AnalysisWarning, ...]
    claims: tuple[JudgedClaim, ...] = ()
    """The published claims; empty unless they were judged."""
    terms: Mapping[ComparedJob, Terms] = field(default_factory=dict)
    """How each job is judged; empty if all are judged alike."""
    ratios: Mapping[str, Mapping[str, Mapping[Arm, pd.DataFrame]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """The log ratios of targets and of victims, by kind and the metric's column; see ``contrast_kinds.Ratios``."""
    cells: Mapping[Arm, Sequence[CellTrials]] = field(default_factory=dict, compare=False, repr=False)
    """The cells of each arm whose keys were compared; empty in a comparison of targets."""
    warmup_trials: int = 0
    """The number of trials that are left out of everything because they belong to warm-up blocks."""
    trials: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False, repr=False)
    """The finished trials of the targets as they are, with ``variant``, for figures that show single trials."""
    between: tuple[Contrast, ...] = ()
    """The changes between two runs that contradict each other; empty where their blocks are of one thing."""
    places: tuple[Path, ...] = field(default=(), compare=False)
    """The directories of runs and sweeps as they were named: what a proposed command is given."""

    def of(self, job: ComparedJob) -> "Comparison":
        """Return the results of one job; the warnings stay."""
        trials = self.trials
        if len(trials):
            for name, value in vars(job).items():
                trials = trials[trials[name] == value]
        groups = tuple(group for group in self.groups if group.job == job)
        contrasts = tuple(contrast for contrast in self.contrasts if contrast.job == job)
        return replace(self, trials=trials, groups=groups, contrasts=contrasts)

    @property
    def margins(self) -> tuple[float, ...]:
        """Return the margins by which its verdicts were judged, mostly one; the least of its jobs without a verdict."""
        verdicts = (contrast.verdict for contrast in self.contrasts)
        judged = {verdict.margin for verdict in verdicts if verdict and verdict.margin is not None}
        return tuple(sorted(judged)) or (self.least_margin,)

    @property
    def least_margin(self) -> float:
        """Return the margin of its jobs, the strictest of several."""
        return min((terms.margin for terms in self.terms.values()), default=MARGIN)

    @property
    def requested_margin(self) -> float | None:
        """Return the margin that the comparison was given; None if it took that of the plans, or the usual one."""
        if any(terms.requested for terms in self.terms.values()):
            return self.least_margin
        return None

    @property
    def common_terms(self) -> Terms:
        """Return the terms of contrasts between jobs. Raises RequestError where these were planned differently."""
        margins = {terms.margin for terms in self.terms.values()}
        if len(margins) > 1:
            stated = " and ".join(f"{margin:.3g}" for margin in sorted(margins))
            remedy = f"give the one that counts, such as --margin {max(margins) * 100:g}%"
            raise RequestError(f"jobs that are compared were planned with different margins: {stated}", remedy=remedy)
        if margins:
            return Terms(margins.pop())
        return Terms()

    @property
    def decided(self) -> bool:
        """Whether a run of these went on until it had verdicts."""
        return any(group.circumstances.decided for group in self.groups)

    @property
    def jobs(self) -> tuple[ComparedJob, ...]:
        return tuple(dict.fromkeys(group.job for group in self.groups))

    @property
    def summaries(self) -> tuple[TargetSummary, ...]:
        """Return the targets of all groups."""
        return tuple(chain.from_iterable(group.targets for group in self.groups))


def known_first(known: Sequence[str], name: str) -> tuple[int, int, str]:
    """Return a sort key: names in the order of ``known``, then all others: by the alphabet, numbers by their size."""
    digits = len(name) - len(name.lstrip("0123456789"))
    return (known.index(name) if name in known else len(known), digits, name)
