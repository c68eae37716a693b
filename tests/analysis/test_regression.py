import io
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from analysis.compare.regression import Change, Regression, regress
from analysis.load.records import load
from analysis.report.terminal import RegressionTerminal
from suite.job.distributed import DistributedJob
from suite.job.lab import LabSpec


def runs(path: Path, fail_above: float | None = 0.05) -> Regression:
    return regress(load([path / "old"]), load([path / "new"]), fail_above)


def make(save: Any, run: str, speed: float, blocks: int = 8, seed: int = 0, **changes: Any) -> None:
    rng = np.random.default_rng(seed)
    for block in range(blocks):
        now = speed * math.exp(rng.normal(0, 0.005))
        values = {"throughput_images_per_s": now, "elapsed_s": 100 / now} | changes
        save(run, block=block, **values)


def the(found: Regression, metric: str = "throughput", *, normalised: bool = False, target: str = "vm") -> Change:
    (one,) = [
        change
        for change in found.changes
        if (change.metric, change.normalised, change.target) == (metric, normalised, target)
    ]
    return one


def test_a_run_that_became_slower_by_more_than_the_bound_exceeds_it(tmp_path: Path, save: Any) -> None:
    make(save, "old", 10.0, target="vm")
    make(save, "new", 9.0, seed=1, target="vm")
    found = runs(tmp_path)
    change = the(found)
    assert found.exceeded
    assert change.exceeded
    assert change.slower == pytest.approx(1 / 0.9 - 1, abs=0.01)
    assert change.interval
    assert change.interval[0] < 0.9 < change.interval[1]
    assert the(found, "elapsed").exceeded


@pytest.mark.parametrize("speed", [9.9, 10.0, 12.0])
def test_a_change_within_the_bound_or_for_the_better_does_not(tmp_path: Path, save: Any, speed: float) -> None:
    make(save, "old", 10.0, target="vm")
    make(save, "new", speed, seed=1, target="vm")
    assert not runs(tmp_path).exceeded


def test_noise_alone_does_not_exceed_the_bound(tmp_path: Path, save: Any) -> None:
    for block, speed in enumerate((10.0, 6.0, 14.0)):
        save("old", block=block, throughput_images_per_s=speed)
        save("new", block=block, throughput_images_per_s=speed * 0.85)
    assert the(runs(tmp_path), target="bare-metal").slower > 0.05
    assert not runs(tmp_path).exceeded


def test_single_trials_are_judged_by_their_value_and_say_so(tmp_path: Path, save: Any) -> None:
    save("old", throughput_images_per_s=10.0)
    save("new", throughput_images_per_s=9.0)
    found = runs(tmp_path)
    assert found.exceeded
    console = Console(width=100, file=io.StringIO())
    console.print(RegressionTerminal(found))
    assert isinstance(console.file, io.StringIO)
    assert "no interval: 1 trial" in console.file.getvalue()


def test_a_host_that_became_slower_as_a_whole_leaves_the_ratio_to_bare_metal(tmp_path: Path, save: Any) -> None:
    for run, speed, seed in (("old", 10.0, 0), ("new", 8.0, 2)):
        make(save, run, speed, seed=seed)
        make(save, run, speed * 0.9, seed=seed + 1, target="vm")
    found = runs(tmp_path)
    assert the(found).exceeded
    assert the(found, normalised=True).ratio == pytest.approx(1, abs=0.02)
    assert not the(found, normalised=True).exceeded


def test_opening_times_are_shown_and_fail_nothing(tmp_path: Path, save: Any) -> None:
    for block in range(3):
        save("old", block=block, open_s=1.0)
        save("new", block=block, open_s=9.0)
    found = runs(tmp_path)
    assert the(found, "opening", target="bare-metal").ratio == pytest.approx(9.0)
    assert not found.exceeded


def test_what_differs_between_the_runs_is_named(tmp_path: Path, save: Any) -> None:
    make(save, "old", 10.0, 2)
    make(save, "new", 10.0, 2, capability="AVX512")
    assert the(runs(tmp_path), target="bare-metal").differences == ("CPU capability AVX512 against AVX2",)


def test_targets_of_one_run_only_are_named_and_failed_ones_are_not_compared(tmp_path: Path, save: Any) -> None:
    for run in ("old", "new"):
        save(run)
    save("old", target="vm")
    save("new", target="vm", failed="no")
    found = runs(tmp_path)
    assert found.unmatched == ("resnet50 on vm",)
    assert {change.target for change in found.changes} == {"bare-metal"}


def test_the_interval_is_the_one_of_scipy(tmp_path: Path, save: Any) -> None:
    make(save, "old", 10.0, 4)
    make(save, "new", 9.0, 3, seed=5)
    samples = [
        np.log(load([tmp_path / run]).trials["throughput_images_per_s"].to_numpy(dtype=float)) for run in ("new", "old")
    ]
    expected = stats.ttest_ind(*samples, equal_var=False).confidence_interval(0.95)
    interval = the(runs(tmp_path), target="bare-metal").interval
    assert interval
    assert np.log(interval) == pytest.approx([expected.low, expected.high])


def test_without_a_bound_nothing_is_exceeded_and_rows_are_json(tmp_path: Path, save: Any) -> None:
    make(save, "old", 10.0, 2)
    make(save, "new", 1.0, 2)
    found = runs(tmp_path, None)
    assert not found.exceeded
    assert json.loads(json.dumps([asdict(change) for change in found.changes]))[0]["metric"] == "throughput"


def sweep(save: Any, run: str, **speeds: float) -> None:
    """A cell per engine, in which containers are so fast."""
    for engine, speed in speeds.items():
        for target, now in (("bare-metal", 10.0), ("container", speed)):
            make(save, f"{run}-{engine}", now, 4, target=target, engine=engine, image=f"{run} image")


def sweeps(path: Path) -> Regression:
    old, new = (load(sorted(path.glob(f"{run}-*"))) for run in ("old", "new"))
    return regress(old, new, 0.05)


def test_engines_of_one_sweep_are_compared_each_with_itself(tmp_path: Path, save: Any) -> None:
    sweep(save, "old", podman=5.0, runc=10.0)
    sweep(save, "new", podman=10.0, runc=5.0)  # as one, nothing would have changed
    found = sweeps(tmp_path)
    ratios = {
        change.variant: change.ratio
        for change in found.changes
        if (change.target, change.metric, change.normalised) == ("container", "throughput", False)
    }
    assert ratios == pytest.approx({"engine=podman": 2.0, "engine=runc": 0.5})
    assert found.exceeded
    assert not found.unmatched, "another image is what the comparison is about"


def test_a_cell_that_one_sweep_lacks_is_named_with_its_settings(tmp_path: Path, save: Any) -> None:
    sweep(save, "old", podman=5.0, runc=10.0)
    sweep(save, "new", runc=10.0)
    found = sweeps(tmp_path)
    assert found.unmatched == ("resnet50 on bare-metal (engine=podman)", "resnet50 on container (engine=podman)")
    assert {change.variant for change in found.changes} == {"engine=runc"}


def test_settings_that_all_of_a_run_have_are_compared_and_named(tmp_path: Path, save: Any) -> None:
    distributed = DistributedJob(strategy="all-reduce", workers=2, servers=0, network="host", lab=LabSpec(nodes=2))
    save("old", scenario="distributed", distributed=distributed)
    save("new", scenario="distributed", distributed=distributed.model_copy(update={"network": "overlay"}))
    change = the(runs(tmp_path), target="bare-metal")
    assert (change.variant, change.differences) == ("", ("network overlay against host",))
