"""The statistics of tails: what a long queue of jobs pays, and whether the target has slow trials of its own.

The *typical* cost is the trimmed mean of the blocks' log ratios (``ratios``). A trimmed mean leaves out the trials that
a neighbour, a steal or a balloon made slow. The *expected* cost holds them: the ratio of the mean times. Sources:

- Interval of a ratio of means: Student's t on the linearised ratio, and the same after Hall's transformation, which
  takes the skewness out of the statistic: J. R. Statist. Soc. B 54 (1992) 221, after Johnson, J. Am. Statist. Assoc. 73
  (1978) 536. The farther end of the two counts. Under one-sided tails Student's t covers too rarely, under two-sided
  outliers Hall's does, and so do the studentised bootstrap, BCa and empirical likelihood: ``benchmarks/validity.py``
  simulates all of them.
- Slow trials: McNemar's exact test, Psychometrika 12 (1947) 153, on the blocks in which one of the two was slow.
- The excluded share: Clopper and Pearson, Biometrika 26 (1934) 404, one-sided. A failed trial counts as a slow one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy import special

from analysis.statistics.failures import NONE_FAILED, Failures, more_often, most
from analysis.statistics.margins import Bounds, bounds_of, log_slower_by, slower_by
from analysis.statistics.ratios import (
    CONFIDENCE,
    SIGNIFICANCE,
    Location,
    Samples,
    Verdict,
    exp,
    holm,
    p_inside,
    t_quantile,
)

SLOW = 0.10
"""A slow trial is slower than the typical one by more than this share, and by more than ``_DEVIATIONS`` of noise."""
_DEVIATIONS = 4
_NOTHING = 1e-6
_NORMAL_MAD = 1.4826
"""The standard deviation of normal noise over its median absolute deviation."""


@dataclass(frozen=True)
class Mean:
    """The logarithm of a ratio of means, of ``n`` blocks."""

    centre: float
    standard_error: float
    skewness: float
    """The skewness of the statistic: that of the blocks over the root of their number."""
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        """The two-sided interval at ``CONFIDENCE``."""
        quantile = t_quantile((1 + CONFIDENCE) / 2, self.n - 1)
        return (
            self.centre - self.standard_error * max(quantile, self._untransformed(quantile)),
            self.centre - self.standard_error * min(-quantile, self._untransformed(-quantile)),
        )

    def p_above(self, value: float) -> float:
        """Return the chance of so high a ratio, or a higher one, if the truth were ``value``."""
        if self.standard_error == 0:
            return 0.0 if self.centre > value else 1.0
        student = (self.centre - value) / self.standard_error
        return float(special.stdtr(self.n - 1, -min(student, self._transformed(student))))

    def p_below(self, value: float) -> float:
        """Return the chance of so low a ratio, or a lower one, if the truth were ``value``."""
        return (-self).p_above(-value)

    def __neg__(self) -> "Mean":
        return replace(self, centre=-self.centre, skewness=-self.skewness)

    def _transformed(self, student: float) -> float:
        if abs(self.skewness) < _NOTHING:
            return student
        return ((1 + self.skewness * student / 3) ** 3 - 1) / self.skewness + self.skewness / 6

    def _untransformed(self, value: float) -> float:
        if abs(self.skewness) < _NOTHING:
            return value
        return 3 * (math.cbrt(1 + self.skewness * (value - self.skewness / 6)) - 1) / self.skewness


def ratio_of_means(log_ratios: Samples, log_base: Samples) -> Mean | None:
    """Return the mean of the own values over that of the base's, both by block; None below two blocks."""
    ratios = np.asarray(log_ratios, dtype=np.float64)
    base = np.asarray(log_base, dtype=np.float64)
    n = len(ratios)
    if n < 2:
        return None
    target = np.exp(ratios + base - base.max())
    base = np.exp(base - base.max())
    influence = target / target.mean() - base / base.mean()
    variance = float(influence @ influence) / n
    skewness = 0.0
    if variance > _NOTHING**4:
        skewness = float((influence**3).mean()) / variance**1.5
    error = 0.0
    if variance > _NOTHING**4:
        error = math.sqrt(variance / (n - 1))
    return Mean(math.log(target.mean() / base.mean()), error, skewness / math.sqrt(n), n)


@dataclass(frozen=True)
class SlowTrials:
    """The slow trials of a target and of its baseline, in the ``n`` blocks that hold both.

    A trial is slow where the ratio of its block departs from the typical one: what slows down both is no trial's own.
    ``own`` and ``base`` are counts of blocks in which that trial alone was slow.
    """

    over: float
    """A slow trial is slower than the typical one by more than this share."""
    own: int
    base: int
    n: int
    failures: Failures = NONE_FAILED
    """Those that failed: they count as slow ones."""
    machines: Mapping[str, int] = field(default_factory=dict)
    """The machines on which every trial of the target was slow, by name with their trials: no chance of a queue."""

    @property
    def p(self) -> float:
        """The chance of so many slow and failed trials on the target if both sides had them equally often."""
        return more_often(self.own + self.failures.own, self.base + self.failures.base)

    @property
    def excluded(self) -> float:
        """The share of slow and failed trials such that more are excluded at ``CONFIDENCE``."""
        failed = self.failures
        blocks = self.n + failed.own + failed.base + failed.both
        if failed.n:  # a trial that failed and was repeated has a ratio, too
            blocks = min(blocks, failed.n)
        return most(self.own + failed.own, blocks)


