import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.compare import compare
from analysis.fields import COLUMNS
from analysis.load import Records, load
from analysis.results import Comparison, TargetSummary
from analysis.warnings import FailedTrials, MixedSubstitutes, NotNormalised, OtherUserland


def compared(*directories: Path) -> Comparison:
    return compare(load(directories))


def summaries(comparison: Comparison) -> dict[str, TargetSummary]:
    """Of the only group."""
    (group,) = comparison.groups
    return {summary.target: summary for summary in group.targets}


def test_a_ratio_is_the_geometric_mean_of_the_ratios_inside_blocks(tmp_path: Path, save: Any) -> None:
    # The second block ran on a host that had become ten times slower: inside blocks that does not show.
    for block, speed in enumerate((10.0, 1.0)):
        save(block=block, throughput_images_per_s=speed)
        save(block=block, target="vm", throughput_images_per_s=speed * (0.8, 0.9)[block])
    vm = summaries(compared(tmp_path / "run"))["vm"].estimates["throughput"]
    assert vm.ratio == pytest.approx(math.sqrt(0.8 * 0.9))
    assert vm.value == pytest.approx(math.sqrt(8 * 0.9))
    assert (vm.trials, vm.blocks) == (2, 2)


def test_bare_metal_is_one_and_every_metric_has_its_ratio(tmp_path: Path, save: Any) -> None:
    save()
    save(target="container", throughput_images_per_s=9.0, elapsed_s=25.0, open_s=1.0)
    found = summaries(compared(tmp_path / "run"))
    assert {name: estimate.ratio for name, estimate in found["bare-metal"].estimates.items()} == {
        "throughput": 1.0,
        "elapsed": 1.0,
        "opening": 1.0,
    }
    ratios = {name: estimate.ratio for name, estimate in found["container"].estimates.items()}
    assert ratios == pytest.approx({"throughput": 0.9, "elapsed": 1.25, "opening": 2.0})


def test_blocks_of_the_same_number_in_two_runs_are_two_blocks(tmp_path: Path, save: Any) -> None:
    for run, speed in (("a", 10.0), ("b", 1.0)):
        save(run)
        save(run, target="vm", throughput_images_per_s=speed)
    comparison = compared(tmp_path / "a", tmp_path / "b")
    assert comparison.runs == ("a", "b")
    assert summaries(comparison)["vm"].estimates["throughput"].blocks == 2


def test_two_bare_metal_trials_of_a_block_share_its_baseline(tmp_path: Path, save: Any) -> None:
    save(throughput_images_per_s=8.0)
    save(throughput_images_per_s=12.5, replica=1, trial_id="again")
    save(target="vm", throughput_images_per_s=5.0)
    found = summaries(compared(tmp_path / "run"))
    assert found["bare-metal"].ok == 2
    assert found["vm"].estimates["throughput"].ratio == pytest.approx(0.5)


def test_targets_and_models_stand_in_the_order_of_the_paper(tmp_path: Path, save: Any) -> None:
    for model in ("zoo", "alexnet", "inception_v3"):
        for target in ("zen", "container-vm", "container", "bare-metal", "vm"):
            save(model=model, target=target)
    groups = compared(tmp_path / "run").groups
    assert [group.model for group in groups] == ["inception_v3", "alexnet", "zoo"]
    for group in groups:
        targets = [summary.target for summary in group.targets]
        assert targets == ["bare-metal", "container", "vm", "container-vm", "zen"]


def test_a_failed_trial_is_counted_and_named_and_is_in_no_mean(tmp_path: Path, save: Any) -> None:
    for block in (0, 1):
        save(block=block)
    save(target="vm")
    save(target="vm", block=1, failed="the guest never became ready", open_s=77.0)
    comparison = compared(tmp_path / "run")
    vm = summaries(comparison)["vm"]
    assert (vm.ok, vm.failed) == (1, 1)
    assert vm.estimates["opening"].value == pytest.approx(0.5)
    (found,) = comparison.warnings
    assert isinstance(found, FailedTrials)
    assert "1 of 2 trials on vm failed (command: the guest never became ready)" in found.message


