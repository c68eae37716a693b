"""Planned trials that are not there are named, with how to get them."""

from pathlib import Path
from typing import Any

from analysis.compare.comparison import compare
from analysis.load.records import load
from analysis.warnings.types import AnalysisWarning
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import Sizes
from suite.results.store import Run
from suite.sweep.directory import SweepDirectory
from tests.jobs import plan_of
from tests.suite.sweep.conftest import make_sweep

ENVELOPE = Envelope(cpus=(0, 1), memory_bytes=2 * GIB, threads=2)
SIZES = Sizes(batch=2, image_px=32, warmup_steps=1, steps=3)


def planned(path: Path, **changes: Any) -> None:
    targets = ("bare-metal", "container")
    Run(path).begin(plan_of(targets=targets, blocks=4, sizes=SIZES, profile="quick", envelope=ENVELOPE, **changes))


def missing(path: Path) -> list[AnalysisWarning]:
    return [one for one in compare(load([path])).warnings if one.kind == "missing-trials"]


def test_planned_trials_that_were_not_run_are_counted_by_target(tmp_path: Path, save: Any) -> None:
    planned(tmp_path / "run", warmup_blocks=1)
    for block in range(3):
        save(block=block)
        if block != 1:
            save(block=block, target="container")
    found = missing(tmp_path / "run")
    assert [one.where for one in found] == ["resnet50 on bare-metal, 1 of 4", "resnet50 on container, 2 of 4"]
    assert found[0].finding == f"planned trials of {tmp_path / 'run'} are missing"
    assert found[0].advice == f"go on with the run: bench run --continue {tmp_path / 'run'}"
    assert [touched.target for one in found for touched in one.touches] == ["bare-metal", "container"]


def test_a_target_without_any_trial_is_named(tmp_path: Path, save: Any) -> None:
    planned(tmp_path / "run")
    for block in range(4):
        save(block=block)
    (found,) = missing(tmp_path / "run")
    assert (found.where, found.touches) == ("resnet50 on container, 4 of 4", ())


def test_a_complete_run_misses_nothing(tmp_path: Path, save: Any) -> None:
    planned(tmp_path / "run")
    for block in range(4):
        save(block=block)
        save(block=block, target="container", failed="no memory")
    assert missing(tmp_path / "run") == []


def test_an_open_ended_sweep_misses_only_what_its_blocks_lack(tmp_path: Path, save: Any) -> None:
    SweepDirectory(tmp_path).accept(make_sweep(until="2%"), ())
    planned(tmp_path / "run")
    save(block=0)
    save(block=0, target="container")
    save(block=1)
    (found,) = missing(tmp_path / "run")
    assert found.where == "resnet50 on container, 1 of 2"
    assert found.advice == f"go on with the sweep: bench sweep run FILE --out {tmp_path}"
