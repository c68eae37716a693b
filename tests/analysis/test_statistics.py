import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.statistics.alternating import (
    LEAST_ROUNDS,
    MOST_INSTANCES,
    MOST_ROUNDS,
    Components,
    Costs,
    Design,
    choose,
    components,
    repetitions,
    switching_cost,
)
from analysis.statistics.order import DEPENDENCE_LEVEL, dependence, place_effect
from analysis.statistics.power import MOST_BLOCKS, blocks_needed, detectable
from analysis.statistics.ratios import (
    Location,
    Verdict,
    detectable_share,
    exp,
    holm,
    judge,
    locate,
    noise_floor,
    step_times,
)
from suite.errors import RequestError
from tests.analysis.conftest import known, located


def placed(centre: float, standard_error: float, n: int = 10) -> Location:
    return Location(centre, standard_error, n - 1, n)


def only(place: Location, margin: float = 0.02, *, more_is_faster: bool = True) -> Verdict:
    return known(*judge([place], margin, more_is_faster=more_is_faster))


def test_below_five_values_the_interval_is_students() -> None:
    values = [0.1, 0.12, 0.09, 0.2]
    place = located(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert place.interval == pytest.approx((expected.low, expected.high))


def test_the_trimmed_mean_and_its_error_are_those_of_yuen() -> None:
    values = np.random.default_rng(1).standard_t(2, 23)
    place = located(values)
    # Against values that are all the same, Yuen's two-sample test has our standard error and degrees of freedom.
    result = stats.ttest_ind(values, np.zeros(23), equal_var=False, trim=0.15)
    assert place.centre == pytest.approx(float(stats.trim_mean(values, 0.15)))
    assert place.centre / known(place.standard_error) == pytest.approx(float(result.statistic))
    assert place.degrees_of_freedom == pytest.approx(float(result.df))


def test_few_independent_series_are_called_dependent_and_most_that_last() -> None:
    rng = np.random.default_rng(4)

    def share(blocks: int, correlation: float, noise: str) -> float:
        series = (
            getattr(rng, noise)(size=(4000, blocks)) if noise != "standard_t" else rng.standard_t(3, (4000, blocks))
        )
        for block in range(1, blocks):
            series[:, block] = correlation * series[:, block - 1] + math.sqrt(1 - correlation**2) * series[:, block]
        return float(np.mean([dependence(values) <= DEPENDENCE_LEVEL for values in series]))

    assert all(share(10, 0.0, noise) < 0.016 for noise in ("standard_normal", "standard_t", "standard_exponential"))
    assert share(40, 0.5, "standard_normal") > 0.6
    assert share(20, 0.9, "standard_normal") > 0.8
    assert share(9, 0.9, "standard_normal") == 0.0
    assert math.isnan(dependence([1.0] * 20))
    assert dependence([1.0, -1.0] * 10) > 0.5, "a place in the block makes neighbours unlike, and no interval narrow"


def test_what_a_place_in_the_block_adds_is_found_with_its_interval() -> None:
    rng = np.random.default_rng(5)
    later = np.array([1, -1, -1, 1, 1, -1, 2])
    covered = []
    for _ in range(2000):
        low, high = known(known(place_effect(0.1 - 0.03 * later + rng.normal(0, 0.01, 7), later)).interval)
        covered.append(low <= -0.03 <= high)
    assert 0.93 < np.mean(covered) < 0.97
    assert place_effect([0.1, 0.2], [1, -1]) is place_effect([0.1, 0.2, 0.3], [1, 1, 1]) is None


def test_one_value_has_no_interval_no_value_is_nothing_and_missing_ones_are_left_out() -> None:
    place = located([0.3])
    assert (place, place.interval, only(place)) == (Location(0.3, None, 0, 1), None, Verdict("undecided", None))
    assert locate([]) is locate([math.nan]) is None
    assert locate([1.0, math.nan, 3.0, -math.inf]) == locate([1.0, 3.0])
    assert judge([None]) == [None]


def test_values_without_variance_have_an_interval_of_no_width_and_a_verdict() -> None:
    place = located([0.1, 0.1, 0.1])
    assert place.interval == pytest.approx((0.1, 0.1))
    assert [only(found).name for found in (place, located([0.0, 0.0]))] == ["faster", "equivalent"]


@pytest.mark.parametrize(
    ("centre", "error", "verdict"),
    [
        (0.0, 0.002, "equivalent"),
        (0.012, 0.002, "equivalent"),  # different from 1 and yet within the margin
        (-0.12, 0.01, "slower"),
        (0.12, 0.01, "faster"),
        (0.0, 0.05, "undecided"),
        (-0.03, 0.01, "undecided"),  # slower, but not surely by more than the margin
    ],
)
def test_the_verdict_is_that_of_the_two_one_sided_tests(centre: float, error: float, verdict: str) -> None:
    assert only(placed(centre, error)).name == verdict
    assert only(placed(-centre, error), more_is_faster=False).name == verdict, "more seconds are slower"


def test_an_undecided_verdict_says_how_many_more_blocks_would_probably_decide() -> None:
    near, far = (known(only(placed(0.0, error)).more_blocks) for error in (0.012, 0.04))
    assert 0 < near < far
    assert only(placed(math.log1p(0.02), 0.01)).more_blocks is only(placed(0.0, 100.0)).more_blocks is None


def test_the_blocks_it_asks_for_decide_about_four_times_in_five() -> None:
    rng = np.random.default_rng(3)
    decided = []
    for values in rng.normal(0, 0.07, (300, 1010)):
        first = located(values[:10])
        more = only(replace(first, centre=0.0)).more_blocks or 0  # a few are decided by their first ten
        decided.append(only(located(values[10 : 20 + more])).name == "equivalent")
    assert 0.74 < np.mean(decided) < 0.88


def test_many_comparisons_are_harder_to_win_than_one_and_see_less() -> None:
    border = placed(0.0, math.log1p(0.02) / 2.2)
    assert only(border).name == "equivalent"
    verdicts = [known(verdict) for verdict in judge([border] * 9)]
    assert {verdict.name for verdict in verdicts} == {"undecided"}
    assert {verdict.detectable for verdict in verdicts} == {detectable_share(border, 9)}
    assert known(detectable_share(border, 9)) > known(detectable_share(border, 1))


def test_holm_gives_the_values_of_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, math.nan, 0.02]) == pytest.approx([0.02, math.nan, 0.02], nan_ok=True)
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_value_and_keeps_their_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(after >= before for before, after in zip(p_values, adjusted, strict=True))
    assert max(adjusted) <= 1
    assert all(np.diff(np.array(adjusted)[np.argsort(p_values, kind="stable")]) >= 0)


