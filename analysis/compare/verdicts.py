"""The verdicts of contrasts: those of a family, corrected for their number, and whether each stands.

Trials that can decide nothing keep their numbers, and say why a verdict is missing. Five things withhold it: a profile
that measures nothing, fewer than ``LEAST_BLOCKS`` blocks, blocks that depend on each other, stages without a step, and
more disturbed trials than trimming leaves out at each end (``TRIM``), on either side. The bounds beyond which a trial
counts as disturbed are those of ``warnings.conditions``. What failed trials withhold depends on the verdict and on the
margin. This is the only place that decides: comparisons, explanations and the gate ask it, and what it withholds has no
name that anything could show.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from analysis.compare.contrast_kinds import SLOWDOWNS, ContrastKind
from analysis.compare.matching import named
from analysis.compare.pairing import papers_order
from analysis.compare.results import (
    UNMEASURED,
    Circumstances,
    ComparedJob,
    Contrast,
    Disturbed,
    Effect,
    Expected,
    GroupKey,
)
from analysis.load.plans import Terms
from analysis.statistics.counts import MeanDifference, judge_differences
from analysis.statistics.failures import Failures, failing_more, may_hide
from analysis.statistics.margins import WIDER_MARGINS
from analysis.statistics.order import DEPENDENCE_LEVEL, dependence
from analysis.statistics.power import TRIM
from analysis.statistics.ratios import (
    FAILS_MORE,
    SIGNIFICANCE,
    Location,
    Prospect,
    Verdict,
    exp,
    exp_ends,
    holm,
    judge,
)
from analysis.statistics.sequential import LEAST_BLOCKS, level_of
from analysis.statistics.tails import Tail, qualified
from analysis.warnings.conditions import who
from suite.job.profiles import PROFILES
from suite.registries import CONTRASTS
from suite.targets import BASELINE, TARGETS, base_of

TermsByJob = Mapping[ComparedJob, Terms]
FAILED_TRIALS = "failed trials may have been slow ones"
"""The reason that withholds a verdict which the trials that finished cannot carry alone."""
Sides = Mapping[str, Sequence[Disturbed]]
"""What has disturbed the trials of each side of a ratio, by ``on vm`` or ``of the new run``."""


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
        verdicts = _with_wider(members, of_family)
        for (member, level), verdict in zip(family, verdicts, strict=True):
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
            if still_open[index] and verdict and at_wider:
                verdicts[index] = _with_one_wider(verdict, at_wider, wider)
    return verdicts


def _with_one_wider(verdict: Verdict, at_wider: Verdict, wider: float) -> Verdict:
    """Return an undecided verdict with what a wider margin decides, or would decide with more blocks."""
    if at_wider.name == "equivalent":
        return replace(verdict, equivalent_at=wider)
    if at_wider.more_blocks:
        prospect = Prospect(wider, at_wider.more_blocks)
        return replace(verdict, prospects=(prospect, *verdict.prospects))
    return verdict


def _verdicts(family: Sequence[Unjudged], terms: Terms) -> Iterator[Verdict | None]:
    """Yield the verdict of each contrast of a family, with the margin that it was judged by."""
    margin = terms.margin
    locations = [unjudged.location for unjudged in family]
    directions = [unjudged.more_is_faster for unjudged in family]
    level = SIGNIFICANCE
    if terms.looked:
        level = level_of(locations, terms.looked)
    tails = [unjudged.tail for unjudged in family]
    failures = [unjudged.contrast.failures for unjudged in family]
    verdicts = judge(locations, margin, more_is_faster=directions, level=level)
    verdicts = qualified(verdicts, locations, tails, margin)
    verdicts = failing_more(verdicts, failures)
    for of_arm, verdict in zip(failures, verdicts, strict=True):
        carried = _carried(verdict, of_arm, margin)
        yield carried and replace(carried, margin=margin)


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


def withheld(
    profile: str,
    blocks: int,
    *ratios: Sides,
    dependent: float | None = None,
    needs: str = ContrastKind.needs,
) -> tuple[str, ...]:
    """Return why so many blocks decide nothing on one or more ratios; empty where a verdict on them stands.

    ``dependent``: see ``Effect.dependent``. ``needs``: see ``ContrastKind``.
    """
    reasons = []
    if profile in PROFILES and not PROFILES[profile].decides:
        reasons.append(f"{profile} run: not a measurement")
    if blocks < LEAST_BLOCKS:
        reasons.append(needs)
    if dependent is not None:
        reasons.append(f"blocks resemble the one before (p = {dependent:.1g})")
    spoiled = chain.from_iterable(map(_spoiled, ratios))
    return (*reasons, *dict.fromkeys(spoiled))


def sides_of(circumstances: Circumstances, *targets: str, base: str = "") -> Sides:
    """Return the sides of a target's ratio to another, or of a ratio of several targets' ratios."""
    if not base:
        base = base_of(targets[0] if targets else "")
    disturbed = circumstances.disturbed
    sides = dict.fromkeys((*targets, base))
    return {f"on {side}": disturbed.get(side, ()) for side in sides}


def with_standing(
    contrasts: Iterable[Contrast],
    circumstances: Mapping[GroupKey, Circumstances],
) -> tuple[Contrast, ...]:
    """Return contrasts with the reasons in place of every verdict that their trials do not carry."""
    standing = []
    for contrast in contrasts:
        reasons = _reasons(contrast, circumstances)
        if contrast.verdict and reasons:
            verdict = replace(
                contrast.verdict,
                name=None,
                withheld=(*contrast.verdict.withheld, *reasons),
            )
            contrast = replace(contrast, verdict=verdict)
        standing.append(contrast)
    return tuple(standing)


def _reasons(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> list[str]:
    """Return why the trials of a contrast do not carry its verdict."""
    if not contrast.verdict:
        return []
    profile = contrast.job.profile
    if contrast.verdict.name == FAILS_MORE:
        # It speaks of no trial that has finished: only a run that measures nothing cannot show it.
        reasons = withheld(profile, LEAST_BLOCKS)
    else:
        ratios = _sides(contrast, circumstances)
        reasons = withheld(
            profile,
            contrast.blocks,
            *ratios,
            dependent=contrast.dependent,
            needs=CONTRASTS.get(contrast.kind).needs,
        )
    unmeasured = contrast.members.count(UNMEASURED)
    if unmeasured:
        return [*reasons, f"{unmeasured} of {len(contrast.members)} stages had no step"]
    return list(reasons)


def _sides(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> list[Sides]:
    """Return what has disturbed the trials of each ratio that a contrast is made of, as its kind counts it.

    What disturbs a training does not change what it learns: then nothing has.
    """
    kind: ContrastKind = CONTRASTS.get(contrast.kind)
    of_group = circumstances.get(contrast.arm[:2], Circumstances())
    target = contrast.target
    match kind.disturbed_by:
        case "target":
            between_targets = kind.over in TARGETS and kind.over != BASELINE
            base = kind.over if between_targets else ""
            return [sides_of(of_group, target, base=base)]
        case "layers":
            return [sides_of(of_group, *of_group.disturbed)]
        case "cells":
            names = (contrast.arm.cell, contrast.base)
            cells = [", ".join((target, *values)) for values in names]
            return [{f"on {cell}": of_group.disturbed.get(cell, ()) for cell in cells}]
        case "runs":
            return [of_group.disturbed]
        case "":
            return []
    return _sides_of_several(contrast, kind, circumstances)


def _sides_of_several(
    contrast: Contrast,
    kind: ContrastKind,
    circumstances: Mapping[GroupKey, Circumstances],
) -> list[Sides]:
    """Return what has disturbed the trials of a contrast over several models, or between two arms."""
    job = contrast.job
    target = contrast.target
    if kind.disturbed_by == "models":
        models = sorted(contrast.members, key=lambda model: papers_order(job, model, target))
        return [sides_of(circumstances[job, model], target) for model in models]
    if kind.disturbed_by == "alone":
        # Beside an aggressor that has the same CPUs, it is the other work.
        of_job = (of_group for key, of_group in circumstances.items() if key[0] == job)
        return [{f"on {target} alone": of_group.disturbed.get(target, ())} for of_group in of_job]
    arms = []
    for arm in filter(None, (contrast.arm, contrast.over)):
        arms.append(arm._replace(aggressor=""))
        if kind.disturbed_by == "both and base" and not arm.aggressor:
            arms.append(arm._replace(target=BASELINE))
    sides = {}
    for arm in arms:
        disturbed = circumstances[arm[:2]].disturbed
        sides[f"of {named(arm)}"] = disturbed.get(arm.target, ())
    return [sides]


def _spoiled(sides: Sides) -> Iterator[str]:
    """Yield what has disturbed too many trials of a side."""
    by_kind: dict[str, list[tuple[str, Disturbed]]] = defaultdict(list)
    for side, kinds in sides.items():
        for disturbance in kinds:
            if disturbance.spoiled > TRIM * disturbance.of:
                by_kind[disturbance.kind].append((side, disturbance))
    for of_sides in by_kind.values():
        names, disturbances = zip(*of_sides, strict=True)
        spoiled = sum(disturbance.spoiled for disturbance in disturbances)
        trials = sum(disturbance.of for disturbance in disturbances)
        where = "" if len(names) > 1 else f" {names[0]}"
        processes = who(disturbances)
        most = f"; most of it: {processes}" if processes else ""
        first = disturbances[0]
        yield f"{first.finding} ({first.bound} in {spoiled} of {trials} trials{where}{most})"
