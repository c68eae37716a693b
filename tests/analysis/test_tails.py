import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.audit.audit import audit
from analysis.compare.comparison import compare
from analysis.compare.results import Comparison, Contrast
from analysis.report.answers.answer import answer
from analysis.report.tables import results_table
from analysis.statistics.ratios import Verdict, judge, locate
from analysis.statistics.tails import qualified, ratio_of_means, slow_trials, tail_of
from suite.records.environment import Environment, Environments
from suite.records.record import Steps
from tests.analysis.conftest import Save, as_markdown, json_of, known, measured, timeline
from tests.analysis.conftest import judged as verdict_of

TIMES = st.lists(st.floats(-0.3, 0.3), min_size=3, max_size=20).filter(lambda values: np.ptp(values) > 1e-3)


def times(slow: int, blocks: int = 40, seed: int = 0) -> tuple[list[float], list[float]]:
    """Return the log ratios of a target of which so many trials are 30 % slower, and the logs of bare metal."""
    base, own = np.random.default_rng(seed).normal(0, 0.01, (2, blocks))
    own[:slow] += math.log(1.3)
    return list(own - base), list(base)


def judged(slow: int, targets: int = 1) -> list[Verdict | None]:
    found = [times(slow, seed=seed) for seed in range(targets)]
    places = [locate(ratios) for ratios, _ in found]
    tails = [tail_of(*both, more_is_faster=False) for both in found]
    return qualified(judge(places, more_is_faster=False), places, tails, 0.02)


def test_the_expected_ratio_is_that_of_the_mean_times() -> None:
    mean = known(ratio_of_means(np.log([2.0, 3.0, 2.5]), np.log([1.0, 2.0, 4.0])))
    assert math.exp(mean.centre) == pytest.approx((2 + 6 + 10) / 7)
    low, high = mean.interval
    assert low < mean.centre < high


def test_of_a_rate_the_times_per_unit_of_work_are_averaged() -> None:
    own, base = np.array([10.0, 5.0, 8.0]), np.array([10.0, 10.0, 9.0])
    tail = known(tail_of(np.log(own / base), np.log(base)))
    assert math.exp(tail.expected.centre) == pytest.approx((1 / base).mean() / (1 / own).mean())


def test_without_skewness_the_interval_is_students() -> None:
    mean = known(ratio_of_means([-0.02, -0.01, 0.0, 0.01, 0.02], [0.0] * 5))
    low, high = mean.interval
    assert high - low == pytest.approx(2 * mean.standard_error * stats.t.ppf(0.975, 4), rel=0.02)


@given(TIMES)
def test_the_interval_ends_where_the_one_sided_tests_begin_to_hold(values: list[float]) -> None:
    mean = known(ratio_of_means(values, [0.0] * len(values)))
    low, high = mean.interval
    assert [mean.p_above(low), mean.p_below(high)] == pytest.approx([0.025] * 2, rel=1e-3)


def test_one_block_has_no_tail_and_blocks_without_variance_have_an_interval_of_no_width() -> None:
    assert tail_of([0.1], [0.0]) is None
    mean = known(ratio_of_means([0.1] * 4, [0.5] * 4))
    assert mean.interval == pytest.approx((0.1, 0.1))
    assert (mean.p_above(0.0), mean.p_below(0.0)) == (0.0, 1.0)


def test_a_slow_trial_departs_from_the_typical_one_by_a_tenth_and_by_more_than_the_noise() -> None:
    found = slow_trials([0.0, 0.01, -0.01, 0.0, 0.2, -0.3], more_is_faster=False)
    assert [found.own, found.base, found.n, found.over] == pytest.approx([1, 1, 6, 0.1])
    noisy = slow_trials([0.0, 0.1, -0.1, 0.05, -0.05, 0.2], more_is_faster=False)
    assert (noisy.over > 0.2, noisy.own) == (True, 0)
    assert slow_trials([0.5] * 9).own == 0, "a target that is always slower has none"


