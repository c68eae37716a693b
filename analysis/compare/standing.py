"""Decide whether a verdict stands. Trials that can decide nothing keep their numbers, and say why there is no verdict.

Three things withhold it: a profile that only proves the path, fewer than ``LEAST_BLOCKS`` blocks, and more disturbed
trials than trimming leaves out at each end (``TRIM``), on the target or on bare metal. The bounds beyond which a trial
counts as disturbed are those of ``warnings.conditions``.
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


def with_standing(comparison: Comparison) -> Comparison:
    """Return the comparison with the reasons on every verdict that its trials do not carry."""
    spoiled: dict[tuple[ComparedJob, str], tuple[str, ...]] = {}
    for group in comparison.groups:
        for summary in group.targets:
            key = group.job, summary.target
            spoiled[key] = tuple(dict.fromkeys((*spoiled.get(key, ()), *_spoiled(group, summary.target))))
    return replace(
        comparison,
        groups=tuple(map(_group, comparison.groups)),
        overall=tuple(
            replace(one, effects=_effects(one.effects, one.job, spoiled.get((one.job, one.target), ())))
            for one in comparison.overall
        ),
        interference=tuple(
            replace(one, effects=_effects(one.effects, one.job), kept=one.kept and _judged(one.kept, one.job))
            for one in comparison.interference
        ),
        isolation=tuple(replace(one, effect=_judged(one.effect, one.job)) for one in comparison.isolation),
    )


def _group(group: Group) -> Group:
    job = group.job
    return replace(
        group,
        targets=tuple(
            replace(
                summary,
                estimates={
                    name: _judged(found, job, _spoiled(group, summary.target))
                    for name, found in summary.estimates.items()
                },
            )
            for summary in group.targets
        ),
        interactions=_effects(group.interactions, job),
        aa=_effects(group.aa, job, _spoiled(group, BASELINE)),
        ablations=tuple(
            replace(one, effects=_effects(one.effects, job, _spoiled(group, one.target))) for one in group.ablations
        ),
    )


def _effects(found: Mapping[str, Effect], job: ComparedJob, spoiled: Iterable[str] = ()) -> dict[str, Effect]:
    return {name: _judged(effect, job, spoiled) for name, effect in found.items()}


def _judged(found: _Judged, job: ComparedJob, spoiled: Iterable[str] = ()) -> _Judged:
    if found.verdict is None:
        return found
    return replace(found, verdict=replace(found.verdict, withheld=(*_of_run(job, found.blocks), *spoiled)))


def _of_run(job: ComparedJob, blocks: int) -> Iterator[str]:
    profile = PROFILES.get(job.profile)
    if profile and not profile.decides:
        yield f"the {profile.name} profile only proves the path"
    if blocks < LEAST_BLOCKS:
        yield f"a verdict takes {LEAST_BLOCKS} blocks"


def _spoiled(group: Group, target: str) -> tuple[str, ...]:
    """Return what has disturbed too many trials of the target, or of bare metal, that a ratio is relative to."""
    by_kind: dict[str, list[tuple[str, Disturbed]]] = defaultdict(list)
    for side in dict.fromkeys((target, BASELINE)):
        for one in group.circumstances.disturbed.get(side, ()):
            if one.spoiled > TRIM * one.of:
                by_kind[one.kind].append((side, one))
    return tuple(map(_reason, by_kind.values()))


def _reason(found: Sequence[tuple[str, Disturbed]]) -> str:
    """Return one kind of disturbance, on one side or on both."""
    spoiled, of = sum(one.spoiled for _, one in found), sum(one.of for _, one in found)
    place, first = found[0]
    where = f" on {place}" if len(found) == 1 else ""
    return f"{first.kind} ({first.bound}) in {spoiled} of {of} trials{where}"