def test_the_noise_floor_comes_from_a_a_where_there_is_one() -> None:
    floor = known(noise_floor([0.01, -0.01, 0.02, -0.02], [[0.0, 1.0, 2.0]]))
    half_width = known(located([0.01, -0.01, 0.02, -0.02]).half_width)
    assert (floor.method, floor.blocks) == ("a/a", 4)
    assert floor.share == pytest.approx(math.expm1(half_width))


def test_without_a_a_the_noise_floor_comes_from_bare_metal_across_blocks_of_one_run() -> None:
    # Two runs a factor e apart: the step between runs is no noise of bare metal's.
    floor = known(noise_floor([], [[0.0, 0.01, 0.0], [1.0, 1.02, 1.0]]))
    assert (floor.method, floor.blocks) == ("across-blocks", 6)
    assert floor.share < 0.05
    assert noise_floor([], [[0.0, 0.01]]) is noise_floor([0.1], []) is None


def test_step_times_are_described_by_their_distribution() -> None:
    found = known(step_times([[1.0, 2.0, 1.0], [3.0], []]))
    assert (found.p50_s, found.jitter_s, found.trials) == (1.5, 1.0, 2)
    assert found.p95_s <= found.p99_s <= 3.0
    assert (step_times([[]]), known(step_times([[2.0]])).jitter_s) == (None, None)


