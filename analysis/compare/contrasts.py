"""Contrasts: the ratio of every arm to what its kind divides it by, formed by one function from one table of kinds.

A kind is a member of ``suite.registries.CONTRASTS``. It names the trials of its two sides, which are paired inside a
block, and what they may differ in; or the kind whose ratios it combines. The verdicts of a kind are a family per job
and metric: what else is asked of the records changes no answer.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from analysis.compare.pairing import (
    ROW,
    baseline,
    failed_by_block,
    filled,
    grouped,
    pair,
    papers_order,
    plain,
    substitutes_of,
)
from analysis.compare.results import Arm, ComparedJob, Contrast, Effect, Expected, known_first
from analysis.compare.validity import marks_of, usable
from analysis.load.metrics import METRICS, Metric, by_ratio, metrics_of, with_trait
from analysis.load.plans import Terms
from analysis.statistics.counts import MeanDifference, inside_blocks, judge_differences
from analysis.statistics.failures import NONE_FAILED, Failures, count_failures, failing_more, may_hide
from analysis.statistics.margins import WIDER_MARGINS
from analysis.statistics.order import DEPENDENCE_LEVEL, dependence
from analysis.statistics.ratios import SIGNIFICANCE, Location, NoiseFloor, Verdict, exp, exp_ends, holm, judge, locate
from analysis.statistics.sequential import level_of
from analysis.statistics.tails import Tail, qualified, tail_of
from analysis.statistics.two_samples import LEAST_RUNS, shift
from analysis.warnings.findings import refusals
from analysis.warnings.types import AnalysisWarning
from suite.job.ablations import facts_that_may_differ
from suite.job.sharing import aggressor_names
from suite.registries import CONTRASTS
from suite.targets import BASELINE, BASES

RATIO = "ratio"
BASE = "base"
Ratios = Mapping[Arm, pd.DataFrame]
"""Log ratios, each with the run and the block as its index, in a column ``RATIO``; the logarithm of what they are
relative to is in ``BASE``, which a ratio of ratios does not have."""
Sweeps = Mapping[str, str]
"""The sweep of each run: its cells share their blocks, so what spans runs is indexed by the sweep and the block."""
ByColumn = Mapping[str, Ratios]
"""Those of several metrics, by the metric's column."""
Members = Mapping[Arm, tuple[Arm, ...]]
"""What each ratio is the mean over."""
TermsByJob = Mapping[ComparedJob, Terms]
Floors = Mapping[tuple[Arm, str], NoiseFloor]
Failed = Mapping[Arm, pd.DataFrame]
"""Whether the trial of each side failed, by run and block; without the arms of which no trial failed."""
Machines = Mapping[tuple[str, int], str]
"""The machine of each run and block; empty if all ran on one."""
FAILED_TRIALS = "failed trials may have been slow ones"
"""The reason that withholds a verdict which the trials that finished cannot carry alone."""
SHARED_METRICS = (
    *METRICS[:2],
    Metric("step-p99", "step_p99_s", "s"),
    Metric("cpu-time", "serving_cpu_s", "s"),
    Metric("llc-misses", "llc_load_misses", ""),
)
"""The metrics of a victim. A CPU time that grows less than elapsed means waiting for CPUs; one that grows with it means
slower computing."""
KEPT = Metric("aggressor-speed", "aggressor_beside_per_s", "", "more")
STEAL = Metric("steal-share", "steal_s", "")


@dataclass(frozen=True)
class Sides:
    """Trials, and those of the same block (and of the same values of ``same``) that they are divided by."""

    own: pd.DataFrame
    base: pd.DataFrame
    same: Sequence[str] = ()
    ablation: str = ""
    aggressor: str = ""
    may_differ: Collection[str] = ()
    """The facts that may differ, because they are what the ratio is to show."""


@dataclass(frozen=True)
class ContrastKind:
    name: str
    sides: Callable[[pd.DataFrame], Iterable[Sides]] | None = None
    """None for one that combines the ratios of others, or whose sides share no block."""
    over: str = BASELINE
    """What its trials are divided by: a target, or words."""
    metrics: tuple[Metric, ...] = ()
    """Its own metrics; empty for all that were measured."""
    disturbed_by: Literal["target", "layers", "models", "alone", "both", "both and base", "cells", "runs", ""] = (
        "target"
    )
    """Whose disturbances withhold its verdicts; see ``standing``."""
    title: str = ""
    """The title of its table; empty for its name."""


