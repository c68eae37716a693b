"""Allocation: the time that CPUs which follow the stages of a training save, at equal CPU time.

Trials that agree in all but the number of CPUs give, block by block, the seconds of every stage at each number. A
*fixed* allocation gives all stages the same: one number, or two of them in the same mixture throughout. A *staged* one
gives each stage a number. The ratio is the time of the fastest fixed allocation over that of the staged one, both with
the CPU time (CPUs x seconds) of the staged one; the gain is the ratio less one.

The least time of a stage for a CPU time is on the lower convex hull of its points. Taking the segments of all hulls in
the order of seconds saved per CPU-second gives the least time of all stages for every CPU time: the continuous knapsack
of Dantzig, Oper. Res. 5 (1957) 266. Between the corners of this curve it is linear and the time of a fixed allocation
convex, so that the largest ratio over all CPU times is at a corner, where each stage has one number. No controller that
changes CPUs between stages can gain more; a change takes no time here.

A plan that is judged by the blocks that chose it gains from their noise. So every third block chooses the plan, and the
numbers that a fixed allocation may mix, and the others judge it: given the plan, their ratios are independent, and
their logarithms are averaged as all log ratios are; see ``statistics.ratios``. Leaving out one block at a time would
use more blocks, but its plans share them: of simulated stages that scale alike, 12 to 28 % then differed in place of
5 %. Stages that scale alike, and a job of one stage, have a ratio of 1.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.compare.contrasts import ALLOCATION, Unjudged, effect, judged, order, valued
from analysis.compare.pairing import job_of, substitutes_of
from analysis.compare.results import Arm, Circumstances, Comparison, Contrast
from analysis.compare.scaling import SAME
from analysis.compare.standing import with_standing
from analysis.load.metrics import METRICS, Metric, with_trait
from analysis.load.records import read_record
from analysis.statistics.ratios import exp, locate
from analysis.warnings.conditions import disturbed
from analysis.warnings.types import AnalysisWarning
from suite.registries import WORKLOADS

STAGE_TIME = Metric("stage-time", "", "s")
_VARIED = ("cpus", "threads")
"""The settings in which the trials may differ: a job has as many threads as CPUs unless it is given others."""
Seconds = npt.NDArray[np.float64]
"""Seconds by number of CPUs and stage; of several blocks, by block first."""


class _Cells(NamedTuple):
    """Trials of one target that agree in all but their CPUs."""

    arm: Arm
    trials: pd.DataFrame
    cpus: npt.NDArray[np.int64]
    seconds: Seconds


def with_allocation(comparison: Comparison) -> Comparison:
    """Return a comparison with the contrasts of allocation: none unless cells that differ in CPUs share two blocks."""
    every = sorted(_cells(comparison.trials), key=lambda cells: order(cells.arm))
    contrasts = [contrast for cells in every for contrast in _stage_times(cells)]
    by_arm = {cells.arm: cells for cells in every}
    for contrast in judged([_gain(cells) for cells in every], comparison.margin):
        spoiled = disturbed(by_arm[contrast.arm].trials, ["target", "cpus"])
        around = Circumstances(disturbed={f"with cpus={key[1]}": kinds for key, kinds in spoiled.items()})
        contrasts += with_standing([contrast], {contrast.arm[:2]: around})
    return replace(comparison, contrasts=(*comparison.contrasts, *contrasts))


def _cells(trials: pd.DataFrame) -> Iterator[_Cells]:
    """Yield the trials of every target with several numbers of CPUs that share two blocks or more."""
    if trials.empty:
        return
    trials = trials[with_trait(trials, "normalised") & ~with_trait(trials, "probes")]
    alike = trials.assign(alike=trials["settings"].map(lambda key: str(key.without(_VARIED))).astype(str))
    for _, cells in alike.groupby([*SAME, "alike"], dropna=False, observed=True):
        cpus = np.unique(cells["cpus"].to_numpy(dtype=np.int64))
        seconds = _seconds(cells, list(cpus)) if len(cpus) > 1 else []
        if len(seconds) > 1:
            first = cells.sort_values("cpus").iloc[0]
            kept = (part for part in str(first["variant"]).split(", ") if part.partition("=")[0] not in _VARIED)
            job = replace(job_of(first), variant=", ".join(kept))
            yield _Cells(Arm(job, str(first["model"]), str(first["target"])), cells, cpus, np.array(seconds))


def _seconds(cells: pd.DataFrame, cpus: Sequence[int]) -> list[list[Seconds]]:
    """Return the seconds of every stage at each number of CPUs, for the blocks of a sweep that have all numbers."""
    blocks: dict[tuple[str, int], dict[int, list[Seconds]]] = defaultdict(lambda: defaultdict(list))
    columns = (cells[name] for name in ("sweep", "block", "cpus", "path", "model", "image_px"))
    for sweep, block, number, path, model, image_px in zip(*columns, strict=True):
        record = read_record(path)
        if not isinstance(record, AnalysisWarning) and record.steps:
            seconds = stage_seconds(record.steps.elapsed_s, model, None if pd.isna(image_px) else int(image_px))
            blocks[sweep, block][number].append(seconds)
    return [
        [np.mean(times[number], axis=0) for number in cpus]
        for _, times in sorted(blocks.items())
        if len(times) == len(cpus)
    ]


def stage_seconds(steps_s: Sequence[float], model: str, image_px: int | None) -> Seconds:
    """Return the seconds of each stage of a job, as its workload divides the steps."""
    if model not in WORKLOADS:
        return np.array([np.sum(steps_s)])
    workload, n = WORKLOADS.get(model), len(steps_s)
    stages = [workload.stage_at((index + 1) / n, image_px) for index in range(n)]
    return np.bincount(stages, weights=steps_s, minlength=workload.stages(image_px))


def _stage_times(cells: _Cells) -> Iterator[Contrast]:
    """Yield the time of every stage, and of all, at each number of CPUs; over that at the smallest number."""
    stages = [f"stage={number}" for number in range(1, cells.seconds.shape[2] + 1)] + ["stage=all"]
    seconds = np.concatenate([cells.seconds, cells.seconds.sum(axis=2, keepdims=True)], axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):  # a stage without a step is absent
        logs = np.log(seconds)
        ratios = logs - logs[:, :1]
    for column, stage in enumerate(stages):
        for row, number in enumerate(cells.cpus):
            arm = cells.arm._replace(cell=(stage, f"cpus={number}"))
            place = locate(ratios[:, row, column]) if row else None
            known = {**(vars(effect(place)) if place else {}), **valued(locate(logs[:, row, column]))}
            notes = substitutes_of(cells.trials[cells.trials["cpus"] == number])
            base = (stage, f"cpus={cells.cpus[0]}")
            yield Contrast(kind=ALLOCATION.name, arm=arm, metric=STAGE_TIME, base=base, notes=notes, **known)


def _gain(cells: _Cells) -> Unjudged:
    """Return the time of the best fixed allocation over that of the best staged one, at equal CPU time."""
    chosen = cells.seconds[1::3].mean(axis=0)
    plan, _ = best_plan(chosen, cells.cpus)
    judging = (block for number, block in enumerate(cells.seconds) if number % 3 != 1)
    logs = [np.log(ratio_of(plan, block, cells.cpus, _fixed(chosen, cells.cpus))) for block in judging]
    contrast = Contrast(
        kind=ALLOCATION.name,
        arm=cells.arm,
        metric=METRICS[0],
        by_block=tuple(map(exp, logs)),
        members=tuple(map(str, cells.cpus[plan])),
        notes=substitutes_of(cells.trials),
    )
    return Unjudged(contrast, locate(logs), cells.arm.job)


def best_plan(seconds: Seconds, cpus: npt.NDArray[np.int64]) -> tuple[list[int], float]:
    """Return the plan with the largest ratio, as the place of each stage's number in ``cpus``, and the ratio."""
    fixed = _fixed(seconds, cpus)
    plans = [(plan, ratio_of(plan, seconds, cpus, fixed)) for plan in _plans(seconds, cpus)]
    return max(plans, key=lambda plan: plan[1])


