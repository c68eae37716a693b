"""Ratios of numbers that no machine measured: a foreign record may hold any, and none ends the analysis."""

import math

from analysis.compare.contrasts import effect
from analysis.statistics.ratios import exp, locate


def test_a_ratio_beyond_the_largest_number_stays_one() -> None:
    assert exp(1400.0) == exp(700.0) < math.inf
    assert exp(0.5) == math.exp(0.5)
    assert exp(-1400.0) == exp(-700.0) > 0.0


def test_an_effect_of_such_ratios_is_finite() -> None:
    place = locate([1400.0, 1300.0, 1390.0])
    assert place is not None
    found = effect(place)
    assert found.ratio == exp(700.0)
    assert found.interval is not None
    assert found.interval[1] == exp(700.0)
