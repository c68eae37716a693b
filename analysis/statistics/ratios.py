"""The statistics of ratios: pure functions of log ratios, one per block. The trial is the sample, never the step.

A block's log ratio is log(target / bare metal). Both trials of a block share the drift of the host, which cancels, and
when both have the same noise their difference is symmetric however skewed that noise is, so that a trimmed mean
estimates the same centre as the mean. Sources:

- Trimmed mean and its t interval: Tukey and McLaughlin, Sankhya A 25 (1963) 331; Yuen, Biometrika 61 (1974) 165. Heavy
  tails make Student's t too wide and a few outliers make it useless; trimming at each end prevents both. Below five
  blocks nothing is trimmed, which is Student's t.
- Verdicts by two one-sided tests: Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657.
- Correction for many comparisons: Holm, Scand. J. Statist. 6 (1979) 65.

``benchmarks/validity.py`` measures the coverage of all this on simulated sweeps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from analysis.statistics.margins import Bounds, bounds_of, share_of
from analysis.statistics.power import (
    POWER,
    TRIM,
    blocks_needed,
    degrees_of_freedom,
    detectable,
    errors_detected,
    trimmed,
)
from suite.request.repetitions import MARGIN

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05

Samples = Sequence[float] | npt.NDArray[np.float64]
VerdictName = Literal["equivalent", "slower", "faster", "undecided", "tail", "typical-only", "fails more", "not slower"]
"""``tail`` and ``typical-only`` qualify ``equivalent``; see ``tails``. ``fails more`` is about the trials that have no
value; see ``failures``. A gate has ``not slower``: faster or not."""
FAILS_MORE: VerdictName = "fails more"


def exp(logarithm: float) -> float:
    """Return e to this power, within e^-700 and e^700: a foreign record may hold any number, and ends no analysis."""
    return math.exp(max(-700.0, min(logarithm, 700.0)))


def exp_ends(interval: tuple[float, float]) -> tuple[float, float]:
    return exp(interval[0]), exp(interval[1])


def t_quantile(p: float, degrees_of_freedom: float) -> float:
    """Return a quantile of Student's t. ``scipy.stats.t`` gives the same 100 times slower, which simulations feel."""
    return float(special.stdtrit(degrees_of_freedom, p))


@dataclass(frozen=True)
class Location:
    """A trimmed mean of ``n`` values, in their unit. With one value there is no standard error."""

    centre: float
    standard_error: float | None
    degrees_of_freedom: float
    n: int
    spread: float | None = None
    """The standard deviation between runs, if it is known; then the error holds it, and no more blocks narrow that."""

    @property
    def deviation(self) -> float | None:
        """The standard deviation of one value, as far as it is not trimmed; None for one value."""
        if self.standard_error is None:
            return None
        return self.standard_error * math.sqrt(self.n)

    @property
    def half_width(self) -> float | None:
        """The half width of the two-sided interval at ``CONFIDENCE``; zero without variance, None for one value."""
        if self.standard_error is None:
            return None
        return self.standard_error * t_quantile((1 + CONFIDENCE) / 2, self.degrees_of_freedom)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The two-sided interval at ``CONFIDENCE``; None for one value."""
        half = self.half_width
        return None if half is None else (self.centre - half, self.centre + half)

    @property
    def ratio(self) -> float:
        return exp(self.centre)

    @property
    def ratio_interval(self) -> tuple[float, float] | None:
        return self.interval and exp_ends(self.interval)

    @property
    def spread_share(self) -> float | None:
        """The spread between runs as a share, if it is known."""
        return None if self.spread is None else share_of(self.spread)


def locate(values: Samples, trim: float = TRIM) -> Location | None:
    """Return the trimmed mean, the mean for ``trim`` 0. Missing values (NaN) are left out; None if none is left."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    ordered = ordered[np.isfinite(ordered)]
    n = len(ordered)
    if n == 0:
        return None
    cut = trimmed(n, trim)
    kept = n - 2 * cut
    centre = float(ordered[cut : n - cut].mean())
    if kept < 2:
        return Location(centre, None, 0, n)
    winsorised = np.clip(ordered, ordered[cut], ordered[n - cut - 1])
    squares = float(((winsorised - winsorised.mean()) ** 2).sum())
    return Location(
        centre,
        math.sqrt(squares / (kept * (kept - 1))),
        degrees_of_freedom(n, trim),
        n,
    )


