"""The statistics of counts and amounts that can be zero: they have no logarithm, and are compared by differences.

Preemptions and lost steps come in bunches: a count's interval that takes them for a Poisson process is too narrow. So
only what the design gives is used: blocks whose two sides are alike if the target costs nothing. Sources:

- Inside blocks: the sign test of Fisher (1935) on the sum of the differences. Its interval lies between means of
  subsets of the blocks, of which the true difference is as likely between any two neighbours as between any others:
  Hartigan, J. Am. Statist. Assoc. 64 (1969) 1303; of random subsets, Forsythe and Hartigan, Biometrika 57 (1970) 629.
- Of two runs: the permutation test of Pitman, J. R. Statist. Soc. Suppl. 4 (1937) 119, over random orders, the observed
  one among them (Phipson and Smyth, Statist. Appl. Genet. Molec. Biol. 9 (2010) 39), and its inversion. It takes the
  blocks of all runs for alike. Where runs are enough to show how they differ, the t interval of ``two_samples`` must
  hold as well: the farther ends and the greater level of the two count.

``benchmarks/counts.py`` measures level and coverage.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from analysis.statistics.ratios import CONFIDENCE, SIGNIFICANCE, Location, Samples, Verdict, VerdictName, holm, p_beyond
from analysis.statistics.two_samples import Runs, shift

_ALL_SUBSETS = 12
"""Up to so many blocks every subset is taken, beyond it as many random ones: always the same."""
_DRAWS = 1 << _ALL_SUBSETS
_SIDE = (1 - CONFIDENCE) / 2
_HALVINGS = 50

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MeanDifference:
    """The mean difference of ``n`` blocks, or of the fewer blocks of two runs, with its 95 % interval.

    The interval is None for too few blocks, and for nothing but zeros. ``p`` is the level at which the sides
    differ, two-sided.
    """

    mean: float
    interval: tuple[float, float] | None
    p: float
    n: int
    spread: float | None = None
    """The standard deviation between runs of the same; None where too few show it, and inside blocks."""


def inside_blocks(differences: Samples) -> MeanDifference | None:
    """Return the mean difference of blocks, own less base; None without a block."""
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    if n == 0:
        return None
    chosen = _subsets(n)
    sums = chosen @ values
    observed = values.sum()
    # The sign of each chosen block is turned: the sum falls by twice its difference.
    turned = observed - 2 * sums
    tolerance = 1e-9 * float(np.abs(values).sum())
    at_least = float((turned >= observed - tolerance).mean())
    at_most = float((turned <= observed + tolerance).mean())
    p = min(1.0, 2 * min(at_least, at_most))
    sizes = chosen.sum(axis=1)
    not_empty = sizes > 0
    means = sums[not_empty] / sizes[not_empty]
    typical = np.sort(means)
    left_out = math.floor(_SIDE * (len(typical) + 1))
    interval = None
    if left_out > 0 and values.any():
        low = float(typical[left_out - 1])
        high = float(typical[-left_out])
        interval = low, high
    return MeanDifference(float(values.mean()), interval, p, n)


def _subsets(n: int) -> Numbers:
    """Return subsets of n blocks, a row each, the empty one first: that of the observed signs."""
    if n <= _ALL_SUBSETS:
        numbers = np.arange(1 << n)[:, None]
        bits = (numbers >> np.arange(n)) & 1
        return bits.astype(np.float64)
    rng = np.random.default_rng(n)
    subsets = rng.integers(0, 2, (_DRAWS, n)).astype(np.float64)
    subsets[0] = 0.0
    return subsets


def between_runs(old: Runs, new: Runs) -> MeanDifference | None:
    """Return the difference of the means of new runs and old ones; None if a side has no block."""
    location = shift(old, new, trim=0)
    if location is None:
        return None
    before = np.concatenate([*old])
    after = np.concatenate([*new])
    by_order = _by_order(before, after)
    if location.spread is None:
        return by_order
    return _with_spread(by_order, location)


def _with_spread(by_order: MeanDifference, location: Location) -> MeanDifference:
    """Return a difference with what the spread between runs adds to its interval and its level."""
    one_sided = p_beyond(abs(location.centre), location)
    p = max(by_order.p, min(1.0, 2 * one_sided))
    interval = None
    if by_order.interval and location.interval:
        low = min(by_order.interval[0], location.interval[0])
        high = max(by_order.interval[1], location.interval[1])
        interval = low, high
    return replace(by_order, interval=interval, p=p, spread=location.spread)


def _by_order(old: Samples, new: Samples) -> MeanDifference:
    """Return the difference of the means of two samples, new less old, by the order of their values."""
    before = np.asarray(old, dtype=np.float64)
    after = np.asarray(new, dtype=np.float64)
    orders = _orders(len(before), len(after))
    observed = float(after.mean() - before.mean())
    at_least = _level(before, after, 1, orders)
    at_most = _level(before, -after, -1, orders)
    one_sided = min(at_least(0.0), at_most(0.0))
    unbounded = MeanDifference(
        mean=observed,
        interval=None,
        p=min(1.0, 2 * one_sided),
        n=min(len(before), len(after)),
    )
    values = np.concatenate([before, after])
    span = float(np.ptp(values))
    far = span * len(values) + abs(observed)
    if not far:
        return unbounded
    # At the farthest shift each side has all of its values beyond the other's: if that is no rare order, none is.
    at_farthest = min(at_least(observed - far), at_most(-observed - far))
    if at_farthest > _SIDE:
        return unbounded
    low = _first_above(at_least, observed - far, observed)
    high = -_first_above(at_most, -observed - far, -observed)
    return replace(unbounded, interval=(low, high))


def _level(before: Numbers, after: Numbers, sign: int, orders: npt.NDArray[np.intp]) -> Callable[[float], float]:
    """Return the level of so great a difference in the direction of the sign, given the shift that is supposed."""

    def level(shift: float) -> float:
        values = np.concatenate([sign * before, after - shift])
        means = values[orders].mean(axis=1)
        tolerance = 1e-9 * float(np.abs(values).max())
        as_great = means >= means[0] - tolerance
        return float(as_great.mean())

    return level


def _orders(old: int, new: int) -> npt.NDArray[np.intp]:
    """Return the places of the values that are taken for new in each order, the observed one first."""
    rng = np.random.default_rng((old, new))
    places = np.tile(np.arange(old + new), (_DRAWS, 1))
    orders = rng.permuted(places, axis=1)[:, :new]
    orders[0] = np.arange(old, old + new)
    return orders


def _first_above(level: Callable[[float], float], low: float, high: float) -> float:
    """Return the shift above which a level, which grows with the shift, is above that of one end of the interval."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if level(middle) > _SIDE:
            high = middle
        else:
            low = middle
    return low


def judge_differences(differences: list[MeanDifference], *, more_is_better: bool) -> list[Verdict]:
    """Return whether each difference of one family is one: Holm-adjusted at 5 %, or undecided.

    There is no ``equivalent``: a share of a mean that may be zero bounds nothing.
    """
    verdicts = []
    unadjusted = [difference.p for difference in differences]
    levels = holm(unadjusted)
    for difference, level in zip(differences, levels, strict=True):
        name: VerdictName = "undecided"
        if level <= SIGNIFICANCE:
            better = (difference.mean > 0) == more_is_better
            name = "faster" if better else "slower"
        verdicts.append(Verdict(name, level))
    return verdicts
