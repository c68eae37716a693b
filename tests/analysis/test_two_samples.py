"""Two independent samples: the promise of the blocks that are planned, and the ends of what can be said."""

import math

import numpy as np
import pytest

from analysis.statistics.power import POWER
from analysis.statistics.ratios import Location, locate
from analysis.statistics.two_samples import detectable, difference, more_blocks

BOUND = math.log1p(0.05)


def sample(rng: "np.random.Generator", blocks: int, noise: float) -> Location:
    place = locate(rng.normal(0, noise, blocks))
    assert place
    return place


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
    one, equal = locate([0.1]), locate([0.0] * 6)
    assert one
    assert equal
    assert difference(equal, one).half_width is None
    assert detectable(equal, one) is None
    assert difference(equal, equal).half_width == 0
    assert more_blocks(equal, equal, 0.1) == 1


def test_what_would_take_ten_thousand_blocks_is_out_of_reach() -> None:
    rng = np.random.default_rng(3)
    assert more_blocks(sample(rng, 6, 3.0), sample(rng, 6, 3.0), 1e-3) is None
