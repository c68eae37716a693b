"""Estimate how much the bursts of an alternating design vary, and the cost of switching: ``results.BurstVariation``."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import pandas as pd

from analysis.compare.pairing import GROUP, job_of
from analysis.compare.results import BurstVariation, ComparedJob
from analysis.load.bursts import step_variance, switching
from analysis.statistics.alternating import Components, Costs, Design, SwitchingCost, choose, components
from suite.records.record import Alternation
from suite.targets import BASELINE

_PLACE = ["run_id", "block"]


def turns_of(ok: pd.DataFrame, evidence: pd.DataFrame) -> Mapping[tuple[ComparedJob, str], tuple[BurstVariation, ...]]:
    """Return, by job and model, what the turns of each target say; ``evidence`` holds their bursts.

    ``ok`` are trials as they are, with ``variant``. Targets are held against the first bare metal of a block, and so is
    the second, where there is one.
    """
    if ok["burst_s"].isna().all():
        return {}
    columns = ["path", "alternation", "turn_steps"]
    trials = ok.merge(evidence.loc[evidence["turn_steps"].notna(), columns].drop_duplicates("path"), on="path")
    again = (trials["replica"] == 1).map({True: " again", False: ""})
    found: dict[tuple[ComparedJob, str], list[BurstVariation]] = {}
    for _, group in trials.assign(side=trials["target"].astype(str) + again).groupby(GROUP, observed=True):
        key = job_of(group.iloc[0]), str(group["model"].iloc[0])
        base = group[group["side"] == BASELINE]
        for side, own in group[group["side"] != BASELINE].groupby("side", sort=False):
            pairs = _pairs(own, base)
            if pairs:
                vary, switched = components([[_log_ratios(*pair)] for pair in pairs]), switching(own)
                steps = [step_variance(rows) for rows in (own, base)]
                best = _best(vary, switched, pairs, None if None in steps else math.fsum(filter(None, steps)))
                found.setdefault(key, []).append(BurstVariation(str(side), len(pairs), vary, switched, best))
    return {key: tuple(each) for key, each in found.items()}


def _pairs(own: pd.DataFrame, base: pd.DataFrame) -> list[tuple[Alternation, Alternation]]:
    """Return the turns of a target and of bare metal, of each block that has both."""
    sides = [rows.set_index(_PLACE)["alternation"].to_dict() for rows in (own, base)]
    return [(sides[0][place], sides[1][place]) for place in sides[0] if place in sides[1]]


def _best(
    vary: Components,
    switched: SwitchingCost | None,
    pairs: Sequence[tuple[Alternation, Alternation]],
    step: float | None,
) -> Design | None:
    """Return the arrangement that these blocks, as a pilot, suggest; None where too little was repeated in them.

    A block of more targets is taken as one of this pair, with its part of the seconds beside the turns.
    """
    if vary.burst is None or vary.block is None:
        return None
    round_s, steps = fmean(own.turn_s + base.turn_s for own, base in pairs), pairs[0][0].bursts[0].steps
    beside_s = fmean(own.block_s * 2 / own.instances - round_s * len(own.bursts) for own, _ in pairs)
    switch_s = fmean(_handing_s(own) + _handing_s(base) for own, base in pairs)
    if switched and switched.shown:
        switch_s += round_s / steps
    return choose(vary, Costs(round_s, max(0.0, beside_s), steps, switch_s=min(round_s, switch_s)), step)


def _handing_s(side: Alternation) -> float:
    """Return the seconds of one turn in which no step was taken."""
    return fmean(max(0.0, one.ended_s - one.begun_s - one.span_s) for one in side.bursts)


def _log_ratios(own: Alternation, base: Alternation) -> list[float]:
    """Return log(own / base) of the throughput in every round that both have."""
    rates = [{one.round: math.log(one.steps / one.span_s) for one in side.bursts} for side in (own, base)]
    return [rates[0][number] - rates[1][number] for number in rates[0] if number in rates[1]]
