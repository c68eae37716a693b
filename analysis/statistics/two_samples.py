"""The difference of two runs that share no block: two independent samples of log values, one value per block.

The interval is Yuen's t of the trimmed means (Biometrika 61 (1974) 165), Welch's where nothing is trimmed, with the
degrees of freedom of Welch and Satterthwaite. What the host did between the runs is part of the difference: how much
that can be, three old runs or more show, of which each is a draw (random effects) and the new run one draw more.
"""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from analysis.statistics.power import degrees_of_freedom, errors_detected, fewest
from analysis.statistics.ratios import CONFIDENCE, Location, Samples, locate
from analysis.statistics.tails import Mean

LEVEL = (1 - CONFIDENCE) / 2
"""The level at which a whole interval lies on one side of a bound by chance."""
LEAST_RUNS = 3
"""Fewer runs do not show how runs differ."""


def level_of(runs: Sequence[Samples]) -> Location | None:
    """Return the level of old runs of the same thing, which a new run is compared with; None without values.

    Random effects by the method of moments (DerSimonian and Laird, Controlled Clinical Trials 7 (1986) 177) with equal
    weights (DerSimonian and Kacker, Contemp. Clin. Trials 28 (2007) 105): in a few blocks, inverse variances are mostly
    chance. The error of the mean is that of Hartung and Knapp (Statist. Med. 20 (2001) 1771), at least that of equal
    runs. Fewer than ``LEAST_RUNS`` runs are one sample, as if all were the same run.
    """
    places = [place for run in runs if (place := locate(run))]
    if len(places) < LEAST_RUNS:
        return locate(np.concatenate(runs)) if places else None
    centres = [place.centre for place in places]
    observed = float(np.var(centres, ddof=1))
    within = fmean((place.standard_error or 0.0) ** 2 for place in places)
    between = max(0.0, observed - within)
    error = math.sqrt(between + max(observed, within) / len(places))
    return Location(fmean(centres), error, len(places) - 1, sum(place.n for place in places), math.sqrt(between))


def difference(old: Location, new: Location) -> Location:
    """Return the new location less the old one, of as many values as the smaller sample has."""
    centre, n = new.centre - old.centre, min(old.n, new.n)
    if old.standard_error is None or new.standard_error is None:
        return Location(centre, None, 0, n)
    return Location(centre, *_joined(old, new), n)


def mean_shift(old: Samples, new: Samples) -> Mean | None:
    """Return the logarithm of the ratio of the means, new over old, of two samples of logarithms.

    None where one has a single value. Slow trials count in it, which a trimmed mean leaves out; see ``tails``.
    """
    if min(len(old), len(new)) < 2:
        return None
    centres, variances, thirds = [], [], []
    for logs in (np.asarray(old, dtype=np.float64), np.asarray(new, dtype=np.float64)):
        values = np.exp(logs - logs.max())
        influence = values / values.mean() - 1
        centres.append(float(logs.max()) + math.log(values.mean()))
        variances.append(float(influence @ influence) / len(logs) / (len(logs) - 1))
        thirds.append(float((influence**3).mean()) / len(logs) ** 2)
    variance = sum(variances)
    if not variance:
        return Mean(centres[1] - centres[0], 0.0, 0.0, len(old) + len(new) - 1)
    parts = zip(variances, (old, new), strict=True)
    freedom = variance**2 / sum(part**2 / (len(sample) - 1) for part, sample in parts)
    return Mean(centres[1] - centres[0], math.sqrt(variance), (thirds[1] - thirds[0]) / variance**1.5, int(freedom) + 1)


def _joined(old: Location, new: Location, more: int = 0) -> tuple[float, float]:
    """Return the standard error of the difference and its degrees of freedom, had each sample ``more`` values.

    Those of several old runs stay as they are.
    """
    parts = [
        ((place.deviation or 0.0) ** 2 / (place.n + more), degrees_of_freedom(place.n + more))
        if place.spread is None
        else ((place.standard_error or 0.0) ** 2, place.degrees_of_freedom)
        for place in (old, new)
    ]
    total = sum(variance for variance, _ in parts)
    freedom = total**2 / sum(variance**2 / free for variance, free in parts) if total else parts[0][1] + parts[1][1]
    return math.sqrt(total), freedom if old.spread is None else min(freedom, old.degrees_of_freedom)


def detectable(old: Location, new: Location, more: int = 0) -> float | None:
    """Return the difference that so many blocks detect with a chance of 80 %; None where a sample has one value.

    That is the distance of the truth from a bound at which the interval lies on the right side of the bound so often.
    """
    if old.standard_error is None or new.standard_error is None:
        return None
    (_, estimated), (error, tested) = _joined(old, new), _joined(old, new, more)
    return errors_detected(estimated, tested, level=LEVEL) * error


def more_blocks(old: Location, new: Location, distance: float) -> int | None:
    """Return how many more blocks in each run detect a difference of ``distance``; None above ``MOST_BLOCKS``."""

    def suffice(more: int) -> bool:
        shift = detectable(old, new, more)
        return shift is not None and shift <= distance

    return fewest(suffice, least=1)