def test_a_target_whose_every_trial_failed_has_no_numbers(tmp_path: Path, save: Any) -> None:
    save()
    save(target="vm", failed="no")
    assert summaries(compared(tmp_path / "run"))["vm"].estimates == {}


def test_a_run_in_which_everything_failed_compares_to_nothing(tmp_path: Path, save: Any) -> None:
    save(failed="no")
    comparison = compared(tmp_path / "run")
    assert summaries(comparison)["bare-metal"].failed == 1
    assert [type(found) for found in comparison.warnings] == [FailedTrials]


def test_without_bare_metal_the_values_stand_and_the_warning_says_what_to_run(tmp_path: Path, save: Any) -> None:
    save(target="vm")
    save(target="container")
    comparison = compared(tmp_path / "run")
    estimate = summaries(comparison)["vm"].estimates["throughput"]
    assert estimate.value == pytest.approx(10.0)
    assert (estimate.ratio, estimate.blocks) == (None, 0)
    (found,) = comparison.warnings
    assert isinstance(found, NotNormalised)
    assert "there is no bare-metal trial" in found.message
    assert found.advice == (
        "bench run --scenario synthetic --data synthetic --profile smoke --recipe reference --model resnet50 "
        "--target bare-metal --target container --target vm"
    )


def test_a_failed_bare_metal_trial_and_one_of_another_block_normalise_nothing(tmp_path: Path, save: Any) -> None:
    save(failed="no")
    save(target="vm")
    assert "every bare-metal trial failed" in compared(tmp_path / "run").warnings[-1].message
    save("other", block=0)
    save("other", block=1, target="vm")
    assert "no block holds both" in compared(tmp_path / "other").warnings[-1].message


def test_another_userland_is_not_normalised_and_is_named(tmp_path: Path, save: Any) -> None:
    save(userland=None)
    save(target="vm")
    comparison = compared(tmp_path / "run")
    assert summaries(comparison)["vm"].estimates["throughput"].ratio is None
    assert [type(found) for found in comparison.warnings] == [OtherUserland, NotNormalised]


def test_substitutes_and_another_cpu_capability_stand_beside_the_numbers(tmp_path: Path, save: Any) -> None:
    save(capability="AVX512")
    save(target="vm", capability="AVX2", substitutes=["accelerator:tcg"])
    found = summaries(compared(tmp_path / "run"))
    assert found["vm"].notes == ("accelerator:tcg", "AVX2 against AVX512")
    assert found["bare-metal"].notes == ()


def test_trials_with_and_without_a_substitute_in_one_mean_are_a_warning(tmp_path: Path, save: Any) -> None:
    for block, substitutes in enumerate((["accelerator:tcg", "x"], ["x"])):
        save(block=block)
        save(block=block, target="vm", substitutes=substitutes)
    (found,) = compared(tmp_path / "run").warnings
    assert isinstance(found, MixedSubstitutes)
    assert found.substitutes == ("accelerator:tcg",)


def test_runs_of_other_settings_are_kept_apart_and_say_in_what_they_differ(tmp_path: Path, save: Any) -> None:
    for engine in ("docker", "runc"):
        for target in ("bare-metal", "container"):
            save(engine, target=target, options={"engine": engine, "accelerator": "auto"})
    groups = compared(tmp_path / "docker", tmp_path / "runc").groups
    assert [group.job.variant for group in groups] == ["engine=docker", "engine=runc"]


@settings(max_examples=25, deadline=None)
@given(factor=st.floats(1e-4, 1e4), drift=st.lists(st.floats(0.1, 10), min_size=1, max_size=4))
def test_a_constant_factor_is_found_whatever_the_drift_between_blocks(factor: float, drift: list[float]) -> None:
    rows = [
        {"block": block, "target": target, "throughput_images_per_s": speed * times}
        for block, speed in enumerate(drift)
        for target, times in (("bare-metal", 1.0), ("vm", factor))
    ]
    common = dict.fromkeys(COLUMNS, "same") | {"ok": True, "elapsed_s": 1.0, "open_s": 1.0}
    trials = pd.DataFrame([common | row for row in rows])
    vm = summaries(compare(Records(trials, (), ())))["vm"].estimates["throughput"]
    assert vm.ratio == pytest.approx(factor)
    assert vm.blocks == len(drift)
