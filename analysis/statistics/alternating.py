"""The statistics of the alternating design: what its ratios vary by, and how a block is best arranged.

In a block a pair of instances, bare metal and a target, is opened anew and takes turns: in every round each of the two
runs one burst of steps. A round gives log(target / bare metal); rounds are averaged inside their pair, pairs inside
their block, and the block is the sample (``ratios.locate``). Bursts, instances and blocks vary, one inside the other.
Sources:

- Components of variance and the best numbers of repetitions: Kalibera and Jones, Rigorous Benchmarking in Reasonable
  Time, ISMM 2013; for three levels in its corrected version, where what is taken off a level's mean square is the whole
  mean square of the level below.
- The same where rounds are missing: Searle, Casella and McCulloch, Variance Components (1992), chapter 5 (Henderson's
  first method). With equal numbers the two are the same.

``benchmarks/alternating_simulation.py`` measures how well this works.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from analysis.statistics.ratios import Samples, locate
from suite.errors import RequestError

LEAST_ROUNDS = 2
"""A single round does not show how rounds vary, and nothing balances which of the two came first in it."""
MOST_ROUNDS = 64
MOST_INSTANCES = 4
"""If blocks do not seem to vary, one would last for ever; but the interval is over blocks, and needs several."""


@dataclass(frozen=True)
class Components:
    """The variances of log ratios: between the rounds of a pair of instances, between such pairs, and between blocks.

    Each is that of its level alone, without the levels below it. None where nothing was repeated at that level, whose
    variance is then part of the next one above. ``truncated`` names the components whose unbiased estimate was
    negative, and which are given as zero.
    """

    burst: float | None = None
    instance: float | None = None
    block: float | None = None
    truncated: tuple[str, ...] = ()


def components(log_ratios: Sequence[Sequence[Samples]]) -> Components:
    """Estimate, without bias, the variances of the log ratios of [block][pair of instances][round]; NaN is left out."""
    pairs = list(_finite(log_ratios))
    if not pairs:
        return Components()
    numbers, rounds_of_pairs = zip(*pairs, strict=True)
    values = np.concatenate(rounds_of_pairs)
    sizes = [*map(len, rounds_of_pairs)]
    pair = np.repeat(np.arange(len(pairs)), sizes)
    _, block_of = np.unique(numbers, return_inverse=True)
    block = block_of[pair]
    rounds = np.bincount(pair)
    block_rounds = np.bincount(block)
    n = len(values)
    pair_means = np.bincount(pair, values) / rounds
    block_means = np.bincount(block, values) / block_rounds

    # How often the variance between pairs is in the sum of squares between blocks, and what is left between pairs.
    inside = float((rounds**2 / block_rounds[block_of]).sum())
    in_all = float((rounds**2).sum()) / n
    free_rounds = n - len(rounds)
    free_pairs = len(rounds) - len(block_rounds)
    free_blocks = len(block_rounds) - 1
    in_pairs = values - pair_means[pair]
    burst = _variance((in_pairs**2).sum(), 0.0, free_rounds, free_rounds)
    below = burst or 0.0
    in_blocks = pair_means[pair] - block_means[block]
    instance = _variance((in_blocks**2).sum(), free_pairs * below, n - inside, free_pairs)
    between_blocks = block_means[block] - values.mean()
    lower = (inside - in_all) * (instance or 0.0) + free_blocks * below
    weight = n - float((block_rounds**2).sum()) / n
    variance = _variance((between_blocks**2).sum(), lower, weight, free_blocks)
    levels = {"burst": burst, "instance": instance, "block": variance}
    estimated = {name: value for name, value in levels.items() if value is not None}
    truncated = tuple(name for name, value in estimated.items() if value < 0)
    variances = {name: max(0.0, value) for name, value in estimated.items()}
    return Components(**variances, truncated=truncated)


def _finite(log_ratios: Sequence[Sequence[Samples]]) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """Yield the rounds that are not missing of each pair that has any, with the number of its block."""
    for number, block in enumerate(log_ratios):
        for pair in block:
            rounds = np.asarray(pair, dtype=np.float64)
            finite = rounds[np.isfinite(rounds)]
            if len(finite):
                yield number, finite


def _variance(squares: float, lower: float, weight: float, free: int) -> float | None:
    """Return the variance of a level: its sum of squares, less the part of lower levels. None without repetitions."""
    if not free:
        return None
    return (float(squares) - lower) / weight


@dataclass(frozen=True)
class Costs:
    """The seconds that a pilot took, whose bursts had ``burst_steps`` steps.

    ``round_s`` is a whole round: the bursts of both sides. ``switch_s`` is the part of it that goes into no step that
    counts: handing over, and first steps that are left out. ``instance_s`` is a pair of instances without its rounds
    (opening, warm-up, closing), and ``block_s`` a block without its pairs.
    """

    round_s: float
    instance_s: float
    burst_steps: int
    block_s: float = 0.0
    switch_s: float = 0.0


@dataclass(frozen=True)
class Design:
    """The arrangement of a block: the steps of a burst, the rounds of a pair, and its pairs of instances."""

    burst_steps: int
    rounds: int
    instances: int


def choose(variances: Components, costs: Costs, step: float | None = None) -> Design:
    """Return the arrangement that narrows the interval fastest; numbers are rounded up.

    ``step`` is the variance that a single step inside a burst has, as a log ratio: that of both sides together. With it
    the length of bursts is chosen as well, up to that of the pilot: how the weather changes between longer ones, the
    pilot has not seen. Raises RequestError for a pilot in which neither rounds nor blocks were repeated.
    """
    if variances.burst is None or variances.block is None:
        lacking = "one round in every pair of instances"
        if variances.block is None:
            lacking = "one block"
        raise RequestError(f"a pilot of {lacking} does not show how they vary", remedy="give the pilot two or more")
    steps = costs.burst_steps
    burst = variances.burst
    round_s = costs.round_s
    if step is not None:
        step_s = (round_s - costs.switch_s) / steps
        of_steps = min(step, burst * steps)
        beyond = burst - of_steps / steps
        (best,) = repetitions((costs.switch_s, step_s), (beyond, of_steps))
        steps = _rounded_up(best, most=steps)
        burst = beyond + of_steps / steps
        round_s = costs.switch_s + steps * step_s
    seconds = costs.block_s, costs.instance_s, round_s
    instances, rounds = repetitions(seconds, (variances.block, variances.instance or 0.0, burst))
    return Design(
        burst_steps=steps,
        rounds=max(LEAST_ROUNDS, _rounded_up(rounds, most=MOST_ROUNDS)),
        instances=_rounded_up(instances, most=MOST_INSTANCES),
    )


def _rounded_up(value: float, *, most: int) -> int:
    # A little less first, so that 2.0000000001 is 2.
    return math.ceil(min(value, most) - 1e-9)


def repetitions(seconds: Sequence[float], variances: Sequence[float]) -> list[float]:
    """Return how often each level is best repeated inside the one above it, for all but the highest; not rounded.

    ``seconds`` and ``variances`` are those of each level alone, the highest level first. A level is repeated
    sqrt((seconds above / own seconds) * (own variance / variance above)) times (Kalibera and Jones). Where that is less
    than once it is once, and the two levels act as one on those around them, with the sum of their seconds and that of
    their variances.
    """
    # Seconds, variance, and the number of levels in it.
    merged: list[tuple[float, float, int]] = []
    for level in zip(seconds, variances, itertools.repeat(1), strict=False):
        merged.append(level)
        while len(merged) > 1:
            above_s, above_variance, above_levels = merged[-2]
            below_s, below_variance, below_levels = merged[-1]
            act_as_one = below_variance * above_s <= above_variance * below_s
            if not act_as_one:
                break
            of_both = (above_s + below_s, above_variance + below_variance, above_levels + below_levels)
            merged[-2:] = [of_both]
    counts = [1.0] * (merged[0][2] - 1)
    for (above_s, above_variance, _), (level_s, variance, levels) in itertools.pairwise(merged):
        divisor = level_s * above_variance
        count = math.inf
        if divisor:
            count = math.sqrt(above_s * variance / divisor)
        counts += [count, *[1.0] * (levels - 1)]
    return counts


@dataclass(frozen=True)
class SwitchingCost:
    """The time of the first step of a burst over that of the others, as a ratio with its interval.

    The interval is None after a single instance.
    """

    ratio: float
    interval: tuple[float, float] | None
    instances: int

    @property
    def shown(self) -> bool:
        """Whether the data show that the first step costs more: only then is it to be left out."""
        return self.interval is not None and self.interval[0] > 1


def switching_cost(steps_s: Iterable[Sequence[Samples]]) -> SwitchingCost | None:
    """Compare the first step of a burst with the others of the same burst; None where there are no others.

    ``steps_s`` holds the seconds of [instance][burst][step]. Bursts of one instance depend on each other, so that the
    sample is the instance: the mean of its log ratios.
    """
    instances = []
    for bursts in steps_s:
        logs = []
        for burst in bursts:
            if len(burst) > 1:
                logs.append(np.log(burst))
        if logs:
            instances.append(fmean(steps[0] - steps[1:].mean() for steps in logs))
    location = locate(instances)
    if location:
        return SwitchingCost(location.ratio, location.ratio_interval, location.n)
    return None