def test_a_slow_trial_of_a_rate_loses_the_share_that_one_of_a_time_adds() -> None:
    within, beyond = (slow_trials([0.0] * 9 + [math.log(rate)]) for rate in (0.905, 0.895))
    assert (within.own, beyond.own) == (0, 1)
    assert beyond.over == pytest.approx(0.1)
    noisy = slow_trials([0.0, 0.3, -0.3, 0.15, -0.15, 0.0])
    assert noisy.over == pytest.approx(1 - math.exp(-4 * 1.4826 * 0.15)), "a rate never loses more than all of it"


@pytest.mark.parametrize(("own", "base"), [(0, 0), (4, 0), (5, 0), (6, 1), (2, 3)])
def test_the_levels_and_bounds_are_those_of_the_exact_binomial(own: int, base: int) -> None:
    found = slow_trials([0.0] * (40 - own - base) + [0.3] * own + [-0.3] * base, more_is_faster=False)
    assert (found.own, found.base) == (own, base)
    if own:
        assert found.p == pytest.approx(stats.binomtest(own, own + base, alternative="greater").pvalue)
    assert found.excluded == pytest.approx(stats.binomtest(own, 40).proportion_ci(0.9, method="exact").high)


@pytest.mark.parametrize(("slow", "names"), [(0, {"equivalent"}), (4, {"typical-only", "tail"}), (6, {"tail"})])
def test_slow_trials_of_the_target_alone_are_no_plain_equivalence(slow: int, names: set[str]) -> None:
    assert {verdict.name for verdict in judged(slow) if verdict} <= names


def test_many_targets_need_more_slow_trials_each() -> None:
    assert [verdict.name for verdict in judged(5, targets=1) if verdict] == ["tail"]
    found = [verdict for verdict in judged(5, targets=6) if verdict]
    assert "equivalent" not in {verdict.name for verdict in found}
    assert all(verdict.p and verdict.p <= 0.05 for verdict in found)


def test_without_a_tail_and_without_equivalence_a_verdict_stays_as_it_is() -> None:
    place = locate([0.0, 0.001, -0.001])
    assert [verdict.name for verdict in qualified(judge([place]), [place], [None], 0.02) if verdict] == ["equivalent"]
    ratios, base = times(6)
    tail, far = tail_of(ratios, base, more_is_faster=False), locate([value + 1 for value in ratios])
    assert known(*qualified(judge([far], more_is_faster=False), [far], [tail], 0.02)).name == "slower"


def queue(save: Save, slow: int) -> Comparison:
    rng = np.random.default_rng(1)
    for block in range(40):
        for target in ("bare-metal", "vm"):
            is_slow = target == "vm" and block % 10 == 0 and block < 10 * slow
            took_s = math.exp(rng.normal(0, 0.005)) * (1.3 if is_slow else 1)
            save(block=block, target=target, throughput_per_s=10 / took_s, elapsed_s=20 * took_s)
    return save.compare()


def of_vm(comparison: Comparison, metric: str = "throughput") -> Contrast:
    return comparison.groups[0].of_target("vm")[metric]


def test_a_vm_of_which_every_tenth_trial_is_slower_says_what_a_queue_pays(save: Save) -> None:
    comparison = queue(save, 4)
    found = of_vm(comparison)
    assert found.ratio == pytest.approx(1, abs=0.005)
    expected = known(found.expected).ratio
    assert expected == pytest.approx(1 / 1.03, abs=0.005)
    assert of_vm(comparison, "elapsed").expected
    assert verdict_of(found).name in ("tail", "typical-only")
    sentence = answer(comparison).why
    counts = "4 of 40 trials were over 10 % slower, none on bare metal"
    assert counts in sentence
    parted = f"vm, throughput: typical {found.ratio:.3f}x, expected {expected:.3f}x"
    assert [words for words in (parted, counts) if words not in as_markdown(comparison)] == []
    row = next(row for row in json_of(comparison)["rows"] if row["target"] == "vm")
    assert (row["slow_trials"], row["slow_baseline"]) == (4, 0)
    assert row["expected_low"] < row["expected"] < row["expected_high"]


