import math

import numpy as np
import pytest

from analysis.statistics.power import MOST_BLOCKS, blocks_needed, detectable
from analysis.statistics.ratios import Location, detectable_share, judge, locate

LEVEL = 0.025


def test_with_a_known_deviation_it_is_the_power_of_the_textbook() -> None:
    # Cohen (1988), table 2.4.1: a difference of half a deviation, 5 % two-sided, 80 %: 33 or 34 pairs. Trimmed, 2 more.
    assert blocks_needed(0.5, 1.0, 1e6, level=LEVEL) in (33, 34, 35, 36)
    assert detectable(1.0, 1e6, 10_000, level=LEVEL) == pytest.approx((1.96 + 0.8416) / 100, rel=1e-3)


def test_fewer_blocks_behind_an_estimate_ask_for_more() -> None:
    asked = [blocks_needed(0.02, 0.05, freedom, level=LEVEL) or 0 for freedom in (2, 5, 9, 1e6)]
    assert asked == sorted(asked, reverse=True)
    assert asked[0] > 1.5 * asked[-1]


def test_the_blocks_needed_are_the_fewest_that_detect() -> None:
    blocks = blocks_needed(0.02, 0.05, 9, level=LEVEL)
    assert blocks
    assert detectable(0.05, 9, blocks, level=LEVEL) <= 0.02 < detectable(0.05, 9, blocks - 1, level=LEVEL)


def test_what_is_out_of_reach_is_not_promised() -> None:
    assert blocks_needed(1e-6, 0.05, 9, level=LEVEL) is None
    assert detectable(0.05, 9, 1, level=LEVEL) == math.inf
    assert detectable(0.05, 9, MOST_BLOCKS, level=LEVEL) > 1e-6
    assert detectable_share(Location(0.0, 100.0, 7, 10), 1) is None
    assert detectable_share(Location(0.0, None, 0, 1), 1) is None


def test_without_noise_the_least_blocks_suffice() -> None:
    assert blocks_needed(0.02, 0.0, 5, level=LEVEL, least=5) == 5


def test_a_true_difference_of_what_a_run_could_have_seen_is_seen_four_times_in_five() -> None:
    rng = np.random.default_rng(1)
    seen = []
    for values in rng.normal(0, 0.03, (1000, 40)):
        share = detectable_share(locate(values[:20]) or Location(0, None, 0, 0), family=1)
        assert share
        (verdict,) = judge([locate(values[20:] + math.log1p(share))], margin=0.0)
        assert verdict
        seen.append(verdict.name == "faster")
    assert 0.76 < np.mean(seen) < 0.84


def test_more_comparisons_see_less() -> None:
    place = Location(0.0, 0.01, 7, 10)
    one, nine = detectable_share(place, 1), detectable_share(place, 9)
    assert one
    assert nine
    assert nine > one
    for verdict in judge([place] * 9):
        assert verdict
        assert verdict.detectable == nine
