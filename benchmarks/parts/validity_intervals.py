"""Candidates for the interval of a ratio of means, and how often each covers.

t          Student's t on the linearised logarithm of the ratio
Hall       the same after Hall's transformation (1992)
farther    the farther end of these two: what the suite takes
bootstrap  studentised bootstrap of the logarithm, 999 resamples of the blocks (Efron and Tibshirani 1993)
BCa        bias-corrected and accelerated bootstrap (Efron, J. Am. Statist. Assoc. 82 (1987) 171)
EL         empirical likelihood (Owen, Biometrika 75 (1988) 237), with quantiles of Student's t for those of the normal
"""

from collections.abc import Iterator
from functools import cache

import numpy as np
from parts.validity_samples import Family, Logs
from scipy import special

from analysis.statistics.tails import Mean, ratio_of_means

_RESAMPLES = 999
NAMES = ("t", "Hall", "farther", "bootstrap", "BCa", "EL")


def coverage(family: Family, sweeps: int, blocks: int, seed: int) -> dict[str, float]:
    """Return the share of sweeps of an identical target whose interval covers, by the name of the candidate."""
    base, own = family.blocks(np.random.default_rng(seed), sweeps, blocks)
    covered = [list(_covers(one, other, family.expected)) for one, other in zip(base, own[..., 0], strict=True)]
    return dict(zip(NAMES, np.mean(covered, axis=0), strict=True))


def _covers(base: Logs, own: Logs, truth: float) -> Iterator[bool]:
    mean = ratio_of_means(own - base, base)
    assert mean  # noqa: S101
    quantile = special.stdtrit(mean.n - 1, 0.975)
    student = (mean.centre - truth) / mean.standard_error
    yield abs(student) <= quantile
    yield abs(_hall(mean, student)) <= quantile
    yield mean.interval[0] <= truth <= mean.interval[1]
    times = np.exp(np.column_stack((own, base)) - base.mean())
    yield from _bootstraps(times, mean, truth)
    yield _likelihood(times[:, 0] - np.exp(truth) * times[:, 1]) <= quantile


def _hall(mean: Mean, student: float) -> float:
    skewness = mean.skewness or 1e-9
    return ((1 + skewness * student / 3) ** 3 - 1) / skewness + skewness / 6


@cache
def _weights(n: int) -> Logs:
    """Return how often each block is in each resample, over the number of blocks."""
    return np.random.default_rng(n).multinomial(n, np.full(n, 1 / n), _RESAMPLES) / n


def _bootstraps(times: Logs, mean: Mean, truth: float) -> Iterator[bool]:
    own, base = times.T
    moments = _weights(mean.n) @ np.column_stack((own, base, own**2, own * base, base**2))
    a, b, aa, ab, bb = moments.T
    logs = np.log(a / b)
    errors = np.sqrt(np.maximum(aa / a**2 + bb / b**2 - 2 * ab / a / b, 1e-18) / (mean.n - 1))
    low, high = np.quantile((logs - mean.centre) / errors, (0.025, 0.975))
    yield mean.centre - high * mean.standard_error <= truth <= mean.centre - low * mean.standard_error
    bias = special.ndtri(np.clip((logs < mean.centre).mean(), 0.001, 0.999))
    shifted = bias + special.ndtri([0.025, 0.975])
    acceleration = mean.skewness / 6
    low, high = np.quantile(logs, special.ndtr(bias + shifted / (1 - acceleration * shifted)))
    yield low <= truth <= high


def _likelihood(departures: Logs) -> float:
    """Return the root of -2 log of the empirical likelihood ratio of a mean of zero."""
    if departures.min() >= 0 or departures.max() <= 0:
        return np.inf
    low, high = (1 / len(departures) - 1) / departures.max(), (1 / len(departures) - 1) / departures.min()
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if (departures / (1 + middle * departures)).sum() > 0 else (low, middle)
    return float(np.sqrt(max(0.0, 2 * np.log1p(middle * departures).sum())))
