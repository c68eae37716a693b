"""Allocation: the time that CPUs which follow the stages of a training save, at equal CPU time.

Cells of a sweep that differ only in their CPUs give, block by block, the seconds of every stage at each number. A
*fixed* allocation gives all stages one number, or one mixture of numbers. A *staged* one gives each stage a number.
The ratio is the time of the fastest fixed one over that of the staged one, both with the CPU time (CPUs x seconds) of
the staged one.

For each price of a CPU-second, the numbers with which seconds and price come to least are a corner of the least time
for every CPU time (Everett, Oper. Res. 11 (1963) 399). Between corners this curve is linear and that of fixed
allocations convex, so that the largest ratio is at a corner: no controller that changes CPUs between stages can gain
more.

A plan that is judged by the blocks that chose it gains from their noise. So every third block chooses the plan, and
the numbers that a fixed allocation may mix, and the others judge it: given the plan, their log ratios are
independent, and averaged as all are; see ``statistics.ratios``. Leaving out one block at a time would use more
blocks, but its plans share them: of simulated stages that scale alike, 12 to 28 % then differed in place of 5 %.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.compare.contrast_kinds import ALLOCATION, CHOOSING
from analysis.compare.pairing import job_of, order, substitutes_of
from analysis.compare.results import UNMEASURED, Arm, Circumstances, Comparison, Contrast
from analysis.compare.scaling import SAME
from analysis.compare.verdicts import Unjudged, effect, judged, valued, with_standing
from analysis.load.metrics import METRICS, Metric, with_trait
from analysis.load.records import read_record
from analysis.statistics.ratios import exp, locate
from analysis.warnings.conditions import disturbed
from analysis.warnings.types import AnalysisWarning
from suite.registries import WORKLOADS

_STAGE_TIME = Metric("stage-time", "", "s")
_VARIED = ("cpus", "threads")
"""The settings in which the cells differ: a job has as many threads as CPUs unless it is given others."""
Seconds = npt.NDArray[np.float64]
"""Seconds by number of CPUs and stage; of several blocks, by block first."""
Numbers = npt.NDArray[np.int64]
"""Numbers of CPUs, or places of such numbers: one for each stage in a plan."""


class _Cells(NamedTuple):
    """Trials of one target that differ only in their CPUs."""

    arm: Arm
    trials: pd.DataFrame
    cpus: Numbers
    seconds: Seconds


def with_allocation(comparison: Comparison) -> Comparison:
    """Return a comparison with the contrasts of allocation: none unless cells that differ in CPUs share two blocks."""
    by_arm = {cells.arm: cells for cells in _cells(comparison.trials)}
    contrasts: list[Contrast] = []
    gains = []
    for arm in sorted(by_arm, key=order):
        cells = by_arm[arm]
        contrasts += _stage_times(cells)
        gains.append(_gain(cells))
    for gain in judged(gains, comparison.common_terms):
        spoiled = disturbed(by_arm[gain.arm].trials, ["target", "cpus"])
        by_cpus = {f"with cpus={cpus}": kinds for (_, cpus), kinds in spoiled.items()}
        circumstances = Circumstances(disturbed=by_cpus)
        contrasts += with_standing([gain], {gain.arm[:2]: circumstances})
    return replace(comparison, contrasts=(*comparison.contrasts, *contrasts))


def _cells(trials: pd.DataFrame) -> Iterator[_Cells]:
    if trials.empty:
        return
    normalised = with_trait(trials, "normalised")
    probes = with_trait(trials, "probes")
    trainings = trials[normalised & ~probes]
    shared_settings = trainings["settings"].map(lambda key: str(key.without(_VARIED)))
    alike = trainings.assign(alike=shared_settings.astype(str))
    for _, cells in alike.groupby([*SAME, "alike"], dropna=False, observed=True):
        cpus = np.unique(cells["cpus"].to_numpy(dtype=np.int64))
        if len(cpus) < 2:
            continue
        seconds = _seconds(cells, cpus)
        if len(seconds) > 1:
            first_trial = cells.iloc[0]
            yield _Cells(
                arm=_arm_of(first_trial),
                trials=cells,
                cpus=cpus,
                seconds=np.array(seconds),
            )


def _arm_of(trial: pd.Series) -> Arm:
    """Return the arm of a trial, without the settings in which the cells differ."""
    settings = str(trial["variant"]).split(", ")
    shared = []
    for setting in settings:
        name, _, _ = setting.partition("=")
        if name not in _VARIED:
            shared.append(setting)
    job = replace(job_of(trial), variant=", ".join(shared))
    return Arm(job, str(trial["model"]), str(trial["target"]))


def _seconds(cells: pd.DataFrame, cpus: Numbers) -> list[list[Seconds]]:
    """Return the seconds of every stage at each number of CPUs, for the blocks of a sweep that have all numbers."""
    blocks: dict[tuple[str, int], dict[int, list[Seconds]]] = defaultdict(lambda: defaultdict(list))
    columns = cells[["sweep", "block", "cpus", "path", "model", "image_px"]]
    for sweep, block, number, path, model, image_px in columns.itertuples(index=False, name=None):
        record = read_record(path)
        if isinstance(record, AnalysisWarning) or not record.steps:
            continue
        steps_s = record.steps.elapsed_s
        if any(steps_s):
            stages = stage_seconds(steps_s, model, image_px)
            blocks[sweep, block][number].append(stages)
    seconds = []
    for _, by_number in sorted(blocks.items()):
        if len(by_number) == len(cpus):
            seconds.append([np.mean(by_number[number], axis=0) for number in cpus])
    return seconds


def stage_seconds(steps_s: Sequence[float], model: str, image_px: float) -> Seconds:
    """Return the seconds of each stage of a job, as its workload divides the steps; one for an unknown workload."""
    if model not in WORKLOADS:
        return np.array([np.sum(steps_s)])
    workload = WORKLOADS.get(model)
    px = int(np.nan_to_num(image_px))
    seconds = np.zeros(workload.stages(px))
    for number, step_s in enumerate(steps_s, start=1):
        progress = number / len(steps_s)
        stage = workload.stage_at(progress, px)
        seconds[stage] += step_s
    return seconds


def _stage_times(cells: _Cells) -> Iterator[Contrast]:
    """Yield the time of every stage, and of all, at each number of CPUs, and its ratio to that at the smallest."""
    all_stages = cells.seconds.sum(axis=2, keepdims=True)
    seconds = np.concatenate([cells.seconds, all_stages], axis=2)
    measured = np.where(seconds > 0, seconds, np.nan)  # a stage without a step is absent
    logs = np.log(measured)
    notes = substitutes_of(cells.trials)
    stages = [*range(1, logs.shape[2]), "all"]
    for column, stage in enumerate(stages):
        names = [(f"stage={stage}", f"cpus={number}") for number in cells.cpus]
        at_smallest = logs[:, 0, column]
        for row, name in enumerate(names):
            at_number = logs[:, row, column]
            contrast = Contrast(
                kind=ALLOCATION.name,
                arm=cells.arm._replace(cell=name),
                metric=_STAGE_TIME,
                base=names[0],
                notes=notes,
                **valued(locate(at_number)),
            )
            ratio = locate(at_number - at_smallest) if row else None
            if ratio:
                contrast = replace(contrast, **vars(effect(ratio)))
            yield contrast


def _gain(cells: _Cells) -> Unjudged:
    has_steps = cells.seconds > 0
    measured = np.asarray(has_steps.all(axis=(0, 1)))
    of_measured = cells.seconds[:, :, measured]
    plan, logs = log_ratios(of_measured, cells.cpus)
    members = np.full(len(measured), UNMEASURED, dtype=object)
    members[measured] = [str(number) for number in plan]
    gain = Contrast(
        kind=ALLOCATION.name,
        arm=cells.arm,
        metric=METRICS[0],
        by_block=tuple(map(exp, logs)),
        members=tuple(members),
        notes=substitutes_of(cells.trials),
    )
    return Unjudged(gain, locate(logs), cells.arm.job)


def log_ratios(seconds: Seconds, cpus: Numbers) -> tuple[Numbers, list[float]]:
    """Return the CPUs of each stage that every third of two blocks or more chooses, and the others' log ratios."""
    choosing = seconds[CHOOSING].mean(axis=0)
    judging = np.delete(seconds, CHOOSING, axis=0)
    plan, _ = best_plan(choosing, cpus)
    fixed = _fixed(choosing, cpus)
    ratios = [_ratio(plan, block, cpus, fixed) for block in judging]
    return cpus[plan], list(map(math.log, ratios))


