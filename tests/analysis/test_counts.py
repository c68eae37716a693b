"""Counts and amounts that can be zero have no ratio: they are compared by differences, zeros and all."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from pydantic import ValidationError

from analysis.compare.by import compare_by
from analysis.compare.regression import regress
from analysis.report.document import document
from analysis.report.gate import answer, gate_document
from analysis.statistics.counts import between_runs, inside_blocks, judge_differences
from analysis.statistics.ratios import holm
from suite.records.record import MetricValue
from suite.records.usage import Resources, Usage
from tests.analysis.conftest import Save, json_of, judged, known, measured, printed

LOST = ([3.0] * 10 + [0.0] * 10, [0.0] * 7 + [3.0] * 5 + [0.0] * 8)
"""Lost steps of a container in 10 of 20 blocks, and of bare metal in 5, three of them in the same."""


def forge(save: Save, columns: dict[str, Sequence[float]], run: str = "run", **changes: object) -> None:
    rng = np.random.default_rng(len(run))
    for target, lost in columns.items():
        for block, steps in enumerate(lost):
            metric = MetricValue(value=steps, unit="steps", better="less", compared="difference")
            speed = 10.0 * math.exp(rng.normal(0, 0.003))
            save(run, target=target, block=block, metrics={"lost-steps": metric}, throughput_per_s=speed, **changes)


def test_the_level_is_that_of_all_signs_and_the_interval_between_means_of_subsets() -> None:
    values = [0.5, 2.0, -1.0, 3.0, 0.0, 4.0]
    found = known(inside_blocks(values))
    sums = [
        sum(sign * value for sign, value in zip(signs, values, strict=True))
        for signs in itertools.product((1, -1), repeat=6)
    ]
    assert found.p == pytest.approx(2 * sum(one >= sum(values) for one in sums) / 64)
    means = sorted(sum(subset) / len(subset) for size in range(1, 7) for subset in itertools.combinations(values, size))
    assert known(found.interval) == pytest.approx((means[0], means[-1]))


@pytest.mark.parametrize("values", [[0.0] * 20, [1.0, 2.0, 3.0, 4.0, 5.0]])
def test_nothing_but_zeros_and_five_blocks_have_no_interval(values: list[float]) -> None:
    assert known(inside_blocks(values)).interval is None
    assert inside_blocks([]) is None


def test_two_runs_are_compared_by_the_order_of_their_values() -> None:
    old, new = [0.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    found = known(between_runs([old], [new]))
    assert found.mean == 3.5
    assert found.p == pytest.approx(2 / 924, abs=0.003)
    low, high = known(found.interval)
    assert 0 < low < 3.5 < high
    opposite = known(between_runs([new], [old]))
    assert known(opposite.interval) == pytest.approx((-high, -low), abs=0.3)
    assert known(between_runs([[0.0] * 9], [[0.0] * 9])).interval is None


def test_differences_of_a_family_are_corrected_together() -> None:
    few = known(inside_blocks([1.0] * 6))
    assert judge_differences([few], more_is_better=False)[0].name == "slower"
    assert judge_differences([few], more_is_better=True)[0].name == "faster"
    assert {verdict.name for verdict in judge_differences([few] * 2, more_is_better=False)} == {"undecided"}


def test_a_number_that_is_compared_by_ratios_is_above_zero() -> None:
    assert MetricValue(value=0, unit="", better="less", compared="difference").value == 0
    with pytest.raises(ValidationError, match="above zero"):
        MetricValue(value=0, unit="", better="less")


def test_blocks_with_a_zero_count(save: Save) -> None:
    forge(save, dict(zip(("container", "bare-metal"), LOST, strict=True)))
    comparison = save.compare()
    one = comparison.groups[0].of_target("container")["lost-steps"]
    assert (one.value, one.ratio, one.trials, one.blocks) == (1.5, None, 20, 20)
    assert comparison.groups[0].of_target("bare-metal")["lost-steps"].value == 0.75
    difference = known(one.difference)
    low, high = known(difference.interval)
    assert (difference.mean, judged(one).name, low <= 0 < high) == (0.75, "undecided", True)
    (row,) = (
        row for row in json_of(comparison)["rows"] if (row["metric"], row["target"]) == ("lost-steps", "container")
    )
    assert (row["difference"], row["difference_low"], row["difference_high"]) == pytest.approx((0.75, low, high))
    text = " ".join(printed(document(comparison, "full")).split())
    assert "1.50 +0.75" in text
    assert "1.000x" not in text.partition("lost-steps")[2].partition("undecided")[0]
    assert not [one.kind for one in comparison.warnings if one.kind == "not-normalised"]


def test_a_target_that_loses_steps_in_every_block_is_slower(save: Save) -> None:
    forge(save, {"container": [2.0, 3.0] * 5, "bare-metal": [0.0] * 10})
    one = save.compare().groups[0].of_target("container")["lost-steps"]
    assert (known(one.difference).mean, judged(one).name) == (2.5, "slower")


def test_a_new_run_that_lost_none_is_good_news_for_the_gate(save: Save) -> None:
    forge(save, {"bare-metal": [0.0, 3.0] * 4}, "old")
    forge(save, {"bare-metal": [0.0] * 8}, "new")
    found = regress(save.load("old"), save.load("new"), 0.05)
    (change,) = (one for one in found.changes if one.metric.name == "lost-steps")
    assert (change.outcome, change.old, change.value, found.missing) == ("not slower", 1.5, 0.0, ())
    assert found.outcome == "not slower"
    assert "within the bound of 5 % (0.00 steps after 1.50 steps)" in " ".join(answer(found).rows[-1].why)
    assert "0.00 steps" in printed(gate_document(found))


@pytest.mark.parametrize(("new", "outcome"), [([4.0] * 8, "slower"), ([0.0] * 7 + [3.0], "cannot tell")])
def test_a_new_run_that_loses_steps_is_slower_or_cannot_be_told(save: Save, new: list[float], outcome: str) -> None:
    forge(save, {"bare-metal": [0.0] * 8}, "old")
    forge(save, {"bare-metal": new}, "new")
    (change,) = (
        one for one in regress(save.load("old"), save.load("new"), 0.05).changes if one.metric.name == "lost-steps"
    )
    assert (change.outcome, change.slower) == (outcome, None)


def test_between_values_of_a_key_zeros_count_too(save: Save) -> None:
    forge(save, {"bare-metal": LOST[0]}, "one", recipe="reference")
    forge(save, {"bare-metal": LOST[1]}, "two", recipe="tuned")
    rows = compare_by(save.load("one", "two"), ("recipe",)).contrasts
    (own,) = (row for row in rows if row.metric.name == "lost-steps" and row.arm.cell == ("recipe=tuned",))
    assert (own.value, known(own.difference).mean, judged(own).name) == (0.75, -0.75, "undecided")


def test_nights_whose_counts_differ_do_not_make_the_next_one_different() -> None:
    old = [[0.0, 1.0] * 5, [4.0, 5.0] * 5, [8.0, 9.0] * 5]
    new = [[9.0, 10.0] * 5]
    pooled = known(between_runs([np.concatenate(old)], new))
    found = known(between_runs(old, new))
    assert pooled.p < 0.01 < 0.05 < found.p
    (low, high), (least, most) = known(pooled.interval), known(found.interval)
    assert least < 0 < low, "one more night may be as the old ones are"
    assert found.mean == 5.0
    assert known(found.spread) == pytest.approx(4.0, abs=0.1)
    assert high <= most


def test_counts_of_several_values_are_one_family(save: Save) -> None:
    engines = ("runc", "podman", "docker", "charliecloud")
    lost = ([0.0] * 6, [0.0] * 3 + [3.0] * 3, [3.0, 0.0] * 3, [2.0, 0.0] * 3)
    for engine, steps in zip(engines, lost, strict=True):
        forge(save, {"container": steps}, engine, engine=engine)
    rows = compare_by(save.load(*engines), ("engine",)).contrasts
    counted = [row for row in rows if row.metric.name == "lost-steps" and row.difference]
    alone = [known(row.difference).p for row in counted]
    assert [judged(row).p for row in counted] == pytest.approx(holm(alone))
    assert [row.runs for row in counted] == [(1, 1)] * 3


def test_a_metric_of_ratios_that_is_zero_in_some_blocks_has_no_ratio_of_the_others(save: Save) -> None:
    for block in range(10):
        for target in ("bare-metal", "container"):
            opening_s = 0.0 if target == "container" and block % 2 else 0.5
            save(target=target, block=block, open_s=opening_s, opening={"tree": opening_s}, **measured(10.0))
    comparison = save.compare()
    opening = comparison.groups[0].of_target("container")["opening"]
    assert opening.value == pytest.approx(0.25)
    assert (opening.ratio, opening.verdict) == (None, None)
    (warning,) = (one for one in comparison.warnings if one.kind == "not-normalised")
    assert "opening is zero in some trials, which have no ratio" in warning.message


def test_the_mean_of_a_cost_holds_the_trials_that_cost_nothing(save: Save) -> None:
    for block in range(10):
        for target in ("bare-metal", "container"):
            spent_s = 0.0 if target == "container" and block % 2 else 8.0
            used = Resources(worker=Usage(cpu_s=4.0), serving=Usage(cpu_s=spent_s), energy_j={"package-0": spent_s})
            save(target=target, block=block, resources=used, **measured(10.0))
    comparison = save.compare()
    by_target = {cost.target: cost for cost in known(comparison.groups[0].costs)}
    assert (by_target["container"].cpu_all_in_s, by_target["container"].energy_j) == (4.0, 4.0)
    assert by_target["container"].normalised is None, "the other half of the blocks is no sample of it"


def test_between_values_of_a_key_a_metric_with_a_zero_is_compared_by_differences(save: Save) -> None:
    for run, opening_s in (("one", 0.5), ("two", 0.0)):
        for block in range(10):
            recipe = "reference" if run == "one" else "tuned"
            save(run, block=block, recipe=recipe, open_s=opening_s, opening={"tree": opening_s}, **measured(10.0))
    rows = compare_by(save.load("one", "two"), ("recipe",)).contrasts
    (own,) = (row for row in rows if row.metric.name == "opening" and row.arm.cell == ("recipe=tuned",))
    assert (own.ratio, known(own.difference).mean) == (None, -0.5)