LEVEL = 0.025


def test_with_a_known_deviation_it_is_the_power_of_the_textbook() -> None:
    # Cohen (1988), table 2.4.1: a difference of half a deviation, 5 % two-sided, 80 %: 33 or 34 pairs. Trimmed, 2 more.
    assert blocks_needed(0.5, 1.0, 1e6, level=LEVEL) in (33, 34, 35, 36)
    assert detectable(1.0, 1e6, 10_000, level=LEVEL) == pytest.approx((1.96 + 0.8416) / 100, rel=1e-3)


def test_the_blocks_needed_are_the_fewest_that_detect_and_more_behind_a_poor_estimate() -> None:
    asked = [blocks_needed(0.02, 0.05, freedom, level=LEVEL) or 0 for freedom in (2, 5, 9, 1e6)]
    assert asked == sorted(asked, reverse=True)
    assert asked[0] > 1.5 * asked[-1]
    assert detectable(0.05, 9, asked[2], level=LEVEL) <= 0.02 < detectable(0.05, 9, asked[2] - 1, level=LEVEL)
    assert blocks_needed(0.02, 0.0, 5, level=LEVEL, least=5) == 5, "without noise the least suffice"


def test_what_is_out_of_reach_is_not_promised() -> None:
    assert blocks_needed(1e-6, 0.05, 9, level=LEVEL) is None
    assert detectable(0.05, 9, 1, level=LEVEL) == math.inf
    assert detectable(0.05, 9, MOST_BLOCKS, level=LEVEL) > 1e-6
    assert [detectable_share(Location(0.0, *rest), 1) for rest in ((100.0, 7, 10), (None, 0, 1))] == [None, None]


def test_a_true_difference_of_what_a_run_could_have_seen_is_seen_four_times_in_five() -> None:
    rng = np.random.default_rng(1)
    seen = []
    for values in rng.normal(0, 0.03, (1000, 40)):
        share = known(detectable_share(located(values[:20]), family=1))
        seen.append(only(located(values[20:] + math.log1p(share)), margin=0.0).name == "faster")
    assert 0.76 < np.mean(seen) < 0.84


def test_a_ratio_beyond_the_largest_number_stays_one_and_its_effect_is_finite() -> None:
    assert exp(1400.0) == exp(700.0) < math.inf
    assert exp(0.5) == math.exp(0.5)
    assert exp(-1400.0) == exp(-700.0) > 0.0
    place = located([1400.0, 1300.0, 1390.0])
    assert (place.ratio, known(place.ratio_interval)[1]) == (exp(700.0), exp(700.0))


# ---- the alternating design

NAN = math.nan
TRUE = Components(burst=0.02**2, instance=0.01**2, block=0.015**2)


def simulated(rng: np.random.Generator, shape: tuple[int, int, int], true: Components = TRUE) -> np.ndarray:
    blocks, pairs, rounds = shape
    levels = ((blocks, 1, 1), true.block), ((blocks, pairs, 1), true.instance), ((blocks, pairs, rounds), true.burst)
    return sum((rng.normal(0, math.sqrt(variance or 0), size) for size, variance in levels), np.zeros(shape))


def test_the_worked_example_of_kalibera_and_jones_is_met() -> None:
    # Their three-level example: the mean squares are 16.5, 2.6 and 3.6, the components 16.5, -5.7 and 2.3.
    found = components([[[9, 5], [8, 3]], [[10, 6], [7, 11]], [[1, 12], [2, 4]]])
    assert found.burst == pytest.approx(16.5)
    assert found.block == pytest.approx(2.3, abs=0.05), "the part of a negative component is not lost to those above"
    assert (found.instance, found.truncated) == (0.0, ("instance",)), "what is cut off at zero is named"


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_components_are_unbiased_with_missing_rounds_too(missing: float) -> None:
    rng = np.random.default_rng(1)
    runs = []
    for _ in range(400):
        values = simulated(rng, (15, 3, 4))
        values[rng.random(values.shape) < missing] = NAN
        found = components(values.tolist())
        assert bool(found.truncated) == (0.0 in (found.instance, found.block))
        runs.append((found.burst, found.instance, found.block))
    means = np.mean(np.array(runs, dtype=np.float64), axis=0)
    # Those that are cut off at zero, few of the blocks' here, make the mean a little too large.
    assert means == pytest.approx([TRUE.burst, TRUE.instance, TRUE.block], rel=0.1)


