"""Families of noise: the logarithms of the times of trials, of many sweeps at once."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from analysis.statistics.power import TRIM

Logs = npt.NDArray[np.float64]
TRUTH = {"identical": 0.0, "5 % slower": math.log(1.05), "12 % slower": math.log(1.12)}
"""The logarithms of the ratios that the targets have by their speed; a family adds what its noise costs."""
SIGMA = 0.012
RARE = 0.10
"""The share of the trials of ``rare`` that are ``SLOWER`` by this share."""
SLOWER = 0.30
_POPULATION = 2_000_000

Noise = Callable[[np.random.Generator, tuple[int, ...]], Logs]
Common = Callable[[np.random.Generator, int, int, int], Logs]
"""What all trials of a machine share: of the generator, sweeps, trials one after the other, and trials in a block."""


def _none(_: np.random.Generator, sweeps: int, trials: int, __: int) -> Logs:
    return np.zeros((sweeps, trials))


@dataclass(frozen=True)
class Family:
    """The noise of bare metal and of the targets. ``until`` is the precision that a sequential run is given."""

    name: str
    noise: Noise
    of_targets: Noise | None = None
    """The noise of the targets where it is not that of bare metal."""
    common: Common = _none
    until: float = 0.02
    slow_share: float | None = None
    """The share of slow trials that the targets alone have, where the family is about them."""

    @property
    def alike(self) -> bool:
        """Return whether the trials of targets are distributed as those of bare metal, but for their speed."""
        return self.of_targets is None

    def blocks(self, rng: np.random.Generator, sweeps: int, blocks: int) -> tuple[Logs, Logs]:
        """Return the log times of bare metal, and of the targets (the last axis), by sweep and block."""
        arms = 1 + len(TRUTH)
        common = self.common(rng, sweeps, blocks * arms, arms).reshape(sweeps, blocks, arms)
        base = self.noise(rng, (sweeps, blocks))
        own = (self.of_targets or self.noise)(rng, (sweeps, blocks, len(TRUTH))) + np.array(list(TRUTH.values()))
        shared = rng.permuted(common, axis=2)
        return base + shared[..., 0], own + shared[..., 1:]

    def in_a_row(self, rng: np.random.Generator, sweeps: int, runs: int) -> tuple[Logs, Logs]:
        """Return all trials of bare metal, and then all of an identical target: how other tools run them."""
        common = self.common(rng, sweeps, 2 * runs, 1 + len(TRUTH))
        base = self.noise(rng, (sweeps, runs))
        own = (self.of_targets or self.noise)(rng, (sweeps, runs))
        return base + common[:, :runs], own + common[:, runs:]

    def typical(self, blocks: int) -> float:
        """Return the trimmed mean of all log ratios there could be, trimmed as that of so many blocks is."""
        if self.alike:
            return 0.0
        ratios = _population(self)
        cut = int(len(ratios) * max(1, int(TRIM * blocks)) / blocks)
        return float(ratios[cut : len(ratios) - cut].mean())

    @property
    def expected(self) -> float:
        """Return the logarithm of the ratio of the mean times."""
        return 0.0 if self.alike else _expected(self)


@cache
def _population(family: Family) -> Logs:
    own, base = _both(family)
    return np.sort(own - base)


@cache
def _expected(family: Family) -> float:
    own, base = _both(family)
    return math.log(np.exp(own).mean() / np.exp(base).mean())


def _both(family: Family) -> tuple[Logs, Logs]:
    rng = np.random.default_rng(0)
    return (family.of_targets or family.noise)(rng, (_POPULATION,)), family.noise(rng, (_POPULATION,))


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Logs:
    return rng.normal(0, SIGMA, shape)


def _with_outliers(rng: np.random.Generator, shape: tuple[int, ...]) -> Logs:
    slow = (rng.random(shape) < 0.04) * rng.lognormal(math.log(0.2), 0.5, shape)
    return SIGMA * rng.standard_t(3, shape) + slow


def _drifting(rng: np.random.Generator, sweeps: int, trials: int, per_block: int) -> Logs:
    """Return a trend of 10 % in 100 trials, a random walk, effects of blocks, and a drift inside them."""
    place = np.arange(trials)
    walk = rng.normal(0, 0.001, (sweeps, trials)).cumsum(axis=1)
    blocks = rng.normal(0, 0.05, (sweeps, -(-trials // per_block))).repeat(per_block, axis=1)[:, :trials]
    return walk + blocks - 0.1 * place / 100 + 0.002 * (place % per_block)


def _autoregressive(rng: np.random.Generator, sweeps: int, trials: int, per_block: int) -> Logs:
    """Return effects of blocks of 5 %, each correlated with the one before by 0.8."""
    effects = rng.normal(0, 0.05, (sweeps, -(-trials // per_block)))
    for block in range(1, effects.shape[1]):
        effects[:, block] = 0.8 * effects[:, block - 1] + 0.6 * effects[:, block]
    return effects.repeat(per_block, axis=1)[:, :trials]


def _skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> Logs:
    return np.log1p(rng.exponential(0.05, shape))


def _wide(rng: np.random.Generator, shape: tuple[int, ...]) -> Logs:
    """Return noise of which each trial has its own width: three times as wide on average."""
    return rng.normal(0, 1, shape) * rng.uniform(0, 6 * SIGMA, shape)


def _bimodal(rng: np.random.Generator, shape: tuple[int, ...]) -> Logs:
    return _normal(rng, shape) + math.log(1.1) * (rng.random(shape) < 0.5)


def _rarely_slow(rng: np.random.Generator, shape: tuple[int, ...]) -> Logs:
    return _normal(rng, shape) + math.log1p(SLOWER) * (rng.random(shape) < RARE)


FAMILIES = (
    Family("normal", _normal),
    Family("nasty", _with_outliers, common=_drifting, until=0.03),
    Family("skewed", _skewed, until=0.03),
    Family("target skewed", _normal, _skewed, until=0.03),
    Family("target noisy", _normal, _wide, until=0.03),
    Family("bimodal", _bimodal, until=0.04),
    Family("AR(1) blocks", _normal, common=_autoregressive),
    Family("rare", _normal, _rarely_slow, until=0.03, slow_share=RARE),
)