def ratio_of(plan: Sequence[int], seconds: Seconds, cpus: npt.NDArray[np.int64], fixed: Sequence[int]) -> float:
    """Return the time of a fixed allocation over that of a plan, with the CPU time of the plan.

    The allocation mixes ``fixed``, places in ``cpus``. With less CPU time than it can have, it takes the least, with
    more the most: what a plan spares or adds there is no gain of the plan.
    """
    staged_s = seconds[plan, np.arange(len(plan))]
    fixed_s = seconds.sum(axis=1)[fixed]
    spent = cpus[fixed] * fixed_s
    by_spent = np.argsort(spent)
    return float(np.interp(cpus[plan] @ staged_s, spent[by_spent], fixed_s[by_spent]) / staged_s.sum())


def _plans(seconds: Seconds, cpus: npt.NDArray[np.int64]) -> Iterator[list[int]]:
    """Yield the corners of the least time for each CPU time, from the least CPU time on."""
    frontiers = [_frontier(of_stage, cpus) for of_stage in seconds.T]
    plan = [frontier[0] for frontier in frontiers]
    yield plan
    steps = [
        (_saved(of_stage, cpus, *pair), stage, pair[1])
        for stage, (of_stage, frontier) in enumerate(zip(seconds.T, frontiers, strict=True))
        for pair in pairwise(frontier)
    ]
    for _, stage, level in sorted(steps, key=lambda step: -step[0]):
        plan = [*plan[:stage], level, *plan[stage + 1 :]]
        yield plan


def _fixed(seconds: Seconds, cpus: npt.NDArray[np.int64]) -> list[int]:
    return _frontier(seconds.sum(axis=1), cpus)


def _frontier(seconds: Seconds, cpus: npt.NDArray[np.int64]) -> list[int]:
    """Return the numbers on the lower convex hull of seconds over CPU time, from the least CPU time on."""
    hull: list[int] = []
    for level in sorted(range(len(cpus)), key=lambda level: (cpus[level] * seconds[level], seconds[level])):
        if hull and seconds[level] >= seconds[hull[-1]]:
            continue
        while len(hull) > 1 and _saved(seconds, cpus, *hull[-2:]) <= _saved(seconds, cpus, hull[-1], level):
            hull.pop()
        hull.append(level)
    return hull


def _saved(seconds: Seconds, cpus: npt.NDArray[np.int64], fewer: int, more: int) -> float:
    """Return the seconds that each further CPU-second saves between two numbers of CPUs."""
    spent = cpus * seconds
    return float((seconds[fewer] - seconds[more]) / (spent[more] - spent[fewer]))
