"""The noise of a group: what bare metal shows against itself, and how bursts of the alternating design vary."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np
import pandas as pd

from analysis.compare.effects import RATIO, GroupKey, all_ratios
from analysis.compare.pairing import GROUP, baseline, grouped, pair
from analysis.compare.results import BurstVariation
from analysis.compare.validity import usable
from analysis.load.bursts import step_variance, switching
from analysis.load.metrics import Metric
from analysis.statistics.alternating import Components, Costs, Design, SwitchingCost, choose, components
from analysis.statistics.ratios import NoiseFloor, locate, noise_floor
from analysis.warnings.types import AnalysisWarning, Touched
from suite.records.record import Alternation
from suite.targets import BASELINE

Replicas = Mapping[str, Mapping[GroupKey, pd.DataFrame]]
"""By the metric's column, log(second / first bare-metal trial) of the blocks that hold both."""
Turns = tuple[Alternation, Alternation]
"""The turns of a target and of bare metal in one block."""


def replicas(ok: pd.DataFrame, metrics: Sequence[Metric]) -> Replicas:
    """Return the ratios of the second trial of bare metal to the first."""
    base = baseline(ok)
    again = base[base["replica"] == 1]
    if again.empty:
        return {metric.column: {} for metric in metrics}
    pairs = usable(pair(again, base[base["replica"] == 0], [metric.column for metric in metrics])).pairs
    ratios = all_ratios(pairs, metrics)
    return {column: {key[:2]: rows for key, rows in of_metric.items()} for column, of_metric in ratios.items()}


def noise_floors(
    ok: pd.DataFrame, ratios: Replicas, metrics: Sequence[Metric]
) -> dict[GroupKey, dict[str, NoiseFloor]]:
    """Return the noise floors by the metric's name, from trials that are ok and from their ``replicas``."""
    floors: dict[GroupKey, dict[str, NoiseFloor]] = {}
    for (job, model), rows in grouped(baseline(ok), GROUP):
        first = rows[rows["replica"] == 0]
        for metric in metrics:
            if metric.of(job.scenario, model):
                twice = ratios[metric.column].get((job, model))
                blocks = [first["run_id"].astype(str), first["block"]]
                means: pd.Series[float] = metric.logs(first).groupby(blocks).mean()
                runs: list[np.ndarray] = [run.dropna().to_numpy() for _, run in means.groupby("run_id")]
                if floor := noise_floor(() if twice is None else list(twice[RATIO]), runs):
                    floors.setdefault((job, model), {})[metric.name] = floor
    return floors


def differing(ratios: Replicas, metrics: Sequence[Metric]) -> Iterator[AnalysisWarning]:
    """Yield the groups whose two bare-metal trials differ: their interval excludes 1, whatever the margin."""
    for metric in metrics:
        for (job, model), values in ratios[metric.column].items():
            place = locate(values[RATIO].to_numpy())
            if place and place.interval and not place.interval[0] <= 0 <= place.interval[1]:
                low, high = np.exp(place.interval)
                yield AnalysisWarning(
                    "a-a-differs",
                    f"{job}, {model}: the second {BASELINE} trial of a block has {np.exp(place.centre):.3f} times the "
                    f"{metric.name} of the first (95 % interval {low:.3f} to {high:.3f}); no smaller difference "
                    "between targets means anything",
                    "look for what changes inside a block: other load, temperature, a cache that the first trial fills",
                    touches=(Touched(job, BASELINE, model),),
                )


def burst_variation(ok: pd.DataFrame, evidence: pd.DataFrame) -> dict[GroupKey, tuple[BurstVariation, ...]]:
    """Return, by job and model, how the bursts of each target vary; ``evidence`` holds their bursts.

    ``ok`` are trials as they are, with ``variant``. Targets are compared with the first bare metal of a block; the
    second one, if there is one, counts as a target.
    """
    if ok["burst_s"].isna().all():
        return {}
    columns = ["path", "alternation", "turn_steps"]
    trials = ok.merge(evidence.loc[evidence["turn_steps"].notna(), columns].drop_duplicates("path"), on="path")
    again = (trials["replica"] == 1).map({True: " again", False: ""})
    variations: dict[GroupKey, tuple[BurstVariation, ...]] = {}
    for key, group in grouped(trials.assign(side=trials["target"].astype(str) + again), GROUP):
        base = group[group["side"] == BASELINE]
        targets = group[group["side"] != BASELINE].groupby("side", sort=False)
        if in_turns := tuple(filter(None, (_variation(str(side), rows, base) for side, rows in targets))):
            variations[key] = in_turns
    return variations


def _variation(side: str, rows: pd.DataFrame, base: pd.DataFrame) -> BurstVariation | None:
    """Return the variation of one target; None if no block holds it and bare metal."""
    turns, base_turns = (trials.set_index(["run_id", "block"])["alternation"].to_dict() for trials in (rows, base))
    pairs = [(turns[block], base_turns[block]) for block in turns if block in base_turns]
    if not pairs:
        return None
    levels, switched = components([[_log_ratios(*pair)] for pair in pairs]), switching(rows)
    steps = [step_variance(trials) for trials in (rows, base)]
    best = _best(levels, switched, pairs, None if None in steps else math.fsum(filter(None, steps)))
    return BurstVariation(side, len(pairs), levels, switched, best)


def _best(
    levels: Components, switched: SwitchingCost | None, pairs: Sequence[Turns], step: float | None
) -> Design | None:
    """Return the arrangement that these blocks, as a pilot, suggest; None if too little was repeated in them.

    A block of more targets counts as a block of this pair, with its part of the seconds outside the turns.
    """
    if levels.burst is None or levels.block is None:
        return None
    round_s, steps = fmean(own.turn_s + base.turn_s for own, base in pairs), pairs[0][0].bursts[0].steps
    beside_s = fmean(own.block_s * 2 / own.instances - round_s * len(own.bursts) for own, _ in pairs)
    switch_s = fmean(_handing_s(own) + _handing_s(base) for own, base in pairs)
    if switched and switched.shown:
        switch_s += round_s / steps
    return choose(levels, Costs(round_s, max(0.0, beside_s), steps, switch_s=min(round_s, switch_s)), step)


def _handing_s(side: Alternation) -> float:
    """Return the seconds of one turn in which no step was taken."""
    return fmean(max(0.0, burst.ended_s - burst.begun_s - burst.span_s) for burst in side.bursts)


def _log_ratios(own: Alternation, base: Alternation) -> list[float]:
    """Return log(own / base) of the throughput in every round that both have."""
    rates = [{burst.round: math.log(burst.steps / burst.span_s) for burst in side.bursts} for side in (own, base)]
    return [rates[0][number] - rates[1][number] for number in rates[0] if number in rates[1]]
