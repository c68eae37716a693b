"""Ratios that are made of those of several arms, models or runs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from typing import Any, NamedTuple

import pandas as pd

from analysis.compare.contrast_kinds import (
    BASE,
    ISOLATION,
    MODELS,
    RATIO,
    ByColumn,
    ContrastKind,
    Failed,
    Members,
    Sweeps,
)
from analysis.compare.results import Arm, Contrast
from analysis.compare.verdicts import Unjudged, judged
from analysis.load.metrics import Metric
from analysis.load.plans import Terms
from analysis.statistics.ratios import Location, locate
from analysis.statistics.two_samples import LEAST_RUNS, shift
from analysis.warnings.types import AnalysisWarning


def failed_together(members: Members, failed: Failed, sweeps: Sweeps) -> Failed:
    """Return the blocks in which a trial of any member failed, for the mean over each arm's members."""
    joined: dict[Arm, pd.DataFrame] = {}
    for whole, arms in members.items():
        frames = [failed[arm] for arm in arms if arm in failed]
        if frames:
            blocks = pd.concat(frames)
            keys = _sweeps_and_blocks(blocks.index, sweeps)
            joined[whole] = blocks.groupby(keys).any()
    return joined


def _sweeps_and_blocks(index: pd.Index, sweeps: Sweeps) -> list[Any]:
    """Return the sweep and the block of each entry, by which frames of several runs are grouped."""
    runs = index.get_level_values(0)
    blocks = index.get_level_values(1)
    return [runs.map(sweeps).to_numpy(), blocks.to_numpy()]


def layers(ratios: ByColumn) -> ByColumn:
    """Return log(container-vm / (container x vm)) of each job and model, in the blocks that hold all four targets."""
    combined: dict[str, dict[Arm, pd.DataFrame]] = {column: {} for column in ratios}
    for column, of_metric in ratios.items():
        for arm, both in of_metric.items():
            if arm.target != "container-vm":
                continue
            container = of_metric.get(arm._replace(target="container"))
            vm = of_metric.get(arm._replace(target="vm"))
            if container is not None and vm is not None:
                interaction = both[RATIO] - container[RATIO] - vm[RATIO]
                combined[column][arm] = interaction.dropna().to_frame()
    return combined


def layer_members(combined: ByColumn) -> Members:
    """Return the targets that the interaction of each job and model is made of."""
    members = {}
    for arm in chain.from_iterable(combined.values()):
        container = arm._replace(target="container")
        vm = arm._replace(target="vm")
        members[arm] = (arm, container, vm)
    return members


def combined(kind: ContrastKind, ratios: ByColumn, sweeps: Sweeps) -> tuple[ByColumn, Members]:
    """Return the mean ratios of each job and target over its arms, which are as they are, and what these are.

    ``MODELS`` is over all models, of several; ``ISOLATION`` over every victim beside an aggressor that all targets of
    the job have. The arms of a block of the run, or of the sweep, are averaged first, so the block stays the sample and
    what they share is kept; blocks that lack an arm are left out, so that all weigh the same.
    """
    columns_of_kind = [metric.column for metric in kind.metrics]
    measured = chain.from_iterable(ratios[column] for column in columns_of_kind)
    members = dict(_members(kind, measured))
    # A mean over pairs of jobs is not the time of a queue: it has no expected ratio.
    columns = [RATIO] if kind is ISOLATION else [RATIO, BASE]
    means: dict[str, dict[Arm, pd.DataFrame]] = {column: {} for column in columns_of_kind}
    for column, (whole, arms) in product(means, members.items()):
        of_metric = ratios[column]
        if all(arm in of_metric for arm in arms):
            of_arms = [of_metric[arm][columns] for arm in arms]
            frames = [by_sweep(ratios_of_arm, sweeps) for ratios_of_arm in of_arms]
            means[column][whole] = _mean_of(frames)
    return means, members


def _mean_of(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the mean over frames of each column, in the blocks that all of them hold."""
    joined = pd.concat(frames, axis=1, join="inner").dropna()
    means = {}
    for name in frames[0].columns:
        of_name = joined.loc[:, joined.columns == name]
        means[name] = of_name.mean(axis=1)
    return pd.DataFrame(means)


def _members(kind: ContrastKind, ratios: Iterable[Arm]) -> Iterator[tuple[Arm, tuple[Arm, ...]]]:
    """Yield each job and target with the arms that its mean is over, in the order of their names."""
    arms: dict[Arm, dict[tuple[str, str], Arm]] = defaultdict(dict)
    for arm in ratios:
        if not arm.ablation:
            whole = Arm(arm.job, "", arm.target)
            arms[whole][arm.model, arm.aggressor] = arm
    for whole, by_name in arms.items():
        names = set(by_name)
        if kind is ISOLATION:
            of_targets = [others for target, others in arms.items() if target.job == whole.job]
            names.intersection_update(*of_targets)
        fewest = 2 if kind is MODELS else 1
        if len(names) >= fewest:
            averaged = [by_name[name] for name in sorted(names)]
            yield whole, tuple(averaged)


def sweeps_of(trials: pd.DataFrame) -> Sweeps:
    runs = trials[["run_id", "sweep"]].drop_duplicates("run_id")
    return dict(runs.itertuples(index=False))


def by_sweep(values: pd.DataFrame, sweeps: Sweeps) -> pd.DataFrame:
    """Return values of runs and blocks by sweep and block; the mean where two cells measured the same."""
    index = values.index
    runs_are_sweeps = len({*sweeps.values()}) == len(sweeps)
    if runs_are_sweeps and index.is_unique and index.is_monotonic_increasing:
        return values
    keys = _sweeps_and_blocks(index, sweeps)
    return values.groupby(keys).mean()


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
        contrast = Contrast(
            kind=kind,
            arm=own.arm,
            over=base.arm,
            metric=own.metric,
        )
        unjudged.append(Unjudged(contrast, ratio))
    return [*judged(unjudged, terms)]


def over(
    own: "pd.Series[float]",
    base: "pd.Series[float]",
    least: int = 1,
) -> tuple["pd.Series[float]", Location | None]:
    """Return the blocks that both sides share, own less base, and the logarithm of the ratio.

    The ratio is that inside these blocks, if they are ``least`` or more; else that between the runs of the two sides,
    without shared blocks. The logarithms are by run, or sweep, and block.
    """
    pairs = (own - base).dropna()
    if len(pairs) >= least:
        return pairs, locate(list(pairs))
    none_shared = pairs[:0]
    return none_shared, shift(by_run(base), by_run(own))


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
