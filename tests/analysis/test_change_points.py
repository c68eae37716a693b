"""Change points of series whose truth is known."""

import numpy as np
import pytest

from analysis.statistics.change_points import LEAST_RUNS, _best, change_points


def noise(n: int, seed: int = 0) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.random.default_rng(seed).normal(size=n)


def test_a_clear_step_is_found_where_it_is() -> None:
    assert change_points(noise(60) + 8.0 * (np.arange(60) >= 25)) == [25]


def test_several_steps_up_and_down_are_all_found() -> None:
    levels = np.repeat([0.0, 9.0, 2.0, 2.0, -7.0], 20)
    assert change_points(noise(100, 1) + levels) == [20, 40, 80]


def test_noise_alone_is_no_change() -> None:
    found = [change_points(noise(80, seed)) for seed in range(40)]
    assert sum(map(bool, found)) <= 1


def test_weather_of_which_half_stays_is_no_change() -> None:
    found = []
    for seed in range(30):
        values = noise(120, seed)
        for run in range(1, 120):
            values[run] = 0.5 * values[run - 1] + 0.75**0.5 * values[run]
        found += change_points(values)
    assert len(found) <= 1


def test_one_night_is_no_change_however_bad_it_was() -> None:
    values = noise(60, 2)
    values[30] -= 1000
    assert change_points(values) == []


@pytest.mark.parametrize("n", range(2 * LEAST_RUNS + 2))
def test_few_or_equal_runs_show_no_change(n: int) -> None:
    assert change_points(np.zeros(n)) == []
    assert change_points(np.arange(float(n)) if n < 2 * LEAST_RUNS else np.zeros(n)) == []


def test_the_same_runs_give_the_same_changes() -> None:
    values = noise(50, 3) + 3.0 * (np.arange(50) >= 30)
    assert change_points(values) == change_points(values)


def test_the_split_is_the_one_of_the_definition() -> None:
    values = noise(14, 4)
    scaled = {}
    for place in range(LEAST_RUNS, 14 - LEAST_RUNS + 1):
        left, right = values[:place], values[place:]
        between = abs(left[:, None] - right[None, :]).mean()
        within = [abs(one[:, None] - one[None, :])[np.triu_indices(len(one), 1)].mean() for one in (left, right)]
        scaled[place] = (2 * between - sum(within)) * place * (14 - place) / 14
    place, largest = _best(values)
    assert place == max(scaled, key=lambda each: scaled[each])
    assert largest == pytest.approx(max(scaled.values()))