def test_a_level_without_repetition_is_none_and_part_of_the_next_one() -> None:
    values = simulated(np.random.default_rng(2), (400, 1, 6))
    one_pair = components(values.tolist())
    assert one_pair.instance is None
    assert one_pair.burst == pytest.approx(TRUE.burst, rel=0.1)
    assert one_pair.block == pytest.approx(0.015**2 + 0.01**2, rel=0.2)
    one_round = components(values[:, :, :1].tolist())
    assert (one_round.burst, one_round.instance) == (None, None)
    assert one_round.block == pytest.approx(float(values[:, 0, 0].var(ddof=1)))
    assert components(values[:1].tolist()).block is None
    assert components([[[0.1]]]) == Components(None, None, None)


def test_what_is_missing_counts_nowhere() -> None:
    whole: list[list[list[float]]] = [[[0.1, 0.2], [0.3, 0.1]], [[0.0, 0.2], [0.1, 0.4]]]
    with_gaps = [[*whole[0], [NAN, NAN]], [[NAN]], [[*whole[1][0], NAN], whole[1][1], []]]
    assert components(with_gaps) == components(whole)
    assert components([]) == components([[[NAN]]]) == Components(None, None, None)
    assert components([[[0.25] * 3] * 2] * 4) == Components(0.0, 0.0, 0.0), "without variance nothing is cut off"


def variance_times_seconds(design: Design, found: Components, costs: Costs) -> float:
    pairs, bursts = design.instances, design.instances * design.rounds
    seconds = costs.block_s + pairs * costs.instance_s + bursts * costs.round_s
    return seconds * ((found.block or 0) + (found.instance or 0) / pairs + (found.burst or 0) / bursts)


def test_repetitions_are_those_of_kalibera_and_jones() -> None:
    # sqrt(100/20 * 0.262777/0.7747) and sqrt(20/3 * 0.726667/0.262777), from seconds of 100, 20 and 3.
    assert repetitions((100, 20, 3), (0.7747, 0.262778, 0.726667)) == pytest.approx([1.3023, 4.2937], rel=1e-4)
    design = choose(Components(0.726667, 0.262778, 0.7747), Costs(3, 20, burst_steps=5, block_s=100))
    assert design == Design(burst_steps=5, rounds=5, instances=2)


@pytest.mark.parametrize(
    ("seconds", "variances", "best"),
    [
        ((0, 8, 2), (1, 1, 1), [1, math.sqrt(8 / 2 * 1 / 2)]),  # a block costs nothing of its own: a pair in each
        ((4, 4, 2), (1, 0, 1), [1, 2]),  # pairs do not vary: one of them, as part of its block
        ((4, 1, 4), (1, 4, 0), [math.sqrt(4 / 5 * 4), 1]),  # rounds do not: a pair is one with its only round
        ((4, 1, 1), (0, 0, 1), [1, math.inf]),  # only rounds do
        ((1, 1, 1), (0, 0, 0), [1, 1]),
        ((3, 3), (1, 1), [1]),
    ],
)
def test_a_level_that_is_not_worth_repeating_is_one_with_the_level_above(
    seconds: Sequence[float], variances: Sequence[float], best: list[float]
) -> None:
    assert repetitions(seconds, variances) == pytest.approx(best)


