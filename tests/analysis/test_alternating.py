import math
from collections.abc import Sequence

import numpy as np
import pytest

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
from suite.errors import RequestError
from tests.analysis.conftest import known

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
    found = repetitions((100, 20, 3), (0.7747, 0.262778, 0.726667))
    assert found == pytest.approx([1.3023, 4.2937], rel=1e-4)
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
    many = choose(Components(0.0, 1.0, 0.0), Costs(1.8, 8, burst_steps=5, block_s=100))
    assert many.instances == MOST_INSTANCES


def test_bursts_are_as_short_as_switching_allows_and_never_longer_than_the_pilots() -> None:
    found = Components(0.0004, None, 0.0001)
    free, dear = (Costs(1.8 + switch_s, 8, burst_steps=5, switch_s=switch_s) for switch_s in (0.0, 0.2))
    assert choose(found, free, step=0.001).burst_steps == 1
    # Half of the variance is the steps': sqrt(0.2 / 0.36 * 0.001 / 0.0002) = 1.7.
    design = choose(found, dear, step=0.001)
    assert design.burst_steps == 2
    assert design.rounds > choose(found, dear).rounds, "rounds of shorter bursts are more, and cheaper"
    assert choose(found, dear, step=1.0).burst_steps == 5, "all that bursts vary by may be their steps"
    assert choose(found, dear, step=0.0).burst_steps == 1
    assert choose(found, dear).burst_steps == 5


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
