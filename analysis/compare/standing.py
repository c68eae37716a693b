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
from itertools import chain

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
    if profile in PROFILES and not PROFILES[profile].decides:
        reasons.append(f"{profile} run: not a measurement")
    if blocks < LEAST_BLOCKS:
        reasons.append(f"at least {LEAST_BLOCKS} blocks are needed")
    if dependent is not None:
        reasons.append(f"blocks resemble the one before (p = {dependent:.1g})")
    spoiled = chain.from_iterable(map(_spoiled, ratios))
    return (*reasons, *dict.fromkeys(spoiled))


def sides_of(circumstances: Circumstances, *targets: str, base: str = "") -> Sides:
    """Return the sides of a target's ratio to another, or of a ratio of several targets' ratios."""
    base = base or base_of(targets[0] if targets else "")
    return {f"on {side}": circumstances.disturbed.get(side, ()) for side in dict.fromkeys((*targets, base))}


def with_standing(
    contrasts: Iterable[Contrast], circumstances: Mapping[GroupKey, Circumstances]
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
    if contrast.verdict.name == FAILS_MORE:
        # It speaks of no trial that has finished: only a run that measures nothing cannot show it.
        reasons = [*withheld(contrast.job.profile, LEAST_BLOCKS)]
    else:
        ratios = _sides(contrast, circumstances)
        reasons = [
            *withheld(
                contrast.job.profile,
                contrast.blocks,
                *ratios,
                dependent=contrast.dependent,
            )
        ]
    unmeasured = contrast.members.count(UNMEASURED)
    if unmeasured:
        reasons.append(f"{unmeasured} of {len(contrast.members)} stages had no step")
    return reasons


def _sides(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> list[Sides]:
    """Return what has disturbed the trials of each ratio that a contrast is made of, as its kind counts it.

    What disturbs a training does not change what it learns: then there is none.
    """
    kind: ContrastKind = CONTRASTS.get(contrast.kind)
    of_group = circumstances.get(contrast.arm[:2], Circumstances())
    target = contrast.target
    match kind.disturbed_by:
        case "target":
            between_targets = kind.over in TARGETS and kind.over != BASELINE
            return [sides_of(of_group, target, base=kind.over if between_targets else "")]
        case "layers":
            return [sides_of(of_group, *of_group.disturbed)]
        case "cells":
            cells = (", ".join((target, *values)) for values in (contrast.arm.cell, contrast.base))
            return [{f"on {cell}": of_group.disturbed.get(cell, ()) for cell in cells}]
        case "runs":
            return [of_group.disturbed]
        case "":
            return []
    return _sides_of_several(contrast, kind, circumstances)


def _sides_of_several(
    contrast: Contrast, kind: ContrastKind, circumstances: Mapping[GroupKey, Circumstances]
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
    return [{f"of {named(arm)}": circumstances[arm[:2]].disturbed.get(arm.target, ()) for arm in arms}]


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