def _again(ok: pd.DataFrame) -> Iterator[Sides]:
    base = baseline(ok)
    if (base["replica"] == 1).any():
        yield Sides(base[base["replica"] == 1], base[base["replica"] == 0])


def _ablations(ok: pd.DataFrame) -> Iterator[Sides]:
    undisturbed = ok[ok["aggressor"].isna()]
    for name in map(str, undisturbed["ablation"].dropna().unique()):
        switched = undisturbed[undisturbed["ablation"] == name]
        yield Sides(switched, plain(ok), ["target"], name, "", facts_that_may_differ(name))


def _aggressors(ok: pd.DataFrame) -> Iterator[Sides]:
    trials = victims(ok)
    for (ablation, aggressor), beside in trials[trials["aggressor"] != ""].groupby(["ablation", "aggressor"]):
        alone = trials[(trials["aggressor"] == "") & (trials["ablation"] == ablation)]
        yield Sides(beside, alone, ["target"], str(ablation), str(aggressor))


def victims(ok: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of victims; empty names stand for no ablation and no aggressor. Empty if none was disturbed."""
    trials = filled(ok[~with_trait(ok, "normalised")])
    return trials if (trials["aggressor"] != "").any() else trials[:0]


TARGET = ContrastKind("target", lambda ok: [Sides(plain(ok), baseline(ok))])
AGAIN = ContrastKind("again", _again)
ABLATION = ContrastKind(
    "ablation",
    _ablations,
    "the same target as it is",
    title="switched",
)
AGGRESSOR = ContrastKind(
    "aggressor",
    _aggressors,
    "the same target alone",
    SHARED_METRICS,
    "alone",
)
LAYERS = ContrastKind("layers", over="container times vm", disturbed_by="layers")
MODELS = ContrastKind("models", metrics=METRICS, disturbed_by="models")
ISOLATION = ContrastKind(
    "isolation",
    over="the same target alone",
    metrics=METRICS[:1],
    disturbed_by="alone",
)
STRONG = ContrastKind("strong", over="the smallest number of workers", disturbed_by="")
WEAK = ContrastKind("weak", over=STRONG.over, disturbed_by="")
DIVISION = ContrastKind(
    "division",
    over="the first way to divide the work",
    disturbed_by="",
)
ALLOCATION = ContrastKind(
    "allocation",
    over="equal CPUs for all stages, with equal CPU time",
    disturbed_by="runs",
)
JOBS = ContrastKind("jobs", over="the same target in another job", disturbed_by="both")
SLOWDOWNS = ContrastKind(
    "slow-downs",
    over="the slow-down of another arm or metric",
    disturbed_by="both and base",
)
"""A slow-down is a ratio of times, or the inverse of a ratio of rates."""
BY = ContrastKind("by", over="the first value of the keys", disturbed_by="cells")
MACHINE = ContrastKind(
    "machine",
    over="the median of the other machines",
    disturbed_by="cells",
)
RUN = ContrastKind("run", over="older runs", disturbed_by="runs")
RELATIVE = ContrastKind(
    "run-relative",
    over=f"the ratio to {BASELINE} in older runs",
    disturbed_by="runs",
)


def tabled_kinds() -> list[ContrastKind]:
    """Return the kinds with a table each: ablations, then those of other packages that ``bench doctor`` can load."""
    names = []
    for name in CONTRASTS.added():
        if name not in CONTRASTS.failures():
            names.append(name)
    return [ABLATION, *(replace(CONTRASTS.get(name), name=name) for name in names)]


@dataclass(frozen=True)
class Formed:
    """The ratios of a kind, and what they are made of."""

    ratios: ByColumn
    failed: Failed
    notes: Mapping[Arm, tuple[str, ...]]
    pairs: pd.DataFrame
    refused: tuple[AnalysisWarning, ...]


def form(
    kind: ContrastKind,
    trials: pd.DataFrame,
    metrics: Sequence[Metric],
    *,
    force: bool = False,
    also: Sequence[str] = (),
) -> Formed:
    """Pair the two sides of a kind by block, and form every ratio that validity allows of trials that are ok."""
    chosen = kind.metrics or metrics
    ratios: dict[str, dict[Arm, pd.DataFrame]] = {metric.column: {} for metric in chosen}
    of_ratios = {metric.column for metric in by_ratio(chosen)}
    failed: dict[Arm, pd.DataFrame] = {}
    notes: dict[Arm, dict[str, None]] = defaultdict(dict)
    refused: list[AnalysisWarning] = []
    pairs = pd.DataFrame()
    all_sides = kind.sides(trials) if kind.sides else ()
    for sides in all_sides:
        finished = sides.own[sides.own["ok"]]
        joined = pair(
            finished,
            sides.base[sides.base["ok"]],
            [*ratios, *also],
            same=sides.same,
            by_difference={*ratios} - of_ratios,
        )
        pairs, bad = usable(joined, force=force, switched=sides.may_differ)
        compared = pairs
        if kind is TARGET:
            # The pairs of bare metal with itself only count its blocks.
            compared = pairs[~pairs["target"].isin(BASES)]
        if not sides.same:
            # Jobs that share the machine are compared with themselves alone, and on bare metal they may have all CPUs.
            bad = bad[with_trait(bad, "normalised")]
        refused += refusals(bad, kind.over, sides.ablation)
        for column, of_metric in all_ratios(compared, chosen, sides.ablation, sides.aggressor).items():
            ratios[column] |= of_metric
        failed |= _failed_of(kind, sides)
        if kind not in (TARGET, AGAIN):  # whose notes are in the summaries
            for arm, texts in _notes_of(sides, finished, pairs):
                notes[arm] |= dict.fromkeys(filter(None, texts))
    notes_by_arm = {arm: tuple(texts) for arm, texts in notes.items()}
    return Formed(ratios, failed, notes_by_arm, pairs, tuple(refused))


def _failed_of(kind: ContrastKind, sides: Sides) -> Failed:
    failed = {}
    for (job, model, target), blocks in failed_by_block(sides.own, sides.base, same=sides.same):
        if kind is not TARGET or target not in BASES:
            failed[Arm(job, model, target, sides.ablation, sides.aggressor)] = blocks
    return failed


def _notes_of(sides: Sides, trials: pd.DataFrame, pairs: pd.DataFrame) -> Iterator[tuple[Arm, tuple[str, ...]]]:
    """Yield substitutes and changes of the trials of each arm, then the marks of its pairs."""
    for (job, model, target), rows in grouped(trials):
        arm = Arm(job, model, target, sides.ablation, sides.aggressor)
        yield arm, (*substitutes_of(rows), *rows["changed"].unique())
    for (job, model, target), rows in grouped(pairs):
        arm = Arm(job, model, target, sides.ablation, sides.aggressor)
        yield arm, (*marks_of(rows), *rows["zeros"].unique())


def all_ratios(
    pairs: pd.DataFrame, metrics: Sequence[Metric], ablation: str = "", aggressor: str = ""
) -> dict[str, dict[Arm, pd.DataFrame]]:
    """Return the log ratios of every arm of the pairs, in the blocks in which each metric was measured."""
    ratios: dict[str, dict[Arm, pd.DataFrame]] = {metric.column: {} for metric in metrics}
    indexes: dict[tuple[object, ...], pd.MultiIndex] = {}
    for (job, model, target), rows in grouped(pairs):
        # One object for all arms with the same blocks: what is put together then needs no alignment.
        index = pd.MultiIndex.from_frame(rows[["run_id", "block"]])
        blocks = indexes.setdefault((*index,), index)
        for metric in metrics_of(metrics, job.scenario, model):
            measured = rows[metric.column].notna().to_numpy()
            if measured.any():
                values = {
                    RATIO: rows[metric.column].to_numpy(),
                    BASE: rows[f"{metric.column}_base"].to_numpy(),
                }
                frame = pd.DataFrame(values, index=blocks)
                arm = Arm(job, model, target, ablation, aggressor)
                ratios[metric.column][arm] = frame if measured.all() else frame[measured]
    return ratios


def contrasts(
    kind: ContrastKind,
    ratios: ByColumn,
    metrics: Sequence[Metric],
    terms: TermsByJob,
    *,
    members: Members = MappingProxyType({}),
    notes: Mapping[Arm, tuple[str, ...]] = MappingProxyType({}),
    floors: Floors = MappingProxyType({}),
    failed: Failed = MappingProxyType({}),
    machines: Machines = MappingProxyType({}),
) -> list[Contrast]:
    """Return the contrast of every ratio with its verdict by the terms of its job, in the order of the paper.

    Those of a metric and job are one family. Combined ratios have the notes of their ``members``, and all others their
    own and the noise floor of their base. ``failed`` holds the blocks of trials that have no value, ``machines`` the
    machine of each block.
    """
    failures = failures_of(failed)
    unjudged = []
    counted: list[Contrast] = []
    for metric in kind.metrics or metrics:
        if metric.by_difference:
            counted += _of_counts(kind, ratios[metric.column], metric, notes)
            continue
        for arm, of_arm in ratios[metric.column].items():
            parts = members.get(arm, ())
            contrast = Contrast(
                kind=kind.name,
                arm=arm,
                metric=metric,
                by_block=tuple(map(exp, of_arm[RATIO].dropna())),
                noise=floors.get((arm._replace(aggressor=""), metric.name)),
                failures=failures.get(arm),
                members=tuple(map(_name_of_part, parts)),
                notes=_notes_of_parts(parts or (arm,), notes),
            )
            location = locate(of_arm[RATIO].to_numpy())
            if location:
                tail = _tail(of_arm, metric, failures.get(arm, NONE_FAILED), machines)
                unjudged.append(Unjudged(contrast, location, (arm.job, metric.column), tail))
    with_verdicts = judged(unjudged, _terms_for(kind, terms))
    return sorted((*with_verdicts, *counted), key=lambda contrast: order(contrast.arm))


def _name_of_part(part: Arm) -> str:
    return f"{part.model} beside {part.aggressor}" if part.aggressor else part.model


def _notes_of_parts(parts: Sequence[Arm], notes: Mapping[Arm, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the notes of all these arms, each once."""
    of_parts = chain.from_iterable(notes.get(part, ()) for part in parts)
    return tuple(dict.fromkeys(of_parts))


def _tail(of_arm: pd.DataFrame, metric: Metric, failures: Failures, machines: Machines) -> Tail | None:
    """Return the tail of an arm by its blocks; None for a ratio of ratios, which has none."""
    if BASE not in of_arm:
        return None
    machine_of_block = []
    if machines:
        machine_of_block = [machines.get(block, "") for block in of_arm.index]
    return tail_of(
        of_arm[RATIO].to_numpy(),
        of_arm[BASE].to_numpy(),
        more_is_faster=metric.more_is_faster,
        failures=failures,
        machines=machine_of_block,
    )


def _of_counts(
    kind: ContrastKind, differences: Ratios, metric: Metric, notes: Mapping[Arm, tuple[str, ...]]
) -> Iterator[Contrast]:
    """Yield the contrast of every difference of a metric that can be zero; those of a job are one family."""
    counted = []
    for arm, blocks in differences.items():
        difference = inside_blocks(blocks[RATIO].to_numpy())
        if difference:
            contrast = Contrast(
                kind=kind.name,
                arm=arm,
                metric=metric,
                difference=difference,
                notes=notes.get(arm, ()),
            )
            counted.append(contrast)
    yield from judged_counts(counted, lambda contrast: contrast.job)


def judged_counts(contrasts: Iterable[Contrast], family: Callable[[Contrast], object]) -> Iterator[Contrast]:
    """Yield contrasts, those that are differences with their verdicts; each family is corrected for its number."""
    families: dict[object, list[tuple[Contrast, MeanDifference]]] = defaultdict(list)
    for contrast in contrasts:
        if contrast.difference:
            families[family(contrast)].append((contrast, contrast.difference))
        else:
            yield contrast
    for members in families.values():
        first, _ = members[0]
        differences = [difference for _, difference in members]
        verdicts = judge_differences(differences, more_is_better=first.metric.more_is_faster)
        for (contrast, difference), verdict in zip(members, verdicts, strict=True):
            yield replace(contrast, blocks=difference.n, verdict=verdict)


def failures_of(failed: Failed) -> dict[Arm, Failures]:
    return {arm: count_failures(blocks["own"].to_numpy(), blocks["base"].to_numpy()) for arm, blocks in failed.items()}


def order(arm: Arm) -> tuple[object, ...]:
    """Return a sort key: by job, then models and targets in the order of the paper, ablation and aggressor."""
    return (*papers_order(*arm[:3]), arm.ablation, known_first(aggressor_names(), arm.aggressor))


class Unjudged(NamedTuple):
    """A contrast before it is judged, and its log ratio; None if it has none."""

    contrast: Contrast
    location: Location | None
    family: object = None
    """The comparisons for whose number its verdict is corrected."""
    tail: Tail | None = None

    @property
    def more_is_faster(self) -> bool:
        return self.contrast.metric.more_is_faster and self.contrast.kind != SLOWDOWNS.name


def judged(unjudged: Sequence[Unjudged], terms: Terms | TermsByJob) -> Iterator[Contrast]:
    """Yield the contrasts of each family with their verdicts; dependence is corrected for all of them.

    ``terms`` are those of all, or of each job; a family is then of one job.
    """
    levels = holm([dependence(member.contrast.by_block) for member in unjudged])
    families: dict[object, list[tuple[Unjudged, float]]] = defaultdict(list)
    for member, level in zip(unjudged, levels, strict=True):
        families[member.family].append((member, level))
    for family in families.values():
        members = [member for member, _ in family]
        of_family = terms if isinstance(terms, Terms) else terms[members[0].contrast.job]
        for (member, level), verdict in zip(family, _with_wider(members, of_family), strict=True):
            fields: dict[str, Any] = {}
            if member.location:
                fields |= vars(effect(member.location, verdict, member.tail))
            fields["by_block"] = member.contrast.by_block
            fields["dependent"] = level if level <= DEPENDENCE_LEVEL else None
            yield replace(member.contrast, **fields)


def _with_wider(family: Sequence[Unjudged], terms: Terms) -> list[Verdict | None]:
    """Return the verdicts of one family at its margin; what is undecided there is judged at wider ones, too.

    Each verdict is the one that a comparison at the wider margin gives. Only ``equivalent`` can come of it.
    """
    verdicts = list(_verdicts(family, terms))
    # The widest first, so that the least that decides remains.
    for wider in reversed(WIDER_MARGINS):
        still_open = [verdict is not None and verdict.name == "undecided" for verdict in verdicts]
        if wider <= terms.margin or not any(still_open):
            break
        for index, at_wider in enumerate(_verdicts(family, replace(terms, margin=wider))):
            verdict = verdicts[index]
            if still_open[index] and verdict and at_wider and at_wider.name == "equivalent":
                verdicts[index] = replace(verdict, equivalent_at=wider)
    return verdicts


def _verdicts(family: Sequence[Unjudged], terms: Terms) -> Iterator[Verdict | None]:
    """Yield the verdict of each contrast of a family, with the margin that it was judged by."""
    margin = terms.margin
    locations = [unjudged.location for unjudged in family]
    directions = [unjudged.more_is_faster for unjudged in family]
    level = SIGNIFICANCE
    if terms.looked:
        level = level_of(locations, terms.looked)
    verdicts = judge(locations, margin, more_is_faster=directions, level=level)
    verdicts = qualified(
        verdicts,
        locations,
        [unjudged.tail for unjudged in family],
        margin,
    )
    failures = [unjudged.contrast.failures for unjudged in family]
    for of_arm, verdict in zip(failures, failing_more(verdicts, failures), strict=True):
        carried = _carried(verdict, of_arm, margin)
        yield carried and replace(carried, margin=margin)


def _terms_for(kind: ContrastKind, terms: TermsByJob) -> TermsByJob:
    if kind in (TARGET, AGAIN, MODELS):
        return terms
    return unlooked(terms)


def unlooked(terms: TermsByJob) -> TermsByJob:
    """Return the terms of ratios at which no stop rule looks."""
    return {job: replace(of_job, looked=None) for job, of_job in terms.items()}


def _carried(verdict: Verdict | None, failures: Failures | None, margin: float) -> Verdict | None:
    """Return the verdict, withheld if failed trials may have been so slow that it is false."""
    if verdict is None or failures is None:
        return verdict
    if verdict.name is None or not may_hide(verdict.name, failures, margin):
        return verdict
    counts = f"{failures.of_own} of {failures.n} on the target, {failures.of_base or 'none'} on the other side"
    return replace(verdict, name=None, withheld=(f"{FAILED_TRIALS} ({counts})",))


def effect(location: Location, verdict: Verdict | None = None, tail: Tail | None = None) -> Effect:
    """Return the effect that a mean of log ratios stands for."""
    whole = Effect(
        ratio=location.ratio,
        blocks=location.n,
        interval=location.ratio_interval,
        verdict=verdict,
    )
    if not tail:
        return whole
    expected = Expected(exp(tail.expected.centre), exp_ends(tail.expected.interval))
    return replace(whole, expected=expected, slow=tail.slow)


def valued(location: Location | None, *, by_difference: bool = False) -> dict[str, Any]:
    """Return the fields of a contrast that the mean of an arm's own logarithms, or numbers, stands for."""
    if location is None:
        return {}
    if by_difference:
        return {"value": location.centre, "value_interval": location.interval}
    return {"value": location.ratio, "value_interval": location.ratio_interval}


def failed_together(members: Members, failed: Failed, sweeps: Sweeps) -> Failed:
    """Return the blocks in which a trial of any member failed, for the mean over each arm's members."""
    joined: dict[Arm, pd.DataFrame] = {}
    for whole, arms in members.items():
        frames = [failed[arm] for arm in arms if arm in failed]
        if frames:
            blocks = pd.concat(frames)
            joined[whole] = blocks.groupby(_sweeps_and_blocks(blocks.index, sweeps)).any()
    return joined


def _sweeps_and_blocks(index: pd.Index, sweeps: Sweeps) -> list[Any]:
    """Return the sweep and the block of each entry, by which frames of several runs are grouped."""
    of_runs = index.get_level_values(0).map(sweeps)
    return [of_runs.to_numpy(), index.get_level_values(1).to_numpy()]


def layers(ratios: ByColumn) -> ByColumn:
    """Return log(container-vm / (container x vm)) of each job and model, in the blocks that hold all four targets."""
    combined: dict[str, dict[Arm, pd.DataFrame]] = {column: {} for column in ratios}
    for column, of_metric in ratios.items():
        for arm, both in of_metric.items():
            container = of_metric.get(arm._replace(target="container"))
            vm = of_metric.get(arm._replace(target="vm"))
            if arm.target == "container-vm" and container is not None and vm is not None:
                interaction = both[RATIO] - container[RATIO] - vm[RATIO]
                combined[column][arm] = interaction.dropna().to_frame()
    return combined


def layer_members(combined: ByColumn) -> Members:
    """Return the targets that the interaction of each job and model is made of."""
    members = {}
    for arm in chain.from_iterable(combined.values()):
        members[arm] = (arm, arm._replace(target="container"), arm._replace(target="vm"))
    return members


def combined(kind: ContrastKind, ratios: ByColumn, sweeps: Sweeps) -> tuple[ByColumn, Members]:
    """Return the mean ratios of each job and target over its arms, which are as they are, and what these are.

    ``MODELS`` is over all models, of several; ``ISOLATION`` over every victim beside an aggressor that all targets of
    the job have. The arms of a block of the run, or of the sweep, are averaged first, so the block stays the sample and
    what they share is kept; blocks that lack an arm are left out, so that all weigh the same.
    """
    columns_of_kind = [metric.column for metric in kind.metrics]
    members = dict(_members(kind, chain.from_iterable(ratios[column] for column in columns_of_kind)))
    # A mean over pairs of jobs is no time of a queue: it has no expected ratio.
    columns = [RATIO] if kind is ISOLATION else [RATIO, BASE]
    means: dict[str, dict[Arm, pd.DataFrame]] = {column: {} for column in columns_of_kind}
    for column, (whole, arms) in product(means, members.items()):
        of_metric = ratios[column]
        if all(arm in of_metric for arm in arms):
            frames = [by_sweep(of_metric[arm][columns], sweeps) for arm in arms]
            joined = pd.concat(frames, axis=1, join="inner").dropna()
            by_name = {name: joined.loc[:, joined.columns == name].mean(axis=1) for name in frames[0].columns}
            means[column][whole] = pd.DataFrame(by_name)
    return means, members


def _members(kind: ContrastKind, ratios: Iterable[Arm]) -> Iterator[tuple[Arm, tuple[Arm, ...]]]:
    """Yield each job and target with the arms that its mean is over, in the order of their names."""
    arms: dict[Arm, dict[tuple[str, str], Arm]] = defaultdict(dict)
    for arm in ratios:
        if not arm.ablation:
            arms[Arm(arm.job, "", arm.target)][arm.model, arm.aggressor] = arm
    for whole, by_name in arms.items():
        names = set(by_name)
        if kind is ISOLATION:
            of_targets = [others for target, others in arms.items() if target.job == whole.job]
            names.intersection_update(*of_targets)
        if len(names) > (kind is MODELS):
            yield whole, tuple(by_name[name] for name in sorted(names))


def sweeps_of(trials: pd.DataFrame) -> Sweeps:
    return dict(trials[["run_id", "sweep"]].drop_duplicates("run_id").itertuples(index=False))


def machines_of(trials: pd.DataFrame) -> Machines:
    if trials["hostname"].nunique() < 2:
        return {}
    blocks = trials.dropna(subset=["hostname"]).drop_duplicates(["run_id", "block"])
    names = blocks[["run_id", "block", "hostname"]].itertuples(index=False, name=None)
    return {(str(run), int(block)): str(name) for run, block, name in names}


def by_sweep(values: pd.DataFrame, sweeps: Sweeps) -> pd.DataFrame:
    """Return values of runs and blocks by sweep and block; the mean where two cells measured the same."""
    if len({*sweeps.values()}) == len(sweeps) and values.index.is_unique and values.index.is_monotonic_increasing:
        return values
    return values.groupby(_sweeps_and_blocks(values.index, sweeps)).mean()


class Side(NamedTuple):
    """One side of a contrast between two arms: the logarithms of its values, or slow-downs, by run and block."""

    arm: Arm
    metric: Metric
    logs: pd.DataFrame


def between(kind: str, pairs: Sequence[tuple[Side, Side]], sweeps: Sweeps, terms: Terms) -> list[Contrast]:
    """Return the contrast of every side over another, ``(base, own)``; the verdicts of all are one family.

    Sides that share blocks, of a run or of a sweep, are divided block by block, all others as two samples.
    """
    unjudged = []
    for base, own in pairs:
        base_logs = by_sweep(base.logs, sweeps)[RATIO].dropna()
        own_logs = by_sweep(own.logs, sweeps)[RATIO].dropna()
        _, ratio = over(own_logs, base_logs)
        contrast = Contrast(kind=kind, arm=own.arm, over=base.arm, metric=own.metric)
        unjudged.append(Unjudged(contrast, ratio))
    return [*judged(unjudged, terms)]


def over(
    own: "pd.Series[float]", base: "pd.Series[float]", least: int = 1
) -> tuple["pd.Series[float]", Location | None]:
    """Return the blocks that both sides share, own less base, and the logarithm of the ratio.

    The ratio is that inside these blocks, if they are ``least`` or more; else that between the runs of the two sides,
    without shared blocks. The logarithms are by run, or sweep, and block.
    """
    pairs = (own - base).dropna()
    if len(pairs) >= least:
        return pairs, locate(list(pairs))
    return pairs[:0], shift(by_run(base), by_run(own))


def unknown_spread(contrasts: Iterable[Contrast]) -> Iterator[AnalysisWarning]:
    """Yield one warning where runs are compared and too few show how runs of the same differ."""
    if any(contrast.runs and contrast.spread is None for contrast in contrasts):
        yield AnalysisWarning(
            "spread-unknown",
            "the spread between runs is unknown: the intervals hold for these runs alone",
            f"measure {LEAST_RUNS} runs or more at each value, on other days",
        )


def by_run(logs: "pd.Series[float]") -> list[list[float]]:
    """Return the logarithms of each run, or sweep."""
    return [list(of_run) for _, of_run in logs.groupby(level=0)]


def beside(ok: pd.DataFrame) -> Iterator[Contrast]:
    """Yield, of the trials of victims, the speed that aggressors keep over theirs before, and the shares of steal.

    A share is that of the envelope's CPU time which a hypervisor below this machine took: alone, and beside.
    """
    trials = victims(ok)
    shares = trials["steal_s"] / (trials["interval_s"] * trials["cpus"])
    before_per_s = trials["aggressor_before_per_s"]
    kept = trials["aggressor_beside_per_s"] / before_per_s.where(before_per_s > 0)
    for key, rows in grouped(trials, [*ROW, "ablation", "aggressor"]):
        arm = Arm(*key)
        of_arm = kept[rows.index].dropna()
        if (of_arm == 0).any():  # an aggressor that came to a halt has no logarithm, and counts
            yield Contrast(
                kind="kept",
                arm=arm,
                metric=KEPT,
                ratio=float(of_arm.mean()),
                blocks=len(of_arm),
            )
        else:
            location = locate(np.log(of_arm))
            if location:
                yield Contrast(kind="kept", arm=arm, metric=KEPT, **vars(effect(location)))
        measured = shares[rows.index].dropna()
        if len(measured):
            yield Contrast(
                kind="steal",
                arm=arm,
                metric=STEAL,
                value=float(measured.mean()),
                trials=len(measured),
            )