def test_an_equivalent_says_what_it_excludes(save: Save) -> None:
    comparison = queue(save, 0)
    found = of_vm(comparison)
    slow = known(found.slow)
    assert (verdict_of(found).name, slow.own) == ("equivalent", 0)
    assert slow.excluded == pytest.approx(1 - 0.05 ** (1 / 40))
    bound = "slow trials (over 10 % slower) in more than 7.3 % of runs"
    assert f"excluded at 95 %: {bound}: vm throughput, vm elapsed" in as_markdown(comparison)


def test_the_tail_of_the_steps_is_a_metric_of_every_training_with_a_ratio(save: Save) -> None:
    for block in range(3):
        for target, slowest_s in (("bare-metal", 0.1), ("vm", 0.3)):
            steps = [0.1] * 98 + [slowest_s, slowest_s + block / 1000]
            save(block=block, target=target, steps=Steps(elapsed_s=steps, data_s=[0.0] * 100, compute_s=steps))
    records = save.load()
    assert list(records.trials["step_p99_s"])[:1] == [0.1]
    comparison = compare(records)
    found = of_vm(comparison, "step-tail")
    assert [found.value, found.ratio] == pytest.approx([3.0, 3.0])
    (group,) = comparison.groups
    assert "step-tail x" in [head.text for head in results_table(group).columns]
    assert "step-tail x" not in [head.text for head in results_table(group, full=False).columns]
    assert "step-tail x" in as_markdown(comparison)


def test_steps_without_times_have_no_tail_and_the_report_gives_the_reason(save: Save) -> None:
    sides = {"bare-metal": 10.0, "vm": 9.0}
    for block, (target, speed) in itertools.product(range(3), sides.items()):
        untimed = {"steps": Steps(losses={"loss": [3.0, 2.0, 1.0]}), "timeline": timeline(6 / speed, 20.0)}
        save(block=block, target=target, throughput_per_s=speed, device="cuda", sync="span", **untimed)
    records = save.load()
    assert not {found.kind for found in audit(records).refused} & {"evidence", "steps", "throughput"}
    comparison = compare(records)
    assert of_vm(comparison, "throughput").ratio == pytest.approx(0.9)
    (group,) = comparison.groups
    assert not any("step-tail" in group.of_target(target.target) for target in group.targets)
    told = [warning for warning in comparison.warnings if warning.kind == "steps-untimed"]
    assert {warning.where for warning in told} == {f"{target} in 3 of 3 trials (--sync span)" for target in sides}
    save("timed", steps=Steps(losses={"loss": [3.0, 2.0, 1.0]}), timeline=timeline(0.6, 20.0))
    lacking = [found.what for found in audit(save.load("timed")).refused if found.kind == "evidence"]
    assert lacking == ["it is ok and has no times of steps"], "the host waited after each step"


def test_a_machine_that_is_slow_in_every_trial_is_named_and_its_trials_are_no_chance(save: Save) -> None:
    rng = np.random.default_rng(0)
    for block in range(40):
        host = f"node{block % 8}"
        environment = Environments(
            host=Environment(hostname=host, userland_sha256="a" * 64, cpu_model="a CPU"),
            target=Environment(userland_sha256="a" * 64, cpu_model="a CPU", torch_cpu_capability="AVX2"),
        )
        for target in ("bare-metal", "container"):
            speed = 10.0 * math.exp(rng.normal(0, 0.003)) / (1.2 if (target, host) == ("container", "node5") else 1)
            save(target=target, block=block, environment=environment, **measured(speed))
    one = save.compare().groups[0].of_target("container")["throughput"]
    assert known(one.slow).machines == {"node5": 5}
    assert "every trial on node5 (5 of 5) was over 10 % slower, none of 35 elsewhere" in answer(save.compare()).why


@pytest.mark.parametrize(("slow", "machines"), [([0, 8, 16, 24, 32], {}), ([5, 6], {}), ([0, 1, 2, 3, 20], {"a": 4})])
def test_slow_trials_that_are_spread_over_machines_or_too_few_name_none(
    slow: list[int], machines: dict[str, int]
) -> None:
    ratios = np.zeros(40)
    ratios[slow] = 0.3
    names = ["a"] * 4 + ["bcdefg"[place // 6] for place in range(36)]
    assert slow_trials(ratios, more_is_faster=False, machines=names).machines == machines