class Prospect(NamedTuple):
    """A wider margin, and how many more blocks would probably decide at it."""

    margin: float
    more_blocks: int


@dataclass(frozen=True)
class Verdict:
    """A verdict of the data on a ratio against a margin.

    ``p`` is the Holm-adjusted level at which it holds: that of the test that decided, or the smaller one if none did;
    None where there is no test. ``more_blocks`` is how many more would decide with a chance of about 80 % if the
    truth is what was estimated; None when it is decided, or would take more than 10,000. ``detectable`` is the
    difference from 1, as a share, that so many blocks detect; see ``detectable_share``.
    """

    name: VerdictName | None
    """None where the verdict is withheld."""
    p: float | None
    more_blocks: int | None = None
    detectable: float | None = None
    level: float = SIGNIFICANCE
    """The level that ``p`` was held against: lower where a stop rule looks again and again."""
    withheld: tuple[str, ...] = ()
    """Why the trials decide nothing, whatever the tests say of them; empty where the verdict stands."""
    margin: float | None = None
    """The margin, or the bound of a gate, that it was judged by; None before that is known."""
    equivalent_at: float | None = None
    """The least of ``WIDER_MARGINS`` at which an undecided ratio is equivalent; None for none."""
    prospects: tuple[Prospect, ...] = ()
    """Those of ``WIDER_MARGINS`` at which an undecided ratio is open, too, but more blocks decide; the least first."""


def judge(
    locations: Sequence[Location | None],
    margin: float = MARGIN,
    *,
    more_is_faster: bool | Sequence[bool] = True,
    level: float = SIGNIFICANCE,
) -> list[Verdict | None]:
    """Judge each log ratio of one family of comparisons; the verdicts are corrected for their number.

    ``equivalent``: the ratio is within the margin (see ``margins``). ``slower`` and ``faster``: it is outside. Each at
    the level, 5 % (the outside counts both directions), Holm-adjusted. None for None; ``undecided`` where one block is
    all. ``more_is_faster``: of all ratios, or of each.
    """
    bounds = bounds_of(margin)
    if isinstance(more_is_faster, bool):
        directions: Sequence[bool] = [more_is_faster] * len(locations)
    else:
        directions = more_is_faster
    inside = [p_inside(location, bounds) if location else math.nan for location in locations]
    outside = [_p_outside(location, bounds) if location else math.nan for location in locations]
    family = sum(location is not None for location in locations)
    return [
        _verdict(location, bounds, levels, family, direction, level) if location else None
        for location, direction, *levels in zip(locations, directions, holm(inside), holm(outside), strict=True)
    ]


def _verdict(
    location: Location, bounds: Bounds, levels: Sequence[float], family: int, more_is_faster: bool, level: float
) -> Verdict:
    if location.standard_error is None:
        return Verdict("undecided", None)
    p_in, p_out = levels
    share = detectable_share(location, family)
    if p_in <= level:
        return Verdict("equivalent", p_in, detectable=share)
    if p_out <= level:
        return Verdict(
            "faster" if (location.centre > 0) == more_is_faster else "slower",
            p_out,
            detectable=share,
        )
    return Verdict(
        "undecided",
        min(p_in, p_out),
        _more_blocks(location, bounds, level / family),
        share,
        level,
    )


def p_inside(location: Location, bounds: Bounds) -> float:
    """Return the level at which a log ratio is within the bounds."""
    return p_beyond(-bounds.beyond(location.centre), location)


def _p_outside(location: Location, bounds: Bounds) -> float:
    return min(1.0, 2 * p_beyond(bounds.beyond(location.centre), location))


def p_beyond(distance: float, location: Location) -> float:
    """Return the chance of lying ``distance`` or more on the right side of a bound when the truth is on the bound."""
    if location.standard_error is None:
        return 1.0
    if location.standard_error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(special.stdtr(location.degrees_of_freedom, -distance / location.standard_error))


