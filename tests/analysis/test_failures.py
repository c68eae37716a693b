"""Trials that fail are slow ones that nobody has seen: a target that fails more often is never called equivalent."""

import math
from collections.abc import Set

import numpy as np
import pytest
from scipy import stats

from analysis.report.answers.answer import answer
from analysis.report.document import document
from analysis.statistics.failures import Failures, count_failures, failing_more, least, may_hide, most
from analysis.statistics.ratios import Verdict, VerdictName
from analysis.statistics.tails import slow_trials
from tests.analysis.conftest import Save, json_of, judged, known, measured, printed


def forge(
    save: Save, failed: Set[int], base_failed: Set[int] = frozenset(), blocks: int = 20, speed: float = 10.0
) -> None:
    """Save blocks of bare metal and a container; the trials of the blocks named time out."""
    rng = np.random.default_rng(0)
    for block in range(blocks):
        for target, own, late in (("bare-metal", 10.0, base_failed), ("container", speed, failed)):
            values = measured(own * math.exp(rng.normal(0, 0.003)))
            save(target=target, block=block, **({"failed": "no step in 600 s"} if block in late else values))


@pytest.mark.parametrize(("events", "n"), [(0, 20), (6, 20), (20, 20), (1, 5)])
def test_shares_have_the_ends_of_clopper_and_pearson(events: int, n: int) -> None:
    exact = stats.binomtest(events, n).proportion_ci(0.9, method="exact")
    assert (least(events, n), most(events, n)) == pytest.approx((exact.low, exact.high))


@pytest.mark.parametrize(("own", "base"), [(6, 0), (3, 0), (4, 2), (0, 3)])
def test_blocks_in_which_one_side_failed_decide_whether_a_target_fails_more(own: int, base: int) -> None:
    failures = Failures(own, base, both=1, n=20)
    expected = stats.binomtest(own, own + base, alternative="greater").pvalue
    assert failures.p == pytest.approx(expected)
    (found,) = failing_more([Verdict("equivalent", 0.01)], [failures])
    assert known(found).name == ("fails more" if expected <= 0.05 else "equivalent")


def test_each_side_is_counted_by_block() -> None:
    own, base = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert count_failures(own, base) == Failures(own=1, base=1, both=1, n=4)


@pytest.mark.parametrize(
    ("name", "failures", "hidden"),
    [
        ("equivalent", Failures(0, 0, 3, 20), False),
        ("equivalent", Failures(1, 0, 0, 20), True),
        ("typical-only", Failures(2, 1, 0, 20), True),
        ("equivalent", Failures(1, 1, 0, 20), False),
        ("equivalent", Failures(4, 4, 0, 20), True),
        ("equivalent", Failures(1, 0, 0, 1000), False),
        ("faster", Failures(3, 0, 0, 20), False),
        ("faster", Failures(4, 0, 0, 20), True),
        ("slower", Failures(12, 0, 0, 20), False),
        ("slower", Failures(0, 4, 0, 20), True),
        ("undecided", Failures(12, 0, 0, 20), False),
    ],
)
def test_a_verdict_is_hidden_by_failed_trials_that_may_have_been_slow(
    name: VerdictName, failures: Failures, hidden: bool
) -> None:
    assert may_hide(name, failures, 0.02) is hidden


def test_a_failed_trial_is_a_slow_one_in_what_is_excluded() -> None:
    alone, failing = slow_trials([0.0] * 14), slow_trials([0.0] * 14, failures=Failures(6, 0, 0, 20))
    assert alone.excluded == pytest.approx(1 - 0.05 ** (1 / 14))
    assert failing.excluded == pytest.approx(most(6, 20))
    slow = slow_trials([0.0] * 37 + [-0.5] * 3, failures=Failures(2, 0, 0, 42))
    assert slow.p == pytest.approx(0.5**5)