def test_no_other_arrangement_is_much_better_than_the_chosen_one() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        burst, instance, block = rng.uniform(0, 1, 3)
        found = Components(burst, instance, block)
        round_s, instance_s, block_s = rng.uniform(0.1, 10, 3)
        costs = Costs(round_s, instance_s, burst_steps=5, block_s=block_s)
        chosen = variance_times_seconds(choose(found, costs), found, costs)
        others = (
            variance_times_seconds(Design(5, rounds, pairs), found, costs)
            for rounds in range(LEAST_ROUNDS, 30)
            for pairs in range(1, MOST_INSTANCES + 1)
        )
        # Rounding up costs something where the best number is little above one.
        assert chosen < 1.35 * min(others)


def test_rounds_are_bounded_on_both_sides() -> None:
    costs = Costs(round_s=1.8, instance_s=8, burst_steps=5)
    assert choose(Components(0.0, None, 1.0), costs).rounds == LEAST_ROUNDS
    assert choose(Components(1.0, None, 0.0), costs) == Design(5, MOST_ROUNDS, 1)
    assert choose(Components(0.0, 0.0, 0.0), costs) == Design(5, LEAST_ROUNDS, 1)
    assert choose(Components(0.0, 1.0, 0.0), Costs(1.8, 8, burst_steps=5, block_s=100)).instances == MOST_INSTANCES


def test_bursts_are_as_short_as_switching_allows_and_never_longer_than_the_pilots() -> None:
    found = Components(0.0004, None, 0.0001)
    free, dear = (Costs(1.8 + switch_s, 8, burst_steps=5, switch_s=switch_s) for switch_s in (0.0, 0.2))
    assert choose(found, free, step=0.001).burst_steps == 1
    # Half of the variance is the steps': sqrt(0.2 / 0.36 * 0.001 / 0.0002) = 1.7.
    design = choose(found, dear, step=0.001)
    assert design.burst_steps == 2
    assert design.rounds > choose(found, dear).rounds, "rounds of shorter bursts are more, and cheaper"
    assert choose(found, dear, step=1.0).burst_steps == 5, "all that bursts vary by may be their steps"
    assert (choose(found, dear, step=0.0).burst_steps, choose(found, dear).burst_steps) == (1, 5)


@pytest.mark.parametrize(
    ("found", "lacking"), [(Components(None, None, 0.1), "one round"), (Components(0.1, None, None), "one block")]
)
def test_a_pilot_that_cannot_show_the_variance_is_refused(found: Components, lacking: str) -> None:
    with pytest.raises(RequestError, match=f"a pilot of {lacking}"):
        choose(found, Costs(1.8, 8, burst_steps=5))


def steps(rng: np.random.Generator, instances: int, cost: float) -> list[list[list[float]]]:
    """Return the steps of 8 bursts of 5, in weather that the steps of a burst share; the first costs more."""
    weather = rng.normal(0, 0.05, (instances, 8, 1))
    times = 0.18 * np.exp(weather + rng.normal(0, 0.01, (instances, 8, 5)))
    times[:, :, 0] *= cost
    return list(times.tolist())


def test_a_cost_of_switching_is_found_and_none_is_not() -> None:
    rng = np.random.default_rng(5)
    found = known(switching_cost(steps(rng, 20, 1.03)))
    low, high = known(found.interval)
    assert low < 1.03 < high
    assert (found.shown, found.instances) == (True, 20)
    shown = np.mean([known(switching_cost(steps(rng, 20, 1.0))).shown for _ in range(400)])
    assert 0.01 < shown < 0.05, "2.5 % by chance: the upper side of an interval of 95 %"


def test_only_what_several_instances_show_to_cost_more_is_left_out() -> None:
    assert not known(switching_cost(steps(np.random.default_rng(6), 20, 0.9))).shown
    one = known(switching_cost([[[0.4, 0.2, 0.2]] * 2]))
    assert one.ratio == pytest.approx(2.0)
    assert (one.interval, one.shown) == (None, False)
    assert switching_cost([[[0.4], [0.4]]]) is switching_cost([]) is None
    whole = switching_cost([[[0.2, 0.1]], [[0.3, 0.1]]])
    assert switching_cost([[[0.2, 0.1], [9.0]], [[0.3, 0.1]]]) == whole, "a burst of one step is left out"