def detection_level(family: int) -> float:
    """Return the level, on each side, at which one of ``family`` ratios differs from 1: that of Holm's first step."""
    return SIGNIFICANCE / family / 2


def detectable_share(location: Location, family: int, blocks: int | None = None) -> float | None:
    """Return the difference from 1, as a share, that ``blocks`` blocks (default: its own) of such a ratio detect.

    If the true ratio is 1 + share, or 1 - share, the two-sided test at 5 %, Holm-corrected for ``family`` ratios,
    calls it different with a chance of 80 % or more. None where one block is all, or not even a tenfold ratio
    is detected.
    """
    if location.deviation is None:
        return None
    level = detection_level(family)
    if location.spread is None or location.standard_error is None:
        log_ratio = detectable(
            location.deviation,
            location.degrees_of_freedom,
            blocks or location.n,
            level=level,
        )
    else:
        freedom = location.degrees_of_freedom
        log_ratio = errors_detected(freedom, freedom, level=level) * location.standard_error
    return share_of(log_ratio) if log_ratio < math.log(10) else None


def _more_blocks(location: Location, bounds: Bounds, level: float) -> int | None:
    """Return the blocks that decide on which side of a bound a ratio lies, at this level of Holm's first step."""
    beyond = bounds.beyond(location.centre)
    distance = abs(beyond)
    if not location.deviation or distance == 0 or location.spread is not None:
        return None
    # Equivalence must win at both bounds, a difference at either of two levels at one.
    level, power = (level, (1 + POWER) / 2) if beyond < 0 else (level / 2, POWER)
    needed = blocks_needed(
        distance,
        location.deviation,
        location.degrees_of_freedom,
        level=level,
        power=power,
        least=location.n + 1,
    )
    return None if needed is None else needed - location.n


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p values in the same order; NaN stays NaN and is no comparison."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)[: int(np.isfinite(p).sum())]
    adjusted = np.full(len(p), np.nan)
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return [float(value) for value in adjusted]


@dataclass(frozen=True)
class NoiseFloor:
    """The smallest overhead that so many blocks could have shown, as a share: 0.013 is 1.3 %.

    ``method`` is ``a/a`` (a second bare-metal trial in each block) or ``across-blocks`` (bare metal against that of the
    block before, which also holds the drift between them: an upper bound).
    """

    share: float
    method: Literal["a/a", "across-blocks"]
    blocks: int


def noise_floor(replica_log_ratios: Samples, baseline_logs: Sequence[Samples]) -> NoiseFloor | None:
    """Return the half width that a ratio to bare metal has by the noise of bare metal alone.

    ``replica_log_ratios``: log(second / first bare-metal trial), one per block; with two or more they decide.
    ``baseline_logs``: per run, log of bare metal's value in the order of the blocks. None without either.
    """
    replicas = locate(replica_log_ratios)
    if replicas and replicas.half_width is not None:
        return NoiseFloor(share_of(replicas.half_width), "a/a", replicas.n)
    steps = [np.diff(np.asarray(logs, dtype=np.float64)) for logs in baseline_logs]
    across = locate(np.concatenate(steps)) if steps else None
    if across is None or across.half_width is None:
        return None
    return NoiseFloor(share_of(across.half_width), "across-blocks", across.n + len(steps))


@dataclass(frozen=True)
class StepTimes:
    """The spread of the measured steps of one target, in seconds, over ``trials`` trials.

    ``jitter_s`` is the mean absolute difference between a step and the next. Steps of a trial depend on each other, so
    this is a description and has no interval.
    """

    p50_s: float
    p95_s: float
    p99_s: float
    jitter_s: float | None
    trials: int


def step_times(trials: Sequence[Samples]) -> StepTimes | None:
    """Summarise the step times of all trials; None if there are none."""
    columns = []
    for steps in trials:
        if len(steps):
            columns.append(np.asarray(steps, dtype=np.float64))
    if not columns:
        return None
    p50, p95, p99 = np.percentile(np.concatenate(columns), (50, 95, 99))
    changes = np.concatenate([np.abs(np.diff(column)) for column in columns])
    jitter = float(changes.mean()) if len(changes) else None
    return StepTimes(float(p50), float(p95), float(p99), jitter, len(columns))