def test_a_target_whose_trials_time_out_more_often_fails_more_and_the_first_line_has_the_shares(save: Save) -> None:
    forge(save, failed={2, 5, 8, 11, 14, 17})
    comparison = save.compare()
    told = answer(comparison)
    low, high = stats.binomtest(6, 20).proportion_ci(0.95, method="exact")
    share = f"6 of 20 failed ({low * 100:.0f} to {high * 100:.0f} %), none on bare metal, p = 0.016"
    assert told.lines[0].endswith(f", fails more, {share}")
    assert told.why.startswith("it fails more often than bare metal")
    assert told.why.endswith("; container failed: no step in 600 s")
    assert known(told.next).decides == "each failure in full"
    assert share.split(" (")[0] in printed(document(comparison, "overview"), width=140).splitlines()[0]
    (row,) = (
        row for row in json_of(comparison)["rows"] if row["metric"] == "throughput" and row["target"] == "container"
    )
    assert (row["verdict"], row["failed"], row["failed_baseline"]) == ("fails more", 6, 0)
    assert (row["failed_low"], row["failed_high"], row["failed_p"]) == pytest.approx((low, high, 0.5**6))
    assert row["slow_excluded"] == pytest.approx(most(6, 20))
    of_target = comparison.groups[0].of_target("container")
    assert {judged(one).name for one in of_target.values()} == {"fails more"}


@pytest.mark.parametrize("failed", [{3}, {3, 9, 15}])
def test_neither_equivalent_nor_typical_only_is_said_while_failed_trials_may_have_been_slow(
    save: Save, failed: Set[int]
) -> None:
    forge(save, failed)
    told = answer(save.compare())
    assert told.claims[0].word == "no verdict"
    assert told.why.startswith(f"failed trials may have been slow ones ({len(failed)} of 20 on the target, none on")
    assert known(told.next).decides == "each failure in full"


def test_where_both_sides_fail_alike_the_targets_may_be_equivalent(save: Save) -> None:
    forge(save, failed={3, 7}, base_failed={3, 12})
    told = answer(save.compare())
    assert told.claims[0].word == "equivalent"
    assert "slow or failed trials (over 10 % slower) in more than" in told.why
    assert "2 of 20 failed (1.2 to 32 %), 2 on bare metal" in told.lines[0]


def test_a_target_of_which_every_trial_failed_has_its_share_in_the_first_line(save: Save) -> None:
    forge(save, failed=set(range(8)), blocks=8)
    assert "no number, 8 of 8 failed (63 to 100 %), none on bare metal, p = 0.0039" in answer(save.compare()).lines[0]


def test_what_is_slower_in_spite_of_failed_trials_stays_slower(save: Save) -> None:
    forge(save, failed={2, 5, 8, 11, 14, 17}, speed=7.0)
    told = answer(save.compare())
    assert told.claims[0].word == "slower"
    assert "6 of 20 failed" in told.lines[0]


def test_the_mean_over_models_knows_of_a_model_that_fails(save: Save) -> None:
    forge(save, failed=set())
    for block in range(20):
        for target in ("bare-metal", "container"):
            late = target == "container" and block % 3 == 0
            values = measured(10.0 + block % 2 / 100)
            save(target=target, block=block, model="alexnet", **({"failed": "late"} if late else values))
    (whole,) = save.compare().of_kind("models").values()
    assert judged(whole["throughput"]).name == "fails more"
    assert known(whole["throughput"].failures).own == 7


@pytest.mark.parametrize("repeated", [False, True])
def test_a_trial_that_failed_counts_as_failed_when_a_repetition_of_it_is_ok(save: Save, repeated: bool) -> None:
    late = {2, 5, 8, 11, 14, 17}
    forge(save, late)
    for block in late if repeated else ():
        save(target="container", block=block, **measured(10.0 + block / 1000))
    comparison = save.compare()
    told = answer(comparison)
    assert ", fails more, 6 of 20 failed (12 to 54 %), none on bare metal, p = 0.016" in told.lines[0]
    (row,) = (
        one for one in json_of(comparison)["rows"] if one["metric"] == "throughput" and one["target"] == "container"
    )
    assert (row["blocks"], row["failed"]) == (20 if repeated else 14, 6)
    assert row["slow_excluded"] == pytest.approx(most(6, 20))
    (warning,) = (one for one in comparison.warnings if one.kind == "failed-trials")
    assert "6 of 20 trials on container failed" in warning.message
    assert ("attempts" in warning.advice) is repeated
