"""Two runs of one job: those that contradict each other are said to, first; those that agree are pooled."""

import json
from pathlib import Path

import pytest

from analysis.compare.agreement import CONTRADICTION
from analysis.report.answers.answer import answer
from tests.analysis.conftest import Save, bench_compare, json_of
from tests.analysis.test_next_step import Forged


def two_runs(save: Save, second: float, blocks: int = 8) -> tuple[Path, Path]:
    """Save two runs: in the second a container has this throughput over bare metal, in the first 0.95."""
    Forged(save, "before").measure(0.95, blocks, seed=1)
    Forged(save, "after").measure(second, blocks, seed=2)
    return save.path / "before", save.path / "after"


def test_runs_that_contradict_each_other_are_said_to_first_with_the_ratio_between_them(save: Save) -> None:
    before, after = two_runs(save, 0.76)
    comparison = save.compare("before", "after")
    found = answer(comparison)
    (row,) = found.rows
    assert row.subject == f"resnet50 on container, throughput, {after}"
    assert (row.word, row.over) == ("slower", str(before))
    assert float(row.value) == pytest.approx(0.8, abs=0.01)
    assert found.why == f"{CONTRADICTION}: beyond the margin of 2 %"
    rows = [one for one in json_of(comparison)["rows"] if one["target"] == "container" and one["kind"] == "target"]
    assert {one["verdict"] for one in rows} == {None}
    assert all(CONTRADICTION in one["withheld"] for one in rows if one["low"])
    shown = bench_compare(before, after, "--force", "--plots", save.path / "plots").stdout
    assert shown.split(",")[0].startswith("resnet50 on container")
    assert "bare metal" not in shown, "a mean over both is a number of neither"
    told = json.loads(bench_compare(before, after, "--force", "--json").stdout)["answer"]
    assert (told["lines"], told["claims"]) == ([*found.lines], [])


def test_runs_that_agree_are_pooled(save: Save) -> None:
    two_runs(save, 0.95)
    comparison = save.compare("before", "after")
    (row,) = answer(comparison).rows
    assert (comparison.between, row.over, row.word) == ((), "bare metal", "slower")


@pytest.mark.parametrize("runs", [("before",), ("before", "after", "third")])
def test_one_run_and_more_than_two_are_compared_as_before(save: Save, runs: tuple[str, ...]) -> None:
    two_runs(save, 0.76)
    Forged(save, "third").measure(0.76, 8, seed=3)
    assert save.compare(*runs).between == ()


def test_too_few_blocks_contradict_nothing(save: Save) -> None:
    two_runs(save, 0.76, blocks=4)
    assert save.compare("before", "after").between == ()