def best_plan(seconds: Seconds, cpus: Numbers) -> tuple[Numbers, float]:
    """Return the plan with the largest ratio, as the place of each stage's number in ``cpus``, and that ratio."""
    fixed = _fixed(seconds, cpus)
    plans = list(_corners(seconds, cpus))
    ratios = [_ratio(plan, seconds, cpus, fixed) for plan in plans]
    best = int(np.argmax(ratios))
    return plans[best], ratios[best]


def _ratio(plan: Numbers, seconds: Seconds, cpus: Numbers, fixed: Numbers) -> float:
    """Return the time of a mixture of the numbers at ``fixed`` over that of a plan, with the CPU time of the plan.

    With less CPU time than any mixture has, it is the cheapest, and with more the dearest one.
    """
    stages = np.arange(len(plan))
    staged_s = seconds[plan, stages]
    staged_cpu_s = cpus[plan] @ staged_s
    fixed_s = seconds.sum(axis=1)[fixed]
    fixed_cpu_s = cpus[fixed] * fixed_s
    cheapest_first = np.argsort(fixed_cpu_s)
    mixed_s = np.interp(
        staged_cpu_s,
        fixed_cpu_s[cheapest_first],
        fixed_s[cheapest_first],
    )
    return float(mixed_s / staged_s.sum())


def _fixed(seconds: Seconds, cpus: Numbers) -> Numbers:
    """Return the places of the numbers whose mixtures take the least time for each CPU time."""
    of_one_stage = seconds.sum(axis=1, keepdims=True)
    corners = list(_corners(of_one_stage, cpus))
    return np.unique(corners)


def _corners(seconds: Seconds, cpus: Numbers) -> Iterator[Numbers]:
    """Yield the plans of least time for each CPU time: those of the prices between which a stage changes its number."""
    spent_s = cpus[:, None] * seconds
    saved_s = seconds[:, None] - seconds
    more_s = spent_s - spent_s[:, None]
    dearer_s = np.where(more_s > 0, more_s, np.inf)
    prices_of_change = (saved_s / dearer_s).clip(min=0)
    changes = np.unique(prices_of_change)
    edges = np.append(changes, 2 * changes[-1] + 1)
    between = (edges[:-1] + edges[1:]) / 2
    for price in between:
        cost = seconds + price * spent_s
        yield np.argmin(cost, axis=0)
