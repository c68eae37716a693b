"""Estimate how much the bursts of trials that take turns vary, and what switching costs: see ``results.Turns``."""

import math
from collections.abc import Mapping

import pandas as pd

from analysis.compare.pairing import GROUP, job_of
from analysis.compare.results import ComparedJob, Turns
from analysis.load.bursts import switching
from analysis.load.evidence import AlternationFields
from analysis.statistics.alternating import components
from suite.targets import BASELINE

_PLACE = ["run_id", "block"]


def turns_of(ok: pd.DataFrame, evidence: pd.DataFrame) -> Mapping[tuple[ComparedJob, str], tuple[Turns, ...]]:
    """Return, by job and model, what the turns of each target say; ``evidence`` holds their bursts.

    ``ok`` are trials as they are, with ``variant``. Targets are held against the first bare metal of a block, and so is
    the second, where there is one.
    """
    if ok["burst_s"].isna().all():
        return {}
    columns = ["path", "alternation", "turn_steps"]
    trials = ok.merge(evidence.loc[evidence["alternation"].notna(), columns].drop_duplicates("path"), on="path")
    again = (trials["replica"] == 1).map({True: " again", False: ""})
    found: dict[tuple[ComparedJob, str], list[Turns]] = {}
    for _, group in trials.assign(side=trials["target"].astype(str) + again).groupby(GROUP, observed=True):
        key = job_of(group.iloc[0]), str(group["model"].iloc[0])
        base = group[group["side"] == BASELINE].set_index(_PLACE)["alternation"].to_dict()
        for side, rows in group[group["side"] != BASELINE].groupby("side", sort=False):
            own = rows.set_index(_PLACE)["alternation"].to_dict()
            pairs = [[_log_ratios(own[place], base[place])] for place in own if place in base]
            if pairs:
                found.setdefault(key, []).append(Turns(str(side), len(pairs), components(pairs), switching(rows)))
    return {key: tuple(each) for key, each in found.items()}


def _log_ratios(own: AlternationFields, base: AlternationFields) -> list[float]:
    """Return log(own / base) of the throughput in every round that both have."""
    rates = [{one.round: math.log(one.steps / one.span_s) for one in side.bursts} for side in (own, base)]
    return [rates[0][number] - rates[1][number] for number in rates[0] if number in rates[1]]