def slow_trials(
    log_ratios: Samples,
    *,
    more_is_faster: bool = True,
    failures: Failures = NONE_FAILED,
    machines: Sequence[str] = (),
) -> SlowTrials:
    """Count the slow trials by the log ratios of the blocks, of which there is at least one.

    ``machines`` names the machine of each block; empty if all are of one.
    """
    slower = -1 if more_is_faster else 1
    departures = slower * np.asarray(log_ratios, dtype=np.float64)
    departures = departures - np.median(departures)
    noise = _NORMAL_MAD * float(np.median(np.abs(departures)))
    bound = max(slower * log_slower_by(SLOW, more_is_faster=more_is_faster), _DEVIATIONS * noise)
    own = int((departures > bound).sum())
    base = int((-departures > bound).sum())
    over = slower_by(exp(slower * bound), more_is_faster=more_is_faster)
    if machines:
        always = slow_machines(departures > bound, machines)
    else:
        always = {}
    return SlowTrials(over, own, base, len(departures), failures, always)


def slow_machines(slow: npt.NDArray[np.bool_], machines: Sequence[str]) -> dict[str, int]:
    """Return the machines on which every trial was slow, beyond chance, with their trials.

    The level is that at which so many trials, of all that could be there, are slow by chance (hypergeometric), at 5 %
    corrected for the number of machines (Bonferroni).
    """
    names = np.asarray(machines)
    every = sorted({*machines})
    total = int(slow.sum())
    always_slow = {}
    for name in every:
        trials = int((names == name).sum())
        others = len(slow) - trials
        if slow[names == name].all() and others > total - trials:
            chance = special.binom(others, total - trials) / special.binom(len(slow), total)
            if chance * len(every) <= SIGNIFICANCE:
                always_slow[name] = trials
    return always_slow


@dataclass(frozen=True)
class Tail:
    """The tail of a target: its expected ratio and its slow trials, in the direction of the metric."""

    expected: Mean
    slow: SlowTrials
    more_is_faster: bool

    def p_slower_than(self, typical: float) -> float:
        """Return the level at which the expected log ratio is slower than this one."""
        if self.more_is_faster:
            return self.expected.p_below(typical)
        return self.expected.p_above(typical)


def tail_of(
    log_ratios: Samples,
    log_base: Samples,
    *,
    more_is_faster: bool = True,
    failures: Failures = NONE_FAILED,
    machines: Sequence[str] = (),
) -> Tail | None:
    """Return the tail of a target; None below two blocks. Of a rate, the times per unit of work are averaged."""
    sign = -1 if more_is_faster else 1
    times = sign * np.asarray(log_ratios, dtype=np.float64)
    base = sign * np.asarray(log_base, dtype=np.float64)
    mean = ratio_of_means(times, base)
    if not mean:
        return None
    slow = slow_trials(
        log_ratios,
        more_is_faster=more_is_faster,
        failures=failures,
        machines=machines,
    )
    return Tail(-mean if more_is_faster else mean, slow, more_is_faster)


def qualified(
    verdicts: Sequence[Verdict | None], places: Sequence[Location | None], tails: Sequence[Tail | None], margin: float
) -> list[Verdict | None]:
    """Return the verdicts of one family with each ``equivalent`` held against the tail of its target.

    ``tail``: the target has slow trials beyond chance, or the expected ratio is slower than the typical one and not
    shown to be within the margin. ``typical-only``: the expected ratio is not shown to be within the margin, and that
    is all. Each at 5 % and Holm-adjusted. What has no tail (a ratio of ratios) is judged by the typical ratio alone.
    """
    bounds = bounds_of(margin)
    both = list(zip(places, tails, strict=True))
    slow = holm([tail.slow.p if tail else math.nan for tail in tails])
    apart = holm([tail.p_slower_than(location.centre) if location and tail else math.nan for location, tail in both])
    inside = holm([_p_both_inside(location, tail, bounds) if location else math.nan for location, tail in both])
    return [
        _qualified(verdict, *levels) if verdict and verdict.name == "equivalent" and tail else verdict
        for verdict, tail, *levels in zip(verdicts, tails, slow, apart, inside, strict=True)
    ]


def _qualified(verdict: Verdict, p_slow: float, p_apart: float, p_inside: float) -> Verdict:
    if p_slow <= SIGNIFICANCE:
        return replace(verdict, name="tail", p=p_slow)
    if p_inside <= SIGNIFICANCE:
        return replace(verdict, p=p_inside)
    apart = p_apart <= SIGNIFICANCE
    if apart:
        return replace(verdict, name="tail", p=p_apart)
    return replace(verdict, name="typical-only")


def _p_both_inside(location: Location, tail: Tail | None, bounds: Bounds) -> float:
    """Return the level at which both ratios are within the bounds: the greater of the two, as both must be."""
    p = p_inside(location, bounds)
    if tail:
        return max(p, tail.expected.p_below(bounds.high), tail.expected.p_above(bounds.low))
    return p
