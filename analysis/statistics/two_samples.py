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
    places = _located(runs)
    if len(places) < LEAST_RUNS:
        return locate(np.concatenate(runs)) if places else None
    centres = [place.centre for place in places]
    observed = float(np.var(centres, ddof=1))
    within = fmean((place.standard_error or 0.0) ** 2 for place in places)
    between = max(0.0, observed - within)
    error = math.sqrt(between + max(observed, within) / len(places))
    return Location(fmean(centres), error, len(places) - 1, sum(place.n for place in places), math.sqrt(between))


def shift(old: Sequence[Samples], new: Sequence[Samples]) -> Location | None:
    """Return the level of new runs less that of old ones, a sample for each run; None where a side has no value.

    Two runs or more that a side has beyond its first, of both sides together, show the spread between runs (random
    effects as in ``level_of``, one spread for both sides). Fewer are two samples, as if all runs of a side were the
    same one: the interval then holds for these runs alone, and the location has no ``spread``.
    """
    sides = _located(old), _located(new)
    if not all(sides):
        return None
    if _beyond_first(sides) < LEAST_RUNS - 1:
        before, after = locate(np.concatenate([*old])), locate(np.concatenate([*new]))
        return difference(before, after) if before and after else None
    centre = _centre(sides[1]) - _centre(sides[0])
    n = min(sum(location.n for location in places) for places in sides)
    if any(len(places) == 1 and places[0].standard_error is None for places in sides):
        return Location(centre, None, 0, n)
    between = _between([places for places in sides if len(places) > 1])
    return Location(centre, *_error_between(sides, between), n, math.sqrt(between))


def _located(runs: Sequence[Samples]) -> list[Location]:
    return [location for run in runs if (location := locate(run))]


def _centre(places: Sequence[Location]) -> float:
    return fmean(location.centre for location in places)


def _beyond_first(sides: Sequence[Sequence[Location]]) -> int:
    """Return the runs beyond the first of each side: the degrees of freedom of the spread between runs."""
    return sum(len(places) - 1 for places in sides)


def _within(places: Sequence[Location]) -> float:
    """Return the mean variance of the levels of runs by what their blocks show."""
    return fmean((location.standard_error or 0.0) ** 2 for location in places)


def _between(sides: Sequence[Sequence[Location]]) -> float:
    """Return the variance between the runs of a side, from all sides with several."""
    squares = [float(np.var([location.centre for location in places])) * len(places) for places in sides]
    within = _within([location for places in sides for location in places])
    return max(0.0, sum(squares) / _beyond_first(sides) - within)


def _error_between(sides: Sequence[Sequence[Location]], between: float) -> tuple[float, float]:
    """Return the standard error of the difference of the sides, and its degrees of freedom.

    What a single run of its side shows inside has the degrees of freedom of its own; all else those of the spread.
    """
    single = [places[0] for places in sides if len(places) == 1]
    several = [places for places in sides if len(places) > 1]
    freedom = _beyond_first(sides)
    of_blocks = [(run.standard_error or 0.0) ** 2 for run in single]
    of_runs = between * len(single) + sum((between + _within(places)) / len(places) for places in several)
    total = of_runs + sum(of_blocks)
    divisor = of_runs**2 / freedom
    divisor += sum(variance**2 / run.degrees_of_freedom for variance, run in zip(of_blocks, single, strict=True))
    return math.sqrt(total), min(total**2 / divisor, freedom) if divisor else freedom


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
