"""One meaning of "10 % slower": of verdicts, words, gate, figure, forecast and stop rules."""

import math
from pathlib import Path

import matplotlib.axes
import numpy as np
import pytest

from analysis.compare.by import compare_by
from analysis.compare.regression import _verdict
from analysis.figures.forest import forest
from analysis.report.answers.answer import answer
from analysis.statistics.margins import bounds_of, log_difference, log_slower_by, share_of, slower_by
from analysis.statistics.power import detectable
from analysis.statistics.ratios import Location, detectable_share, detection_level, judge
from analysis.statistics.sequential import should_stop, should_stop_deciding
from analysis.statistics.tails import qualified, tail_of
from suite.errors import RequestError
from suite.request.request import RunRequest
from suite.results.store import PLAN
from tests.analysis.conftest import Save, as_markdown, json_of, known
from tests.analysis.test_answer import run
from tests.jobs import identity
from tests.suite.conftest import make_plan

MARGIN = 0.10


def named(ratio: float, margin: float, *, more_is_faster: bool = True) -> str:
    """Return the verdict on a ratio that is known almost exactly."""
    place = Location(math.log(ratio), 1e-5, 9, 10)
    return str(known(*judge([place], margin, more_is_faster=more_is_faster)).name)


@pytest.mark.parametrize(
    ("ratio", "of_rate", "of_time"),
    [
        (0.905, "equivalent", "equivalent"),  # 1 / 1.1 is 0.909
        (0.899, "slower", "faster"),
        (1.099, "equivalent", "equivalent"),
        (1.101, "faster", "slower"),
    ],
)
def test_a_verdict_and_the_gate_agree_with_the_per_cent_that_are_said(ratio: float, of_rate: str, of_time: str) -> None:
    for more_is_faster, expected in ((True, of_rate), (False, of_time)):
        assert named(ratio, MARGIN, more_is_faster=more_is_faster) == expected
        slower = slower_by(ratio, more_is_faster=more_is_faster)
        assert (expected == "slower") == (slower > MARGIN), "the words would contradict the verdict"
        sign = -1 if more_is_faster else 1
        change, sides = Location(math.log(ratio), 1e-5, 9, 10), ([[0.0] * 9], [[math.log(ratio)] * 9])
        mean = known(tail_of([0.0] * 9 + [1e-6], [0.0] * 10)).expected
        gate = _verdict(change, sides, mean, sign, MARGIN, decides=True)
        assert (gate.name == "slower") == (expected == "slower")


def test_ten_percent_slower_is_what_a_rate_loses_and_a_time_adds() -> None:
    assert math.exp(log_slower_by(0.1, more_is_faster=True)) == pytest.approx(0.9)
    assert math.exp(log_slower_by(0.1, more_is_faster=False)) == pytest.approx(1.1)
    assert bounds_of(0.1).ratios == pytest.approx((0.9, 1.1))
    assert bounds_of(0.1).beyond(math.log(0.8)) == pytest.approx(math.log(0.9 / 0.8))
    assert bounds_of(0.1).beyond(math.log(0.95)) < 0


def test_the_expected_ratio_is_held_against_the_same_bounds() -> None:
    place = Location(math.log(0.905), 1e-5, 9, 10)
    logs = math.log(0.905) + np.linspace(-1e-4, 1e-4, 10)
    (verdict,) = qualified(judge([place], MARGIN), [place], [tail_of(logs, [0.0] * 10)], MARGIN)
    assert known(verdict).name == "equivalent"


def test_no_sentence_says_beyond_the_margin_of_less_than_the_margin(save: Save) -> None:
    found = answer(run(save, 0.906, noise=0.002, margin=MARGIN))
    assert found.why.startswith("within the margin of 10 % (9."), found.why


