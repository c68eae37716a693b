"""Two independent samples: the promise of the blocks that are planned, and the ends of what can be said."""

import math
from typing import Any

import numpy as np
import pytest

from analysis.statistics.power import POWER
from analysis.statistics.ratios import Location, locate
from analysis.statistics.two_samples import detectable, difference, level_of, more_blocks
from tests.analysis.conftest import located
from tests.analysis.test_benchmarks import _beside_each_other as beside_each_other
from tests.analysis.test_benchmarks import benchmark

__all__ = ["beside_each_other"]

BOUND = math.log1p(0.05)


def sample(rng: "np.random.Generator", blocks: int, noise: float) -> Location:
    return located(rng.normal(0, noise, blocks))


@pytest.mark.parametrize(("noise", "first"), [(0.05, 10), (0.08, 20)])
def test_as_many_more_blocks_as_it_says_tell_with_the_promised_chance(noise: float, first: int) -> None:
    rng = np.random.default_rng(1)
    told = 0
    for _ in range(400):
        more = more_blocks(sample(rng, first, noise), sample(rng, first, noise), BOUND)
        assert more
        found = difference(sample(rng, first + more, noise), sample(rng, first + more, noise))
        assert found.half_width
        told += found.centre + found.half_width < BOUND
    assert POWER - 0.06 < told / 400 < POWER + 0.1


def test_what_blocks_detect_is_what_more_blocks_aims_at() -> None:
    rng = np.random.default_rng(2)
    old, new = sample(rng, 9, 0.1), sample(rng, 12, 0.1)
    more = more_blocks(old, new, BOUND)
    assert more
    enough, almost = detectable(old, new, more), detectable(old, new, more - 1)
    assert enough is not None
    assert almost is not None
    assert enough <= BOUND < almost


def test_a_single_value_has_no_interval_and_equal_values_have_none_either() -> None:
    one, equal = located([0.1]), located([0.0] * 6)
    assert difference(equal, one).half_width is None
    assert detectable(equal, one) is None
    assert difference(equal, equal).half_width == 0
    assert more_blocks(equal, equal, 0.1) == 1


def test_what_would_take_ten_thousand_blocks_is_out_of_reach() -> None:
    rng = np.random.default_rng(3)
    assert more_blocks(sample(rng, 6, 3.0), sample(rng, 6, 3.0), 1e-3) is None


@pytest.mark.parametrize(("noise", "most"), [("normal", 0.045), ("heavy", 0.06), ("skewed", 0.095), ("lasting", 0.06)])
def test_nights_that_differ_raise_few_false_alarms_once_three_old_runs_show_it(noise: str, most: float) -> None:
    simulated = benchmark("between_runs")
    one, five = (simulated.rates(noise, 0.03, old, runs=300) for old in (1, 5))
    assert one["at the bound"] > 0.25, "a single old run holds no spread between runs"
    assert max(five["at the bound"], five["missed"]) <= most
    assert five["same"] < 0.02
    if noise != "skewed":
        assert simulated.rates(noise, 0.0, 5, runs=300)["at the bound"] <= 0.03, "of runs that do not differ"


RUNS = [[0.0, 0.1], [0.3, 0.4], [0.5, 0.7]]


def test_the_level_of_old_runs_is_that_of_the_formula() -> None:
    level = level_of(RUNS)
    assert level
    assert level.standard_error
    centres, within = [0.05, 0.35, 0.6], (0.05**2 + 0.05**2 + 0.1**2) / 3
    between = np.var(centres, ddof=1) - within
    assert level.centre == pytest.approx(1 / 3)
    assert (level.n, level.degrees_of_freedom) == (6, 2)
    assert level.spread == pytest.approx(math.sqrt(between))
    assert level.standard_error == pytest.approx(math.sqrt(between + np.var(centres, ddof=1) / 3))
    new = located([0.0, 0.1, 0.2])
    shift, more = difference(level, new), detectable(level, new, 1000)
    assert shift.half_width
    assert shift.degrees_of_freedom <= 2, "more blocks know no more of how runs differ"
    assert more is not None
    assert more > level.standard_error * 4.3
    assert more_blocks(level, new, 0.1) is None


@pytest.mark.parametrize(
    ("runs", "spread"),
    [
        ([], None),
        (RUNS[:1], None),
        (RUNS[:2], None),
        ([[0.1], [0.1], [0.1]], 0.0),
        ([[0.0, 0.2], [0.2, 0.0], [0.1, 0.1]], 0.0),
        ([[0.0], [], [0.2], [0.1]], 0.1),
    ],
)
def test_fewer_than_three_old_runs_show_no_spread_and_equal_ones_have_none(runs: Any, spread: float | None) -> None:
    level = level_of(runs)
    assert (level is None) == (not runs)
    if spread is None and level:
        assert level == locate([value for run in runs for value in run])
    elif level:
        assert level.spread == pytest.approx(spread)
