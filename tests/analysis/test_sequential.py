"""When a run stops: until its intervals are narrow, all is decided, or a difference could be seen."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special

from analysis.compare.comparison import compare
from analysis.compare.convergence import PILOT_BLOCKS, pilot_of, plan_detection, should_stop_detecting, should_stop_run
from analysis.load.plans import terms_of
from analysis.load.records import Records
from analysis.report.formatting import group_lines
from analysis.statistics.ratios import judge, locate
from analysis.statistics.sequential import EXTRA_BLOCKS, level_after, looks, should_stop, should_stop_deciding
from suite.request.repetitions import RepetitionOptions, Repetitions
from suite.request.request import RunRequest
from suite.results.store import PLAN
from tests.analysis.conftest import WITHIN_2, Save, judged, known
from tests.jobs import identity
from tests.suite.conftest import make_plan


def steady(blocks: int, sigma: float = 0.001, seed: int = 0) -> list[float]:
    return list(np.random.default_rng(seed).normal(0, sigma, blocks))


def test_it_stops_only_after_the_extra_blocks_that_keep_the_coverage() -> None:
    values = steady(40)
    stops = [blocks for blocks in range(1, 41) if should_stop({"vm": values[:blocks]}, 0.02, max_blocks=99).stop]
    assert stops[0] == 5 + EXTRA_BLOCKS
    waiting = should_stop({"vm": values[:6]}, 0.02, max_blocks=99)
    assert (waiting.stop, waiting.at_least) == (False, EXTRA_BLOCKS - 1)


@pytest.mark.parametrize(
    ("ratios", "most", "stop", "reason", "known"),
    [
        ({"vm": steady(30), "container": steady(30, 0.2)}, 99, False, "container is not yet within 2.0%", True),
        ({"vm": steady(12, 0.5)}, 12, True, "the most blocks requested (12) are measured", True),
        ({"vm": [math.nan] * 20, "container": steady(20)}, 99, False, "vm is not yet within 2.0%", False),
        ({}, 9, False, "no ratio is not yet within 2.0%", False),
        ({"vm": [*steady(5), 0, 0.5, -0.5, 0.6, -0.6, 0.5, -0.5, 0.7]}, 99, False, "vm is again wider than 2.0%", True),
    ],
    ids=["one is wide", "all blocks are measured", "one always fails", "no ratio", "wide again"],
)
def test_it_stops_once_every_interval_is_narrow_or_all_blocks_are_measured(
    ratios: dict[str, list[float]], most: int, stop: bool, reason: str, known: bool
) -> None:
    decision = should_stop(ratios, 0.02, max_blocks=most)
    assert (decision.stop, decision.reason, decision.half_width is not None) == (stop, reason, known)


@pytest.mark.parametrize("second", [{"target": "vm"}, {"replica": 1}], ids=["a target", "bare metal against itself"])
def test_the_records_of_a_run_are_judged_by_the_ratios_of_its_blocks(save: Save, second: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    for block in range(5 + EXTRA_BLOCKS):
        drift = 10 * math.exp(rng.normal(0, 0.5))
        save(block=block, throughput_per_s=drift)
        save(block=block, **second, throughput_per_s=drift * 0.9 * math.exp(rng.normal(0, 0.001)))
        assert should_stop_run(save.load(), WITHIN_2, max_blocks=99).stop == (block == 4 + EXTRA_BLOCKS)
    save(block=5 + EXTRA_BLOCKS, target="container", throughput_per_s=9.0)
    assert not should_stop_run(save.load(), WITHIN_2, max_blocks=99).stop, "with a target it is that, too"


def test_a_block_whose_trial_failed_counts_as_one_without_a_ratio_from_which_nothing_is_planned(save: Save) -> None:
    for block in range(PILOT_BLOCKS):
        save(block=block, throughput_per_s=10.0)
        save(block=block, target="vm", failed="no")
    records = save.load()
    assert should_stop_run(records, WITHIN_2, max_blocks=PILOT_BLOCKS).stop
    decision = should_stop_run(records, WITHIN_2, max_blocks=PILOT_BLOCKS + 1)
    assert (decision.stop, decision.reason[:14]) == (False, "resnet50 on vm")
    assert plan_detection(records, 0.02, most=40, source="pilot") is None
    assert should_stop_detecting(lambda: records, 0.02, PILOT_BLOCKS, most=40).stop


# ---- until every comparison is decided


def deciding(values: Any, margin: float = 0.05, **more: Any) -> Any:
    return should_stop_deciding([{"vm": values}], margin, **{"max_blocks": 99} | more)


def test_a_run_until_decided_looks_rarely_and_stops_only_at_a_look() -> None:
    assert list(looks(5, 40)) == [5, 7, 9, 12, 16, 21, 28, 37, 49]
    assert [blocks for blocks in range(1, 41) if deciding(steady(blocks)).stop] == [5, 7, 9, 12, 16, 21, 28, 37]
    assert deciding(steady(6)).at_least == 1


@pytest.mark.parametrize(("ratio", "stops"), [(1.0, True), (0.7, True), (1 / 1.05, False)])
def test_what_is_decided_may_be_a_difference_too_and_what_is_on_the_margin_is_not(ratio: float, stops: bool) -> None:
    assert deciding([value + math.log(ratio) for value in steady(12, 0.01)]).stop is stops


def test_while_it_is_undecided_it_says_what_and_how_many_blocks_it_may_take() -> None:
    decision = deciding(steady(7, 0.05, seed=3))
    assert (decision.stop, decision.at_least) == (False, 2)
    assert "no verdict yet on vm at a margin of 5 %" in decision.reason
    assert (decision.expected or 0) > 0


def test_blocks_without_a_ratio_decide_nothing() -> None:
    assert not deciding([math.nan] * 12).stop
    assert not deciding([0.0, 0.0, *[math.nan] * 10]).stop
    assert not should_stop_deciding([], 0.05, max_blocks=9).stop
    assert deciding([math.nan] * 12, max_blocks=12).reason == "the most blocks requested (12) are measured"


def test_a_run_is_decided_by_its_records(save: Save) -> None:
    asked = Repetitions(until="decided", margin="5%")
    for block in range(5):
        save(block=block)
        save(block=block, target="vm", throughput_per_s=10.0 + 0.001 * block)
    assert [should_stop_run(found, asked, max_blocks=99).stop for found in (save.load(), None)] == [True, False]


def test_a_run_goes_on_where_the_answer_withholds_the_verdict_because_of_failed_trials(save: Save) -> None:
    asked = Repetitions(until="decided", margin="5%")
    for block in range(12):
        save(block=block, throughput_per_s=10.0 - 0.001 * block)
        failed = "time-out" if block < 2 else None
        save(block=block, target="vm", failed=failed, **({} if failed else measured_at(10.0 + 0.001 * block)))
    found = should_stop_run(save.load(), asked, max_blocks=99)
    assert (found.stop, found.at_least) == (False, 1)
    assert found.reason.startswith("resnet50 on vm: failed trials may have been slow ones (2 of 12 on the target")
    (group,) = save.compare(margin=0.05).groups
    assert judged(group.of_target("vm")["throughput"]).name is None, "the answer has no verdict either"
    assert should_stop_run(save.load(), asked, max_blocks=12).stop, "the most blocks are measured"


def measured_at(speed: float) -> dict[str, Any]:
    return {"throughput_per_s": speed, "elapsed_s": 200 / speed}


def test_all_looks_together_spend_what_is_to_be_spent() -> None:
    rng = np.random.default_rng(0)
    after = list(looks(5, 9000))
    widths = np.sqrt(np.diff([0, *after]))
    # Sums of normal values at every look: of a mean on the bound, in units of its error.
    walks = (rng.normal(size=(40_000, len(after))) * widths).cumsum(axis=1) / np.sqrt(after)
    bounds = -special.ndtri([level_after(blocks, 5) for blocks in after])
    crossed = (walks > bounds).cumsum(axis=1).astype(bool).mean(axis=0)
    assert crossed == pytest.approx([0.04 * (1 - 0.85**number) for number in range(1, len(after) + 1)], abs=0.0025)


def test_a_look_that_comes_early_has_the_level_of_the_next_one_and_levels_start_anew_with_the_first() -> None:
    assert level_after(6, 5) == level_after(7, 5)
    assert level_after(30, 30) == level_after(5, 5) == pytest.approx(0.006, rel=0.01)


def test_blocks_are_foretold_for_the_level_of_the_look() -> None:
    values = steady(28, 0.05, seed=1)
    ordinary = known(*judge([locate(values)], 0.01))
    assert deciding(values, 0.01).expected > 1.3 * known(ordinary.more_blocks)


def planned(run: Path, **asked: object) -> Path:
    """Write the plan of a run that was asked for so."""
    run.mkdir(exist_ok=True)
    request = RunRequest(repetitions=RepetitionOptions.model_validate(asked))
    plan = make_plan().model_copy(update={"request": request, "run_id": identity(run.name)})
    (run / PLAN).write_text(plan.model_dump_json())
    return run


@pytest.mark.parametrize(("until", "verdict"), [("decided", "undecided"), ("2%", "equivalent")])
def test_the_verdict_of_a_run_that_looked_for_it_holds_at_the_level_of_its_looks(
    tmp_path: Path, save: Save, until: str, verdict: str
) -> None:
    rng = np.random.default_rng(4)
    for block in range(9):
        save(block=block, throughput_per_s=10.0)
        save(block=block, target="vm", throughput_per_s=10.0 * math.exp(rng.normal(0, 0.04)))
    planned(tmp_path / "run", until=until, margin="5%")
    own = judged(save.compare(margin=0.05).groups[0].of_target("vm")["throughput"])
    assert 0.0089 < known(own.p) < 0.05
    assert (own.name, own.more_blocks is None) == (verdict, verdict == "equivalent")


def test_a_run_until_decided_looks_from_the_fewest_blocks_on(tmp_path: Path) -> None:
    untils: list[dict[str, object]] = [{}, {"until": "2%"}, {"until": "decided"}]
    fixed, narrow, decided = (planned(tmp_path / str(number), **asked) for number, asked in enumerate(untils))
    assert [terms_of([one]).looked for one in (fixed, narrow, decided)] == [None, None, 5]
    assert terms_of([fixed, decided, tmp_path]).looked == 5


@pytest.fixture
def measured(save: Save) -> Any:
    """Save blocks whose targets differ from block to block by so much, and return their records."""

    def _measured(blocks: int, **deviations: float) -> Records:
        rng = np.random.default_rng(2)
        for block in range(blocks):
            save(block=block, throughput_per_s=10.0)
            for target, deviation in deviations.items():
                save(block=block, target=target, throughput_per_s=10 * math.exp(rng.normal(0, deviation)))
        return save.load()

    return _measured


def test_the_noisiest_target_decides_how_many_blocks_there_are(measured: Any) -> None:
    records = measured(PILOT_BLOCKS, vm=0.05, container=0.001)
    found = known(plan_detection(records, 0.02, most=1000, source="pilot"))
    assert found.ratio == "resnet50 on vm"
    assert found.needed == found.blocks > 2 * PILOT_BLOCKS
    assert found.detectable == pytest.approx(0.02, rel=0.05)
    assert 0.02 < found.deviation < 0.08


def test_what_is_asked_for_bounds_the_blocks_and_what_they_detect_is_said(measured: Any) -> None:
    records = measured(PILOT_BLOCKS, vm=0.05)
    found, few, none = (
        known(plan_detection(records, difference, most=40, source="pilot")) for difference in (0.01, 0.9, 1e-9)
    )
    assert (found.blocks, found.measured) == (40, 10)
    assert (known(found.needed) > 40, known(found.detectable) > 0.01) == (True, True)
    assert few.blocks == 2 * PILOT_BLOCKS, "a pilot that looks quiet by chance must not end the run"
    assert none.needed is None


def test_earlier_runs_plan_only_if_every_target_has_enough_blocks(measured: Any) -> None:
    records = measured(PILOT_BLOCKS - 1, vm=0.001)
    assert plan_detection(records, 0.02, most=40, source="earlier") is None
    assert plan_detection(records, 0.02, most=40, source="pilot")


def test_blocks_after_the_pilot_change_no_plan(measured: Any) -> None:
    before = known(plan_detection(measured(PILOT_BLOCKS, vm=0.05), 0.02, most=500, source="pilot"))
    more = measured(PILOT_BLOCKS + 7, vm=0.05)
    assert plan_detection(pilot_of(more), 0.02, most=500, source="pilot") == before
    assert should_stop_detecting(lambda: more, 0.02, before.blocks, most=500).stop
    waiting = should_stop_detecting(lambda: more, 0.02, before.blocks - 3, most=500)
    assert (waiting.stop, waiting.at_least) == (False, 3)


def test_a_comparison_says_what_its_blocks_could_have_seen(measured: Any) -> None:
    (group,) = compare(measured(12, vm=0.05, container=0.01)).groups
    (text,) = [line for line in group_lines(group) if line.startswith("differences that these blocks could have seen")]
    assert ("(power 80%): throughput " in text, "% (vm, 12 blocks)" in text) == (True, True)