def test_the_band_of_the_figure_ends_where_the_verdict_does(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    bands: list[tuple[float, ...]] = []
    monkeypatch.setattr(matplotlib.axes.Axes, "axvspan", lambda _, *ends, **__: bands.append(ends))
    assert list(forest(run(save, 0.906, margin=MARGIN), {}))
    assert bands[0] == pytest.approx((0.9, 1.1))


def test_a_run_until_decided_stops_where_the_comparison_decides() -> None:
    rates = math.log(0.905) + np.linspace(-1e-4, 1e-4, 5)
    assert should_stop_deciding([{"vm": rates}], MARGIN, max_blocks=99).stop
    assert named(math.exp(rates.mean()), MARGIN) == "equivalent"


def test_an_interval_within_a_share_and_a_detected_difference_are_so_in_both_directions() -> None:
    width = log_difference(0.1)
    assert max(math.exp(width) - 1, 1 - math.exp(-width)) == pytest.approx(0.1)
    values = np.linspace(-1, 1, 40) * 0.1
    decision = should_stop({"vm": values}, 0.1, max_blocks=99)
    assert decision.stop
    assert known(decision.half_width) <= 0.1
    place = Location(0.0, 0.01, 17, 20)
    share = known(detectable_share(place, 1))
    seen = detectable(known(place.deviation), 17, 20, level=detection_level(1))
    assert min(abs(math.log(1 + share)), abs(math.log(1 - share))) == pytest.approx(seen)
    assert share_of(log_difference(0.1)) == pytest.approx(0.1)


def planned(run: Path, margin: float | None, **asked: object) -> None:
    request = RunRequest.of(asked)
    plan = make_plan(request=request).model_copy(update={"margin": margin, "run_id": identity(run.name)})
    (run / PLAN).write_text(plan.model_dump_json())


def two_runs(save: Save, *, second: str = "alexnet") -> None:
    """Save runs of a job each, of a container that is 4 % slower, planned with margins of 5 % and 2 %."""
    profiles = {"wide": ("resnet50", "quick"), "narrow": (second, "paper")}
    for name, (model, profile) in profiles.items():
        for block in range(12):
            for target, speed in (("bare-metal", 10.0), ("container", 9.6)):
                noise = 1 + 0.0005 * (block % 3)
                save(name, block=block, target=target, model=model, profile=profile, throughput_per_s=speed * noise)
    planned(save.path / "wide", 0.05, until="decided")
    planned(save.path / "narrow", None)


def test_each_job_is_judged_by_the_plan_of_its_runs(save: Save) -> None:
    two_runs(save)
    comparison = save.compare("wide", "narrow")
    found = {
        group.job.profile: (group.of_target("container")["throughput"].verdict, group.circumstances.decided)
        for group in comparison.groups
    }
    told = {profile: (known(verdict).name, known(verdict).margin, stops) for profile, (verdict, stops) in found.items()}
    assert told == {"quick": ("equivalent", 0.05, True), "paper": ("slower", 0.02, False)}
    rows = {row.subject: row for row in answer(comparison).rows}
    assert [("after stopping" in row.number) for row in rows.values()] == ["quick" in name for name in rows]
    assert {row["margin"] for row in json_of(comparison)["rows"] if row["verdict"]} == {0.02, 0.05}
    assert "within 2 % or 5 % of 1" in as_markdown(comparison)
    assert save.compare("wide", "narrow", margin=0.1).margins == (0.1,)


def test_runs_of_one_job_that_were_planned_with_different_margins_ask_for_one(save: Save) -> None:
    two_runs(save)
    planned(save.path / "narrow", 0.03)
    for block in range(12):
        for target, speed in (("bare-metal", 10.0), ("container", 9.6)):
            save("wide", block=block, target=target, model="alexnet", profile="paper", throughput_per_s=speed)
    with pytest.raises(RequestError, match=r"different margins: .*narrow 0\.03, .*wide 0\.05") as refused:
        save.compare("wide", "narrow")
    assert "--margin 5%" in str(refused.value.remedy)
    assert save.compare("wide", "narrow", margin=0.03).groups


def test_contrasts_between_jobs_of_different_margins_ask_for_one(save: Save) -> None:
    two_runs(save)
    with pytest.raises(RequestError, match=r"different margins"):
        compare_by(save.load("wide", "narrow"), ("profile",))
    with pytest.raises(RequestError, match=r"jobs that are compared were planned with different margins: 0\.02 and 0"):
        _ = save.compare("wide", "narrow").common_terms
