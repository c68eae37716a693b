"""Benchmarks read stored records and use the statistics of the suite; one simulates two independent samples."""

import json
import math
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.report.rows import KEYS
from analysis.statistics.power import POWER
from analysis.statistics.ratios import Location, locate
from analysis.statistics.sequential import should_stop_deciding
from analysis.statistics.two_samples import detectable, levels, more_blocks, shift
from tests.analysis.conftest import known, located

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks are scripts: tests, and each of them, import what stands there."""
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")


def test_the_copy_phase_of_the_gpu_day_is_a_rate_over_that_of_the_probe() -> None:
    copied = import_module("gpu_stages.ways").copied
    moved_bytes = 2 * 3 * 10**2 * 4
    training = {"job": {"sizes": {"batch": 2, "image_px": 10}}, "steps": {"copy_s": [9.0, moved_bytes / 20e9, 0.0]}}
    probe = {"metrics": {"host-to-device-pinned": {"value": 25.0}}}
    assert copied([training], 4, [probe]) == pytest.approx(20 / 25)
    assert copied([], 4, [probe]) is None, "what was not measured is no rate"
    assert copied([{**training, "steps": None}], 4, [probe]) is None


@pytest.mark.parametrize(("rehearse", "expected"), [(False, {"a": True, "b": False, "c": False}), (True, {"c": False})])
def test_a_gpu_day_judges_all_that_has_bounds_or_counts_alone_and_reads_columns_that_the_json_has(
    rehearse: bool, expected: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = import_module("gpu_stages.results")
    monkeypatch.setattr(results, "BOUNDS", {"a": (0.9, 1.1), "b": (0.9, 1.1), "c": (0.0, 0.0), "d": (0.0, 0.0)})
    rehearsed = import_module("gpu_stages.day").REHEARSED
    facts = {"a": 1.0, "b": None, "c": 1, "d": rehearsed, "e": 5.0}
    state = SimpleNamespace(options=SimpleNamespace(rehearse=rehearse), facts={"A": facts})
    assert results.judged(state, "A") == expected
    sources = [path.read_text() for path in (REPOSITORY / "benchmarks/gpu_stages").glob("*.py")]
    named = {name for source in sources for name in re.findall(r'\brow\["(\w+)"\]', source)}
    assert {"ratio", "verdict"} < named <= {*KEYS}


def test_a_gpu_day_packs_its_stages_by_their_worth_into_the_minutes_that_are_lent() -> None:
    stages = import_module("gpu_stages.stages")
    assert "".join(stages.packed(15)[0]) == "APBDTCEU"
    assert "".join(stages.packed(30)[0]) == "APBDTCEURFHVW"
    assert {*stages.packed(15)[0], *stages.packed(15)[1]} == {*stages.STAGES}
    for minutes in (15, 30):
        taken_s = sum(stages.STAGES[name].seconds for name in stages.packed(minutes)[0])
        assert taken_s + stages.SPARE_S <= 60 * minutes


@pytest.fixture
def day_at(tmp_path: Path) -> Any:
    """Return a day of a rehearsal, as a call begins it with the facts of those before."""
    day = import_module("gpu_stages.day")
    stages = "".join(import_module("gpu_stages.stages").STAGES)
    options = SimpleNamespace(state=tmp_path / "state", out=tmp_path / "out", rehearse=True, stages=stages)
    for directory in (options.state, options.out):
        directory.mkdir()

    def begun() -> Any:
        kept = options.state / "facts.json"
        facts = json.loads(kept.read_text())["stages"] if kept.exists() else {}
        return day.Day(options, math.inf, facts)

    return begun


@pytest.mark.parametrize("name", "APBDTCEURFHVWG")
def test_a_day_that_is_killed_in_a_stage_keeps_what_it_found_and_takes_that_stage_again_last(
    name: str, day_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = import_module("gpu_stages.stages")
    take = import_module("gpu_stages.results").take

    def killed(_: Any) -> Any:
        assert name in day_at().facts, "one that is killed before its first fact comes last, too"
        yield {"first": 1}
        raise KeyboardInterrupt

    def whole(_: Any) -> Any:
        yield {"first": 1}
        yield {"second": 2}

    monkeypatch.setitem(stages.STAGES, name, stages.Stage(killed, 1))
    with pytest.raises(KeyboardInterrupt):
        take(day_at(), name)
    again = day_at()
    assert again.facts[name]["first"] == 1
    assert json.loads((again.options.out / "facts.json").read_text())["stages"][name]["first"] == 1
    assert stages.in_order(again) == [*(each for each in stages.STAGES if each != name), name]
    monkeypatch.setitem(stages.STAGES, name, stages.Stage(whole, 1))
    take(again, name)
    assert (again.facts[name]["second"], name in stages.in_order(day_at())) == (2, False)


def test_the_bare_script_gets_the_job_of_the_suites_trial() -> None:
    record = json.loads((REPOSITORY / "tests/samples/record.json").read_text())
    job = record["job"]
    argv = import_module("intrusion").bare_argv(Path("/tree"), record)
    assert argv[:2] == ["taskset", "--cpu-list"]
    sizes = [str(job["sizes"][name]) for name in ("batch", "image_px", "warmup_steps", "steps")]
    assert argv[-7:] == [job["model"], *sizes, str(job["envelope"]["threads"]), str(record["seed"])]


def test_the_power_benchmark_locates_as_the_suite_does_and_finds_the_promised_power() -> None:
    power = import_module("power")
    values = np.random.default_rng(0).normal(0, 1, (3, 17))
    places = power.located(values)
    for number, row in enumerate(values):
        place = located(row)
        seen = (places.centres[number], places.errors[number], places.freedom)
        assert seen == pytest.approx((place.centre, place.standard_error, place.degrees_of_freedom))
    found = power.simulated(power.Setting("normal", 0.02), runs=2000, seed=1)
    assert 0.75 < found["power"] < 0.87
    assert found["false_positive"] < 0.075


def test_the_blocks_to_an_interval_go_with_the_square_of_its_width() -> None:
    alternating = import_module("alternating")
    values = np.random.default_rng(0).normal(0, 0.05, 30)
    needed = alternating.blocks_within(values, 0.02)
    assert needed == pytest.approx(30 * (known(located(values).half_width) / np.log1p(0.02)) ** 2, abs=1)
    assert alternating.blocks_within(values / 2, 0.02) == pytest.approx(needed / 4, abs=1)


def test_the_history_benchmark_finds_large_changes_and_none_in_noise() -> None:
    history = import_module("history")
    noise = [history.raw(np.random.default_rng(1), name, 20_000) for name in history.NOISES]
    assert [float(np.std(values)) for values in noise] == pytest.approx([1.0] * len(noise), rel=0.15)
    found = history.found("normal", 5.0, years=4, seed=1)
    assert (found.found, found.within_one) == (1.0, 1.0)
    assert known(found.half) <= 12, "weather may stay for some nights"
    assert history.false_alarms("normal", years=40, watched=0, seed=1).one_look <= 0.05


def test_the_alternating_design_covers_as_the_sequential_one_and_takes_a_fifth_of_the_time() -> None:
    simulation = import_module("alternating_simulation")
    measured = simulation.MEASURED
    for arrangement, deviation in ((simulation.SEQUENTIAL, 0.055), (simulation.ALTERNATING, 0.017)):
        row = simulation.coverage(0, arrangement, runs=200, seed=1)
        assert row["deviation"] == pytest.approx(deviation, rel=0.06)
        assert 0.9 < row["10 blocks"] < 0.99
        assert 0.9 < row["until 2%"] < 0.99
    gains = [simulation.gain(each, simulation.ALTERNATING, 1000, 1) for each in (measured, simulation.FAMILIES[3])]
    assert gains[0] > 5
    assert gains[1] < 1, "weather that is slower than a block is not what turns are for"
    simulation.deviation.cache_clear()
    assert simulation.gain(measured, simulation.ALTERNATING, 1000, 1) == gains[0], "the seed decides"


def test_pilots_of_a_known_host_find_its_components_and_a_good_arrangement() -> None:
    simulation = import_module("alternating_simulation")
    found = simulation.chosen(simulation.MEASURED, runs=400, seed=1)
    assert found["instance"] == pytest.approx(simulation.MEASURED.placement * 2**0.5, rel=0.25)
    assert found["gain"] > 0.75 * found["best"], "the best of many noisy gains is itself a little too good"


def test_either_side_of_a_decision_holds_five_percent_where_the_truth_lies_on_the_margin() -> None:
    deciding = import_module("deciding")
    for noise in deciding.NOISES:
        ours, before, _ = deciding.simulated(noise, truth=1.0, runs=4000, seed=2)
        # 5 %, and two standard errors.
        assert max(ours.within, ours.beyond) < 0.057, noise
        assert before.within > 0.075, "the simulation sees what is false too often"
        ours, before, _ = deciding.simulated(noise, truth=0.0, runs=1000, seed=2)
        assert ours.within > 0.99, noise
        assert ours.blocks < 1.2 * before.blocks, noise


def test_what_is_run_by_default_decides_within_five_minutes_and_either_side_holds_five_percent() -> None:
    simulation = import_module("deciding_by_default")
    slowest = next(way for way in simulation.WAYS if way.name == "default, ResNet-50")
    for weather in simulation.WEATHERS:
        ends = simulation.simulated(slowest, weather, truth=0.0, runs=100, seed=2)
        assert ends.in_five > 0.95, weather.name
        ends = simulation.simulated(slowest, weather, truth=1.0, runs=300, seed=2)
        # 5 %, and two standard errors.
        assert max(ends.within, ends.beyond) < 0.075, weather.name
        assert ends.minutes < 10.5


def test_the_simulated_runs_end_as_the_suite_ends_them() -> None:
    deciding = import_module("deciding")
    (rule, *_) = deciding.RULES
    rng, most = np.random.default_rng(3), deciding.MOST_BLOCKS
    for truth in (0.5, 0.9, 1.5):
        values = deciding.DEVIATION * rng.normal(size=most) - truth * np.log1p(deciding.MARGIN)
        end = next(
            blocks
            for blocks in rule.looks
            if should_stop_deciding([{"vm": values[:blocks]}], deciding.MARGIN, max_blocks=most).stop
        )
        found = {look: deciding.levels(values[None, :], look, truth) for look in rule.looks}
        assert deciding.ends(rule, found).blocks == end


@pytest.mark.parametrize("effect", ["drift", "place"])
def test_in_the_balanced_order_intervals_cover_under_drift_and_place_where_each_block_by_itself_fails(
    effect: str,
) -> None:
    shares = import_module("order").shares
    covers, false = shares(effect, "balanced", 2, 7, 200, 1)
    assert covers > 0.94
    assert false == 0.0
    covers, false = shares(effect, "by itself", 2, 7, 200, 1)
    assert covers < 0.85
    assert (false > 0.2) == (effect == "place")


@pytest.mark.parametrize("number", range(8))
def test_the_course_of_preempted_jobs_is_that_of_simulated_ones_with_and_without_notice(number: int) -> None:
    simulation = import_module("preemption")
    assert len(simulation.CASES) == 8
    rng = np.random.default_rng(number)
    for name, (predicted, mean, error) in simulation.held_against(simulation.CASES[number], 2000, rng).items():
        assert predicted == pytest.approx(mean, abs=3.5 * error + 1e-3), name


def test_intervals_between_hosts_cover_where_nights_vary_if_three_runs_show_it() -> None:
    of_hosts = import_module("between_runs").of_hosts
    for sides in ((3, 3), (3, 1)):
        shares = of_hosts(0.03, sides, runs=200)
        assert shares["covers"] > 0.93, sides
        assert shares["false"] < 0.03, sides
        assert shares["covers as one"] < 0.6, "the simulation sees what one run's interval lacks"
    assert of_hosts(0.03, (1, 1), runs=200)["false"] > 0.1, "one run of each cannot know"


BOUND = math.log1p(0.05)


def sample(rng: "np.random.Generator", blocks: int, noise: float) -> list[Any]:
    """One run of so many blocks."""
    return [rng.normal(0, noise, blocks)]


@pytest.mark.parametrize(("noise", "first"), [(0.05, 10), (0.08, 20)])
def test_as_many_more_blocks_as_it_says_tell_with_the_promised_chance(noise: float, first: int) -> None:
    rng = np.random.default_rng(1)
    told = 0
    for _ in range(400):
        more = first + known(more_blocks(sample(rng, first, noise), sample(rng, first, noise), BOUND))
        found = known(shift(sample(rng, more, noise), sample(rng, more, noise)))
        told += found.centre + known(found.half_width) < BOUND
    assert POWER - 0.06 < told / 400 < POWER + 0.1


def test_what_blocks_detect_is_what_more_blocks_aims_at() -> None:
    rng = np.random.default_rng(2)
    old, new = sample(rng, 9, 0.1), sample(rng, 12, 0.1)
    more = known(more_blocks(old, new, BOUND))
    assert known(detectable(old, new, more)) <= BOUND < known(detectable(old, new, more - 1))


def test_a_single_value_has_no_interval_and_equal_values_have_none_either() -> None:
    one, equal = [[0.1]], [[0.0] * 6]
    assert (known(shift(equal, one)).half_width, detectable(equal, one)) == (None, None)
    assert (known(shift(equal, equal)).half_width, more_blocks(equal, equal, 0.1)) == (0, 1)
    rng = np.random.default_rng(3)
    many = more_blocks(sample(rng, 6, 3.0), sample(rng, 6, 3.0), 1e-3)
    assert many is None, "what would take ten thousand blocks is out of reach"


@pytest.mark.parametrize(("noise", "most"), [("normal", 0.045), ("heavy", 0.06), ("skewed", 0.095), ("lasting", 0.06)])
def test_nights_that_differ_raise_few_false_alarms_once_three_old_runs_show_it(noise: str, most: float) -> None:
    simulated = import_module("between_runs")
    one, five = (simulated.rates(noise, 0.03, old, runs=300) for old in (1, 5))
    assert one["at the bound"] > 0.25, "a single old run holds no spread between runs"
    assert max(five["at the bound"], five["missed"]) <= most
    assert five["same"] < 0.02
    if noise != "skewed":
        assert simulated.rates(noise, 0.0, 5, runs=300)["at the bound"] <= 0.03, "of runs that do not differ"


RUNS = [[0.0, 0.1], [0.3, 0.4], [0.5, 0.7]]


def test_old_runs_and_a_new_one_differ_by_the_formula() -> None:
    new = [0.0, 0.1, 0.2]
    old_level, new_level = map(known, levels([RUNS, [new]]))
    observed, within = np.var([0.05, 0.35, 0.6], ddof=1), (0.05**2 + 0.05**2 + 0.1**2 + 0.01 / 3) / 4
    between = observed - within
    error = math.sqrt((between + (0.05**2 + 0.05**2 + 0.1**2) / 3) / 3)
    assert vars(old_level) == pytest.approx(vars(Location(1 / 3, error, 2, 6, math.sqrt(between))))
    assert new_level.standard_error == pytest.approx(math.sqrt(between + 0.01 / 3)), "it is one draw more"
    found = known(shift(RUNS, [new]))
    assert found.standard_error == pytest.approx(math.hypot(error, known(new_level.standard_error)))
    assert found.degrees_of_freedom <= 2, "more blocks know no more of how runs differ"
    assert known(detectable(RUNS, [new], 1000)) > math.sqrt(between) * 4.3
    assert more_blocks(RUNS, [new], 0.1) is None


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
def test_fewer_than_three_runs_show_no_spread_and_equal_ones_have_none(runs: Any, spread: float | None) -> None:
    (level,) = levels([runs])
    assert (level is None) == (not runs)
    if spread is None and level:
        assert level == locate([value for run in runs for value in run])
    elif level:
        assert level.spread == pytest.approx(spread)


@pytest.mark.parametrize(("share", "both", "said", "more"), [(0.2, False, 0.05, 0.25), (0.2, True, 0.4, 0.05)])
def test_targets_that_time_out_are_rarely_called_equivalent_and_fail_more_where_they_do(
    share: float, both: bool, said: float, more: float
) -> None:
    found = import_module("failures").rates(share, 20, both=both, runs=200)
    assert found["finished only"] > 0.85, "by the trials that finished, all would be"
    assert (found["said"] < said, found["too small"] <= 0.05, found["covers"] > 0.93) == (True, True, True)
    assert (found["fails more"] > more) is not both


def test_counts_with_zeros_are_called_different_in_5_per_cent_where_a_poisson_test_is_false_far_more_often() -> None:
    found = import_module("counts").rates("lost", 0.5, 1.0, 20, runs=300)
    assert (found["differs"] <= 0.08, found["covers"] > 0.92, found["Poisson"] > 0.2) == (True, True, True)
