"""The difference of sides that share no block: independent samples of log values, one value per block of each run.

This one judgement serves all contrasts between runs: the gate, values of a key, machines, scaling, claims.

The interval is Yuen's t of the trimmed means (Biometrika 61 (1974) 165), Welch's where nothing is trimmed, with the
degrees of freedom of Welch and Satterthwaite. What the host did between the runs is part of the difference: how much
that can be, three runs or more show, of which each is a draw (random effects).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean

import numpy as np

from analysis.statistics.power import TRIM, degrees_of_freedom, errors_detected, fewest
from analysis.statistics.ratios import CONFIDENCE, Location, Samples, locate
from analysis.statistics.tails import Mean

LEVEL = (1 - CONFIDENCE) / 2
"""The level at which a whole interval lies on one side of a bound by chance."""
LEAST_RUNS = 3
"""Fewer runs do not show how runs differ."""
Runs = Sequence[Samples]
"""A side: a sample for each of its runs."""


def levels(sides: Sequence[Runs], more: int = 0, trim: float = TRIM) -> list[Location | None]:
    """Return the level of each side; None for a side without a value.

    Two runs or more that sides have beyond their first, of all sides together, show the spread between runs, one for
    all sides: random effects by the method of moments (DerSimonian and Laird, Controlled Clinical Trials 7 (1986) 177)
    with equal weights (DerSimonian and Kacker, Contemp. Clin. Trials 28 (2007) 105), since in a few blocks inverse
    variances are mostly chance. The error of a mean of runs is that of Hartung and Knapp (Statist. Med. 20 (2001)
    1771), at least that of equal runs. Fewer are one sample a side, as if all of its runs were the same one: the
    interval then holds for these runs alone, and the location has no ``spread``.

    ``more``: as if each run had so many more blocks, with a known spread only the single run of a side.
    """
    located = [_located(runs, trim) for runs in sides]
    freedom = sum(len(places) - 1 for places in located if places)
    if freedom < LEAST_RUNS - 1:
        return [_pooled(runs, more, trim) for runs in sides]
    with_values = [places for places in located if places]
    between = _between(with_values, freedom)
    return [_level(places, between, freedom, more) if places else None for places in located]


def _located(runs: Runs, trim: float) -> list[Location]:
    locations = [locate(run, trim) for run in runs]
    return [*filter(None, locations)]


def _pooled(runs: Runs, more: int, trim: float) -> Location | None:
    """Return the level of a side as if all of its runs were the same one."""
    if not len(runs):
        return None
    values = np.concatenate([*runs])
    location = locate(values, trim)
    return location and _with_more(location, more)


def _with_more(location: Location, more: int) -> Location:
    """Return the location had it more blocks with the deviation that it has."""
    if location.deviation is None or not more:
        return location
    n = location.n + more
    return replace(
        location,
        standard_error=location.deviation / math.sqrt(n),
        degrees_of_freedom=degrees_of_freedom(n),
        n=n,
    )


def _within(places: Sequence[Location]) -> float:
    """Return the mean variance of the levels of runs by what their blocks show."""
    errors = [location.standard_error or 0.0 for location in places]
    return fmean(error**2 for error in errors)


def _between(sides: Sequence[Sequence[Location]], freedom: int) -> float:
    """Return the variance between the runs of a side, from all sides."""
    squares = []
    for side in sides:
        centres = [location.centre for location in side]
        squares.append(float(np.var(centres)) * len(side))
    of_all_sides = [*chain.from_iterable(sides)]
    variance = sum(squares) / freedom - _within(of_all_sides)
    return max(0.0, variance)


def _level(places: Sequence[Location], between: float, freedom: int, more: int) -> Location:
    """Return the level of a side, whose spread between runs is known with so many degrees of freedom.

    What a single run shows inside has the degrees of freedom of its own; all else those of the spread.
    """
    n = sum(location.n for location in places)
    centre = fmean(location.centre for location in places)
    if len(places) > 1:
        variance = (between + _within(places)) / len(places)
        return Location(
            centre=centre,
            standard_error=math.sqrt(variance),
            degrees_of_freedom=freedom,
            n=n,
            spread=math.sqrt(between),
        )
    run = _with_more(places[0], more)
    if run.standard_error is None:
        return run
    inside = run.standard_error**2
    divisor = between**2 / freedom + inside**2 / run.degrees_of_freedom
    freedom_of_run: float = freedom
    if divisor:
        freedom_of_run = min((between + inside) ** 2 / divisor, freedom)
    return Location(
        centre,
        math.sqrt(between + inside),
        freedom_of_run,
        run.n,
        math.sqrt(between),
    )


def shift(old: Runs, new: Runs, more: int = 0, trim: float = TRIM) -> Location | None:
    """Return the level of new runs less that of old ones; None where a side has no value. See ``levels``."""
    before, after = levels([old, new], more, trim)
    return difference(before, after) if before and after else None


def difference(old: Location, new: Location) -> Location:
    """Return the new location less the old one, of as many values as the smaller sample has.

    With a spread between runs its degrees of freedom are at most those of the spread, which both sides share.
    """
    centre = new.centre - old.centre
    n = min(old.n, new.n)
    if old.standard_error is None or new.standard_error is None:
        return Location(centre, None, 0, n)
    variances = [old.standard_error**2, new.standard_error**2]
    freedoms = [old.degrees_of_freedom, new.degrees_of_freedom]
    sides = zip(variances, freedoms, strict=True)
    total = sum(variances)
    divisor = sum(variance**2 / freedom for variance, freedom in sides)
    freedom = total**2 / divisor if divisor else sum(freedoms)
    if old.spread is not None:
        freedom = min(freedom, max(freedoms))
    return Location(centre, math.sqrt(total), freedom, n, old.spread)


def mean_shift(old: Samples, new: Samples) -> Mean | None:
    """Return the logarithm of the ratio of the means, new over old, of two samples of logarithms.

    None where one has a single value. Slow trials count in it, which a trimmed mean leaves out; see ``tails``.
    """
    if min(len(old), len(new)) < 2:
        return None
    centres = []
    variances = []
    thirds = []
    for sample in (old, new):
        logs = np.asarray(sample, dtype=np.float64)
        n = len(logs)
        highest = logs.max()
        values = np.exp(logs - highest)
        mean = values.mean()
        influence = values / mean - 1
        centres.append(float(highest) + math.log(mean))
        variances.append(float(influence @ influence) / n / (n - 1))
        thirds.append(float((influence**3).mean()) / n**2)
    centre = centres[1] - centres[0]
    variance = sum(variances)
    if not variance:
        return Mean(centre, 0.0, 0.0, len(old) + len(new) - 1)
    parts = zip(variances, (old, new), strict=True)
    divisor = sum(part**2 / (len(sample) - 1) for part, sample in parts)
    freedom = variance**2 / divisor
    third = thirds[1] - thirds[0]
    return Mean(
        centre,
        math.sqrt(variance),
        third / variance**1.5,
        int(freedom) + 1,
    )


def detectable(old: Runs, new: Runs, more: int = 0) -> float | None:
    """Return the difference that so many more blocks detect with a chance of 80 %; None where a sample has one value.

    That is the distance of the truth from a bound at which the interval lies on the right side of the bound so often.
    """
    now = shift(old, new)
    then = shift(old, new, more)
    if not now or not then or now.standard_error is None or then.standard_error is None:
        return None
    errors = errors_detected(
        now.degrees_of_freedom,
        then.degrees_of_freedom,
        level=LEVEL,
    )
    return errors * then.standard_error


def more_blocks(old: Runs, new: Runs, distance: float) -> int | None:
    """Return how many more blocks in each run detect a difference of ``distance``; None above ``MOST_BLOCKS``."""

    def suffice(more: int) -> bool:
        seen = detectable(old, new, more)
        return seen is not None and seen <= distance

    return fewest(suffice, least=1)
