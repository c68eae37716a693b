"""Contrasts: the ratio of every arm to what its kind divides it by, formed by one function from one table of kinds.

The verdicts of a kind are a family per job and metric: what else is asked of the records changes no answer.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

import numpy as np
import pandas as pd

from analysis.compare.contrast_kinds import (
    AGAIN,
    BASE,
    KEPT,
    MODELS,
    RATIO,
    STEAL,
    TARGET,
    ByColumn,
    ContrastKind,
    Failed,
    Members,
    Ratios,
    Sides,
    victims,
)
from analysis.compare.pairing import (
    ROW,
    failed_by_block,
    grouped,
    order,
    pair,
    substitutes_of,
)
from analysis.compare.results import Arm, Contrast
from analysis.compare.validity import marks_of, usable
from analysis.compare.verdicts import (
    TermsByJob,
    Unjudged,
    effect,
    judged,
    judged_counts,
    unlooked,
)
from analysis.load.metrics import Metric, by_ratio, metrics_of, with_trait
from analysis.statistics.counts import inside_blocks
from analysis.statistics.failures import NONE_FAILED, Failures, count_failures
from analysis.statistics.ratios import NoiseFloor, exp, locate
from analysis.statistics.tails import Tail, tail_of
from analysis.warnings.findings import refusals
from analysis.warnings.types import AnalysisWarning
from suite.targets import BASES

Floors = Mapping[tuple[Arm, str], NoiseFloor]
Machines = Mapping[tuple[str, int], str]
"""The machine of each run and block; empty if all ran on one."""


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


def failures_of(failed: Failed) -> dict[Arm, Failures]:
    return {arm: count_failures(blocks["own"].to_numpy(), blocks["base"].to_numpy()) for arm, blocks in failed.items()}


def _terms_for(kind: ContrastKind, terms: TermsByJob) -> TermsByJob:
    if kind in (TARGET, AGAIN, MODELS):
        return terms
    return unlooked(terms)


def machines_of(trials: pd.DataFrame) -> Machines:
    if trials["hostname"].nunique() < 2:
        return {}
    blocks = trials.dropna(subset=["hostname"]).drop_duplicates(["run_id", "block"])
    names = blocks[["run_id", "block", "hostname"]].itertuples(index=False, name=None)
    return {(str(run), int(block)): str(name) for run, block, name in names}


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
