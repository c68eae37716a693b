"""Decide whether a verdict stands. Trials that can decide nothing keep their numbers, and say why there is no verdict.

Five things withhold it here: a profile that measures nothing, fewer than ``LEAST_BLOCKS`` blocks, blocks that depend on
each other, stages without a step, and more disturbed trials than trimming leaves out at each end (``TRIM``), on either
side. The bounds beyond which a trial counts as disturbed are those of ``warnings.conditions``. What failed trials
withhold, ``contrasts`` has found before: that depends on the verdict and on the margin. This is the only place that
decides: comparisons, explanations and the gate ask it, and what it withholds has no name that anything could show.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from analysis.compare.contrasts import ContrastKind
from analysis.compare.matching import named
from analysis.compare.pairing import papers_order
from analysis.compare.results import UNMEASURED, Circumstances, Contrast, Disturbed, GroupKey
from analysis.statistics.power import TRIM
from analysis.statistics.ratios import FAILS_MORE
from analysis.statistics.sequential import LEAST_BLOCKS
from analysis.warnings.conditions import who
from suite.job.profiles import PROFILES
from suite.registries import CONTRASTS
from suite.targets import BASELINE, TARGETS, base_of

Sides = Mapping[str, Sequence[Disturbed]]
"""What has disturbed the trials of each side of a ratio, by ``on vm`` or ``of the new run``."""


def withheld(profile: str, blocks: int, *ratios: Sides, dependent: float | None = None) -> tuple[str, ...]:
    """Return why so many blocks decide nothing on one or more ratios; empty where a verdict on them stands.

    ``dependent``: see ``Effect.dependent``.
    """
    reasons = []
    if (named := PROFILES.get(profile)) and not named.decides:
        reasons.append(f"{profile} run: not a measurement")
    if blocks < LEAST_BLOCKS:
        reasons.append(f"at least {LEAST_BLOCKS} blocks are needed")
    if dependent is not None:
        reasons.append(f"blocks resemble the one before (p = {dependent:.1g})")
    return (*reasons, *dict.fromkeys(why for sides in ratios for why in _spoiled(sides)))


def sides_of(around: Circumstances, *targets: str, base: str = "") -> Sides:
    """Return the sides of a target's ratio to another, or of a ratio of several targets' ratios."""
    base = base or base_of(targets[0] if targets else "")
    return {f"on {side}": around.disturbed.get(side, ()) for side in dict.fromkeys((*targets, base))}


def with_standing(
    contrasts: Iterable[Contrast], circumstances: Mapping[GroupKey, Circumstances]
) -> tuple[Contrast, ...]:
    """Return contrasts with the reasons in place of every verdict that their trials do not carry."""
    standing = []
    for contrast in contrasts:
        if verdict := contrast.verdict:
            ratios = _sides(contrast, circumstances)
            why = withheld(contrast.job.profile, contrast.blocks, *ratios, dependent=contrast.dependent)
            if verdict.name == FAILS_MORE:
                # It speaks of no trial that has finished: only a run that measures nothing cannot show it.
                why = withheld(contrast.job.profile, LEAST_BLOCKS)
            unmeasured = contrast.members.count(UNMEASURED)
            if unmeasured:
                why = (*why, f"{unmeasured} of {len(contrast.members)} stages had no step")
            if why:
                contrast = replace(contrast, verdict=replace(verdict, name=None, withheld=(*verdict.withheld, *why)))
        standing.append(contrast)
    return tuple(standing)


def _sides(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> list[Sides]:
    """Return what has disturbed the trials of each ratio that a contrast is made of, as its kind counts it.

    What disturbs a training does not change what it learns: then there is none.
    """
    kind: ContrastKind = CONTRASTS.get(contrast.kind)
    around, target = circumstances.get(contrast.arm[:2], Circumstances()), contrast.target
    match kind.disturbed_by:
        case "target":
            between_targets = kind.over in TARGETS and kind.over != BASELINE
            return [sides_of(around, target, base=kind.over if between_targets else "")]
        case "layers":
            return [sides_of(around, *around.disturbed)]
        case "cells":
            cells = (", ".join((target, *values)) for values in (contrast.arm.cell, contrast.base))
            return [{f"on {cell}": around.disturbed.get(cell, ()) for cell in cells}]
        case "runs":
            return [around.disturbed]
        case "":
            return []
    return _sides_of_several(contrast, kind, circumstances)


def _sides_of_several(
    contrast: Contrast, kind: ContrastKind, circumstances: Mapping[GroupKey, Circumstances]
) -> list[Sides]:
    """Return what has disturbed the trials of a contrast over several models, or between two arms."""
    job, target = contrast.job, contrast.target
    if kind.disturbed_by == "models":
        models = sorted(contrast.members, key=lambda model: papers_order(job, model, target))
        return [sides_of(circumstances[job, model], target) for model in models]
    if kind.disturbed_by == "alone":
        # Beside an aggressor that has the same CPUs, it is the other work.
        of_job = (around.disturbed for key, around in circumstances.items() if key[0] == job)
        return [{f"on {target} alone": disturbed.get(target, ())} for disturbed in of_job]
    arms = []
    for arm in filter(None, (contrast.arm, contrast.over)):
        arms.append(arm._replace(aggressor=""))
        if kind.disturbed_by == "both and base" and not arm.aggressor:
            arms.append(arm._replace(target=BASELINE))
    return [{f"of {named(arm)}": circumstances[arm[:2]].disturbed.get(arm.target, ()) for arm in arms}]


def _spoiled(sides: Sides) -> Iterator[str]:
    """Yield what has disturbed too many trials of a side."""
    by_kind: dict[str, list[tuple[str, Disturbed]]] = defaultdict(list)
    for side, disturbed in sides.items():
        for one in disturbed:
            if one.spoiled > TRIM * one.of:
                by_kind[one.kind].append((side, one))
    for (side, first), *others in by_kind.values():
        spoiled, of = (sum(getattr(one, name) for _, one in [(side, first), *others]) for name in ("spoiled", "of"))
        where = "" if others else f" {side}"
        by = who([first, *(one for _, one in others)])
        named = f"; most of it: {by}" if by else ""
        yield f"{first.finding} ({first.bound} in {spoiled} of {of} trials{where}{named})"
