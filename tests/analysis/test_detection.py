import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.compare.comparison import compare
from analysis.compare.convergence import PILOT_BLOCKS, pilot_of, plan_detection, should_stop_detecting
from analysis.load.records import Records, load
from analysis.report.formatting import group_lines


@pytest.fixture
def measured(tmp_path: Path, save: Any) -> Any:
    """Save blocks whose targets differ from block to block by so much, and return their records."""

    def _measured(blocks: int, **deviations: float) -> Records:
        rng = np.random.default_rng(2)
        for block in range(blocks):
            save(block=block, throughput_per_s=10.0)
            for target, deviation in deviations.items():
                save(block=block, target=target, throughput_per_s=10 * math.exp(rng.normal(0, deviation)))
        return load([tmp_path / "run"])

    return _measured


def test_the_noisiest_target_decides_how_many_blocks_there_are(measured: Any) -> None:
    records = measured(PILOT_BLOCKS, vm=0.05, container=0.001)
    found = plan_detection(records, 0.02, most=1000, source="pilot")
    assert found
    assert found.ratio == "resnet50 on vm"
    assert found.needed == found.blocks > 2 * PILOT_BLOCKS
    assert found.detectable == pytest.approx(0.02, rel=0.05)
    assert 0.02 < found.deviation < 0.08


def test_what_is_asked_for_bounds_the_blocks_and_what_they_detect_is_said(measured: Any) -> None:
    records = measured(PILOT_BLOCKS, vm=0.05)
    found = plan_detection(records, 0.01, most=40, source="pilot")
    assert found
    assert (found.blocks, found.measured) == (40, 10)
    assert found.needed
    assert found.needed > 40
    assert found.detectable
    assert found.detectable > 0.01
    few = plan_detection(records, 0.9, most=40, source="pilot")
    assert few
    assert few.blocks == 2 * PILOT_BLOCKS, "a pilot that looks quiet by chance must not end the run"
    assert plan_detection(records, 1e-9, most=40, source="pilot").needed is None  # type: ignore[union-attr]


def test_earlier_runs_plan_only_if_every_target_has_enough_blocks(measured: Any) -> None:
    records = measured(PILOT_BLOCKS - 1, vm=0.001)
    assert plan_detection(records, 0.02, most=40, source="earlier") is None
    assert plan_detection(records, 0.02, most=40, source="pilot")


def test_blocks_after_the_pilot_change_no_plan(measured: Any) -> None:
    before = plan_detection(measured(PILOT_BLOCKS, vm=0.05), 0.02, most=500, source="pilot")
    more = measured(PILOT_BLOCKS + 7, vm=0.05)
    assert plan_detection(pilot_of(more), 0.02, most=500, source="pilot") == before
    assert before
    done = should_stop_detecting(lambda: more, 0.02, before.blocks, most=500)
    assert done.stop
    waiting = should_stop_detecting(lambda: more, 0.02, before.blocks - 3, most=500)
    assert (waiting.stop, waiting.at_least) == (False, 3)


def test_without_ratios_nothing_is_planned(tmp_path: Path, save: Any) -> None:
    for block in range(PILOT_BLOCKS):
        save(block=block)
        save(block=block, target="vm", failed="no")
    records = load([tmp_path / "run"])
    assert plan_detection(records, 0.02, most=40, source="pilot") is None
    assert should_stop_detecting(lambda: records, 0.02, PILOT_BLOCKS, most=40).stop


def test_a_comparison_says_what_its_blocks_could_have_seen(measured: Any) -> None:
    (group,) = compare(measured(12, vm=0.05, container=0.01)).groups
    (text,) = [line for line in group_lines(group) if line.startswith("differences that these blocks could have seen")]
    assert "(power 80%): throughput " in text
    assert "% (vm, 12 blocks)" in text
