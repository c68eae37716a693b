"""Decide whether a verdict stands. Trials that can decide nothing keep their numbers, and say why there is no verdict.

Four things withhold it: a profile that only proves the path, fewer than ``LEAST_BLOCKS`` blocks, blocks that depend on
each other, and more disturbed trials than trimming leaves out at each end (``TRIM``), on either side. The bounds beyond
which a trial counts as disturbed are those of ``warnings.conditions``. This is the only place that decides:
comparisons, explanations and the gate ask it, and what it withholds has no name that anything could show.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from analysis.compare.results import ComparedJob, Comparison, Disturbed, Effect, Estimate, Group
from analysis.statistics.power import TRIM
from analysis.statistics.sequential import LEAST_BLOCKS
from suite.job.profiles import PROFILES
from suite.targets import BASELINE

_Judged = TypeVar("_Judged", Effect, Estimate)
Sides = Mapping[str, Sequence[Disturbed]]
"""What has disturbed the trials of each side of a ratio, by ``on vm`` or ``of the new run``."""


def withheld(profile: str, blocks: int, sides: Sides) -> tuple[str, ...]:
    """Return why so many blocks of two sides decide nothing; empty where a verdict on them stands."""
    return (*_of_run(profile, blocks), *spoiled(sides))


def sides_of(group: Group, *targets: str) -> Sides:
    """Return the sides of a target's ratio to bare metal, or of a ratio of several targets' ratios."""
    return {f"on {side}": group.circumstances.disturbed.get(side, ()) for side in dict.fromkeys((*targets, BASELINE))}


def with_standing(comparison: Comparison) -> Comparison:
    """Return the comparison with the reasons in place of every verdict that its trials do not carry."""
    over_models: dict[tuple[ComparedJob, str], dict[str, None]] = defaultdict(dict)
    alone: dict[tuple[ComparedJob, str], dict[str, None]] = defaultdict(dict)
    for group in comparison.groups:
        for summary in group.targets:
            over_models[group.job, summary.target] |= dict.fromkeys(spoiled(sides_of(group, summary.target)))
        # Beside an aggressor that has the same CPUs, it is the other work.
        for target, found in group.circumstances.disturbed.items():
            alone[group.job, target] |= dict.fromkeys(spoiled({f"on {target} alone": found}))
    return replace(
        comparison,
        groups=tuple(map(_group, comparison.groups)),
        overall=tuple(
            replace(one, effects=_effects(one.effects, one.job, over_models[one.job, one.target]))
            for one in comparison.overall
        ),
        interference=tuple(
            replace(
                one,
                effects=_effects(one.effects, one.job, alone[one.job, one.target]),
                kept=one.kept and _judged(one.kept, one.job),
            )
            for one in comparison.interference
        ),
        isolation=tuple(
            replace(one, effect=_judged(one.effect, one.job, alone[one.job, one.target]))
            for one in comparison.isolation
        ),
        # What disturbs a training does not change what it learns.
        quality=tuple(replace(one, estimates=_effects(one.estimates, one.job)) for one in comparison.quality),
    )


def _group(group: Group) -> Group:
    job = group.job
    reasons = {side: spoiled(sides_of(group, side)) for side in (BASELINE, *(one.target for one in group.targets))}
    return replace(
        group,
        targets=tuple(
            replace(one, estimates=_effects(one.estimates, job, reasons[one.target])) for one in group.targets
        ),
        interactions=_effects(group.interactions, job, spoiled(sides_of(group, *reasons))),
        aa=_effects(group.aa, job, reasons[BASELINE]),
        ablations=tuple(
            replace(one, effects=_effects(one.effects, job, reasons.get(one.target, ()))) for one in group.ablations
        ),
    )


def _effects(found: Mapping[str, _Judged], job: ComparedJob, reasons: Iterable[str] = ()) -> dict[str, _Judged]:
    return {name: _judged(effect, job, reasons) for name, effect in found.items()}


def _judged(found: _Judged, job: ComparedJob, reasons: Iterable[str] = ()) -> _Judged:
    of_order: tuple[str, ...] = (
        () if found.dependent is None else (f"blocks resemble the one before (p = {found.dependent:.1g})",)
    )
    why = (*_of_run(job.profile, found.blocks), *of_order, *reasons)
    return replace(found, verdict=replace(found.verdict, name=None, withheld=why)) if found.verdict and why else found


def _of_run(name: str, blocks: int) -> Iterator[str]:
    profile = PROFILES.get(name)
    if profile and not profile.decides:
        yield f"the {profile.name} profile only proves the path"
    if blocks < LEAST_BLOCKS:
        yield f"a verdict takes {LEAST_BLOCKS} blocks"


def spoiled(sides: Sides) -> tuple[str, ...]:
    """Return what has disturbed too many trials of a side."""
    by_kind: dict[str, list[tuple[str, Disturbed]]] = defaultdict(list)
    for side, disturbed in sides.items():
        for one in disturbed:
            if one.spoiled > TRIM * one.of:
                by_kind[one.kind].append((side, one))
    return tuple(map(_reason, by_kind.values()))


def _reason(found: Sequence[tuple[str, Disturbed]]) -> str:
    """Return one kind of disturbance, on one side or on both."""
    trials, of = sum(one.spoiled for _, one in found), sum(one.of for _, one in found)
    place, first = found[0]
    where = f" {place}" if len(found) == 1 else ""
    return f"{first.finding} ({first.bound}) in {trials} of {of} trials{where}"
