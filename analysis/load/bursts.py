"""The bursts of trials that take turns: their steps, and whether the first step of each counts.

Being switched to can cost the first step of a burst something: caches are cold, and a guest's CPUs asleep. It is left
out if and only if the data show that.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import pandas as pd

from analysis.statistics.alternating import SwitchingCost, switching_cost
from suite.records.record import Alternation

Bursts = list[list[float]]
"""The seconds of each step, by burst."""


def bursts_of(trial: pd.Series) -> Bursts:
    """Return the steps of a row of evidence with ``alternation``."""
    counts = [burst.steps for burst in trial["alternation"].bursts]
    steps_s = trial["turn_steps"]
    ends = accumulate(counts, initial=0)
    return [steps_s[begin:end] for begin, end in pairwise(ends)]


def check_bursts(alternation: Alternation, steps_s: Sequence[float]) -> None:
    """Raise ValueError if the bursts cannot be made of these steps."""
    steps = sum(burst.steps for burst in alternation.bursts)
    if steps != len(steps_s):
        raise ValueError(f"its bursts have {steps} steps, and the trial {len(steps_s)}")
    if not all(burst.steps for burst in alternation.bursts):
        raise ValueError("one of its bursts has no steps")
    if min(steps_s) <= 0:
        raise ValueError("a step of a burst took no time")


def switching(trials: pd.DataFrame) -> SwitchingCost | None:
    """Return what switching costs the trials of one target, from rows of evidence; None if it cannot be estimated."""
    bursts_of_trials = (bursts_of(trial) for _, trial in trials.iterrows())
    return switching_cost(bursts_of_trials)


def step_variance(trials: pd.DataFrame) -> float | None:
    """Return the variance of a step's log seconds inside its burst, without first steps; None where none repeat."""
    variances = []
    for _, trial in trials.iterrows():
        for burst in bursts_of(trial):
            if len(burst) > 2:
                logs = np.log(burst[1:])
                variances.append(logs.var(ddof=1))
    if not variances:
        return None
    return float(np.mean(variances))


def settled(evidence: pd.DataFrame) -> "pd.Series[float]":
    """Return ``burst_s``, without first steps where they cost more on any target of the job and model."""
    burst_s = evidence["burst_s"].copy()
    # Those of a probe have no steps.
    with_steps = evidence["turn_steps"].notna()
    finished = evidence["ok"].astype(bool)
    trials = evidence[with_steps & finished]
    for _, group in trials.groupby(["settings", "scenario", "model"], observed=True):
        by_target = group.groupby("target", observed=True)
        costs = [switching(rows) for _, rows in by_target]
        if any(cost is not None and cost.shown for cost in costs):
            burst_s[group.index] = [_settled_s(bursts_of(trial)) for _, trial in group.iterrows()]
    return burst_s


def _settled_s(bursts: Bursts) -> float:
    """Return the geometric mean of the seconds per step of the bursts, without first steps."""
    logs = []
    for burst in bursts:
        rest = burst[1:] or burst
        mean_s = math.fsum(rest) / len(rest)
        logs.append(math.log(mean_s))
    return math.exp(math.fsum(logs) / len(logs))
