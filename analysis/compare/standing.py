"""Decide whether a verdict stands. Trials that can decide nothing keep their numbers, and say why there is no verdict.

Four things withhold it: a profile that measures nothing, fewer than ``LEAST_BLOCKS`` blocks, blocks that depend on
each other, and more disturbed trials than trimming leaves out at each end (``TRIM``), on either side. The bounds beyond
which a trial counts as disturbed are those of ``warnings.conditions``. This is the only place that decides:
comparisons, explanations and the gate ask it, and what it withholds has no name that anything could show.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from analysis.compare.contrasts import ContrastKind
from analysis.compare.matching import named
from analysis.compare.pairing import papers_order
from analysis.compare.results import Arm, Circumstances, Contrast, Disturbed, GroupKey
from analysis.statistics.power import TRIM
from analysis.statistics.sequential import LEAST_BLOCKS
from suite.job.profiles import PROFILES
from suite.registries import CONTRASTS
from suite.targets import BASELINE, TARGETS

Sides = Mapping[str, Sequence[Disturbed]]
"""What has disturbed the trials of each side of a ratio, by ``on vm`` or ``of the new run``."""


def withheld(profile: str, blocks: int, sides: Sides) -> tuple[str, ...]:
    """Return why so many blocks of two sides decide nothing; empty where a verdict on them stands."""
    return (*_of_run(profile, blocks), *spoiled(sides))


def sides_of(around: Circumstances, *targets: str, base: str = BASELINE) -> Sides:
    """Return the sides of a target's ratio to another, or of a ratio of several targets' ratios."""
    return {f"on {side}": around.disturbed.get(side, ()) for side in dict.fromkeys((*targets, base))}


def with_standing(
    contrasts: Iterable[Contrast], circumstances: Mapping[GroupKey, Circumstances]
) -> tuple[Contrast, ...]:
    """Return contrasts with the reasons in place of every verdict that their trials do not carry."""
    return tuple(
        replace(contrast, verdict=replace(contrast.verdict, name=None, withheld=reasons))
        if contrast.verdict and (reasons := tuple(_reasons(contrast, circumstances)))
        else contrast
        for contrast in contrasts
    )


def _reasons(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> Iterator[str]:
    yield from _of_run(contrast.job.profile, contrast.blocks)
    if contrast.dependent is not None:
        yield f"blocks resemble the one before (p = {contrast.dependent:.1g})"
    yield from dict.fromkeys(reason for sides in _sides(contrast, circumstances) for reason in spoiled(sides))


def _sides(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> list[Sides]:
    """Return what has disturbed the trials of each ratio that a contrast is made of, as its kind counts it.

    What disturbs a training does not change what it learns: then there is none.
    """
    kind: ContrastKind = CONTRASTS.get(contrast.kind)
    return _SIDES[kind.disturbed_by](contrast, circumstances) if kind.disturbed_by else []


def _of_target(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> list[Sides]:
    kind: ContrastKind = CONTRASTS.get(contrast.kind)
    base = kind.over if kind.over in TARGETS else BASELINE
    return [sides_of(circumstances[contrast.job, contrast.model], contrast.target, base=base)]


def _of_layers(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> list[Sides]:
    around = circumstances[contrast.job, contrast.model]
    return [sides_of(around, *around.disturbed)]


def _of_models(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> list[Sides]:
    job, target = contrast.job, contrast.target
    models = sorted(contrast.members, key=lambda model: papers_order(job, model, target))
    return [sides_of(circumstances[job, model], target) for model in models]


def _alone(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> list[Sides]:
    # Beside an aggressor that has the same CPUs, it is the other work.
    of_job = (around.disturbed for (job, _), around in circumstances.items() if job == contrast.job)
    return [{f"on {contrast.target} alone": disturbed.get(contrast.target, ())} for disturbed in of_job]


def _of_both(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> list[Sides]:
    return [{f"of {named(arm)}": circumstances[arm[:2]].disturbed.get(arm.target, ()) for arm in _arms(contrast)}]


def _of_cells(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> list[Sides]:
    disturbed = circumstances[contrast.job, contrast.model].disturbed
    cells = (", ".join((contrast.target, *values)) for values in (contrast.arm.cell, contrast.base))
    return [{f"on {cell}": disturbed.get(cell, ()) for cell in cells}]


def _of_runs(contrast: Contrast, circumstances: Mapping[GroupKey, Circumstances]) -> list[Sides]:
    return [circumstances[contrast.job, contrast.model].disturbed]  # which are by the run


_SIDES = {
    "target": _of_target,
    "layers": _of_layers,
    "models": _of_models,
    "alone": _alone,
    "both": _of_both,
    "both and base": _of_both,
    "cells": _of_cells,
    "runs": _of_runs,
}


def _arms(contrast: Contrast) -> Iterator[Arm]:
    """Yield the arms whose trials, as they are, a contrast between two is made of."""
    for arm in filter(None, (contrast.arm, contrast.over)):
        yield arm._replace(aggressor="")
        if CONTRASTS.get(contrast.kind).disturbed_by == "both and base" and not arm.aggressor:
            yield arm._replace(target=BASELINE)


def _of_run(name: str, blocks: int) -> Iterator[str]:
    profile = PROFILES.get(name)
    if profile and not profile.decides:
        yield f"{profile.name} run: not a measurement"
    if blocks < LEAST_BLOCKS:
        yield f"at least {LEAST_BLOCKS} blocks are needed"


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
    return f"{first.finding} ({first.bound} in {trials} of {of} trials{where})"
