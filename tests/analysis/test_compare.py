import math
from dataclasses import replace
from typing import Any

import pytest

from analysis.compare.comparison import compare
from analysis.compare.results import ComparedJob, Comparison, Measured, TargetSummary
from analysis.compare.validity import fact_differences
from analysis.load.records import Facts
from suite.job.distributed import DistributedJob, MachineSpec
from suite.job.envelope import GIB, Envelope
from suite.job.lab import LabSpec
from suite.job.profiles import Sizes
from suite.job.sharing import Sharing
from tests.analysis.conftest import Save, judged, only
from tests.jobs import identity


def summaries(comparison: Comparison) -> dict[str, TargetSummary]:
    """Return the targets of the only group."""
    (group,) = comparison.groups
    return {summary.target: summary for summary in group.targets}


def measured(comparison: Comparison) -> dict[str, Measured]:
    """Return what the targets of the only group measured."""
    (group,) = comparison.groups
    return {one.target: group.of_target(one.target) for one in group.targets}


def of_memory(gib: float) -> Envelope:
    return Envelope(cpus=(0, 1), memory_bytes=int(gib * GIB), threads=2)


def test_a_ratio_is_the_geometric_mean_of_the_ratios_inside_blocks(save: Save) -> None:
    # The second block ran on a host that had become ten times slower: inside blocks that does not show.
    for block, speed in enumerate((10.0, 1.0)):
        save(block=block, throughput_per_s=speed)
        save(block=block, target="vm", throughput_per_s=speed * (0.8, 0.9)[block])
    vm = measured(save.compare())["vm"]["throughput"]
    assert vm.ratio == pytest.approx(math.sqrt(0.8 * 0.9))
    assert vm.value == pytest.approx(math.sqrt(8 * 0.9))
    assert (vm.trials, vm.blocks) == (2, 2)


def test_blocks_of_the_same_number_in_two_runs_are_two_blocks(save: Save) -> None:
    for run, speed in (("a", 10.0), ("b", 1.0)):
        save(run)
        save(run, target="vm", throughput_per_s=speed)
    comparison = save.compare("a", "b")
    runs = (identity("a"), identity("b"))
    assert (comparison.runs, measured(comparison)["vm"]["throughput"].blocks) == (runs, 2)


def test_targets_and_models_stand_in_the_order_of_the_paper(save: Save) -> None:
    for model in ("zoo", "alexnet", "inception_v3"):
        for target in ("zen", "container-vm", "container", "bare-metal", "vm"):
            save(model=model, target=target)
    found = {group.model: [summary.target for summary in group.targets] for group in save.compare().groups}
    assert [*found] == ["inception_v3", "alexnet", "zoo"]
    assert {*map(tuple, found.values())} == {("bare-metal", "container", "vm", "container-vm", "zen")}


def test_a_failed_trial_is_counted_and_named_and_is_in_no_mean(save: Save) -> None:
    save()
    save(block=1)
    save(target="vm")
    save(target="vm", block=1, failed="the guest never became ready", open_s=77.0)
    comparison = save.compare()
    vm = summaries(comparison)["vm"]
    assert (vm.ok, vm.failed) == (1, 1)
    assert measured(comparison)["vm"]["opening"].value == pytest.approx(0.5)
    (found,) = comparison.warnings
    assert found.kind == "failed-trials"
    assert "1 of 2 trials on vm failed (command: the guest never became ready)" in found.message


def test_a_target_or_a_run_whose_every_trial_failed_has_no_numbers(save: Save) -> None:
    save()
    save(target="vm", failed="no")
    assert measured(save.compare())["vm"] == {}
    save("nothing", failed="no")
    comparison = save.compare("nothing")
    assert summaries(comparison)["bare-metal"].failed == 1
    assert [found.kind for found in comparison.warnings] == ["failed-trials"]


def test_without_bare_metal_the_values_stand_and_the_warning_says_what_to_run(save: Save) -> None:
    save(target="vm")
    save(target="container")
    comparison = save.compare()
    estimate = measured(comparison)["vm"]["throughput"]
    assert (estimate.value, estimate.ratio, estimate.blocks) == pytest.approx((10.0, None, 0))
    (found,) = comparison.warnings
    assert found.kind == "not-normalised"
    assert "there is no bare-metal trial" in found.message
    assert found.advice == (
        "bench run --scenario synthetic --profile quick --recipe reference --model resnet50 "
        "--target bare-metal --target container --target vm"
    )


def test_a_failed_bare_metal_trial_and_one_of_another_block_normalise_nothing(save: Save) -> None:
    save(failed="no")
    save(target="vm")
    assert "every bare-metal trial failed" in save.compare().warnings[-1].message
    save("other", block=0)
    save("other", block=1, target="vm")
    assert "no block holds both" in save.compare("other").warnings[-1].message


def test_substitutes_and_a_declared_difference_of_cpu_capability_stand_beside_the_numbers(save: Save) -> None:
    save(capability="AVX512", isa="native")
    save(target="vm", capability="AVX2", substitutes=["accelerator:tcg"], isa="native")
    comparison = save.compare()
    notes = {target: summary.notes for target, summary in summaries(comparison).items()}
    assert notes == {"bare-metal": (), "vm": ("accelerator:tcg", "AVX2 against AVX512")}
    assert (measured(comparison)["vm"]["throughput"].ratio, comparison.warnings) == (1.0, ())


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"userland": "b" * 64}, "userland bbbbbbbbbbbb against aaaaaaaaaaaa"),
        ({"userland": None}, "userland unknown against aaaaaaaaaaaa"),
        ({"capability": "AVX512"}, "CPU capability AVX512 against AVX2"),
        ({"threads": 3}, "threads seen inside 3 against unknown"),
        ({"envelope": Envelope(cpus=(0, 1), memory_bytes=2 * GIB, threads=1)}, "threads 1 against 2"),
        ({"envelope": Envelope(cpus=(0,), memory_bytes=2 * GIB, threads=2)}, "CPUs 1 against 2"),
        ({"envelope": of_memory(1.95)}, "memory 1.95 GiB against 2 GiB"),
        ({"recipe": "tuned"}, "recipe tuned against reference"),
        ({"profile": "paper"}, "profile paper against quick"),
    ],
)
def test_a_record_that_differs_in_more_than_the_target_is_refused_and_named(
    save: Save, changes: dict[str, Any], difference: str
) -> None:
    save()
    save(target="container", envelope=of_memory(1.97))  # memory may differ by 2 %
    save(target="vm", **changes)
    records = save.load()
    refused, forced = compare(records), compare(records, force=True)
    found, *_ = refused.warnings
    assert [warning.kind for warning in refused.warnings] == ["incomparable", "not-normalised"]
    assert found.message.endswith(f"no ratio is formed: {difference}")
    ratios = {
        (arm.target, *found["throughput"].notes): found["throughput"].ratio
        for comparison in (refused, forced)
        for arm, found in comparison.of_kind("target").items()
    }
    assert (ratios["container",], ratios["vm",], ratios["vm", f"forced: {difference}"]) == (1.0, None, 1.0)
    assert forced.warnings == ()


def test_the_overall_ratio_is_the_geometric_mean_over_the_models_of_complete_blocks(save: Save) -> None:
    for block in (0, 1):
        for model, factor in (("resnet50", 0.9), ("alexnet", 0.4)):
            save(block=block, model=model)
            stands_in = ["accelerator:tcg"] if model == "alexnet" else []
            save(block=block, model=model, target="vm", throughput_per_s=10 * factor, substitutes=stands_in)
    save(block=2)
    save(block=2, target="vm", throughput_per_s=0.001)
    overall = only(save.compare(), "models")["throughput"]
    assert (overall.members, overall.notes) == (("alexnet", "resnet50"), ("accelerator:tcg",))
    assert (overall.ratio, overall.blocks) == pytest.approx((0.6, 2))
    for target in ("bare-metal", "vm"):
        save("apart", block=0, target=target)
        save("apart", block=1, target=target, model="alexnet")
    assert save.compare("apart").of_kind("models") == {}, "a model is lacking in every block"


def test_two_bare_metal_trials_of_a_block_that_differ_are_a_warning(save: Save) -> None:
    for block in range(6):
        save(block=block)
        save(block=block, replica=1, trial_id=f"again{block}", throughput_per_s=8.0 + 0.01 * block)
    comparison = save.compare()
    assert judged(only(comparison, "again")["throughput"]).name == "slower"
    (found,) = comparison.warnings
    assert found.kind == "a-a-differs"
    assert "times the throughput of the first" in found.message


def test_trials_with_and_without_a_substitute_in_one_mean_are_a_warning(save: Save) -> None:
    for block, substitutes in enumerate(([], ["accelerator:tcg"])):
        save(block=block)
        save(block=block, target="vm", substitutes=substitutes)
    comparison = save.compare()
    (found,) = comparison.warnings
    assert found.kind == "mixed-substitutes"
    assert "only some trials on vm used accelerator:tcg;" in found.message
    assert summaries(comparison)["vm"].notes == ("accelerator:tcg",)


LAB = LabSpec(nodes=3, rate="1gbit")
DISTRIBUTED = DistributedJob(strategy="parameter-server", workers=2, servers=1, network="overlay", lab=LAB)
MACHINES = tuple(
    MachineSpec(name=f"n{number}", address=f"10.0.0.{number}", interface="eth0", cpus=(0, 1)) for number in range(3)
)
ON_MACHINES = DISTRIBUTED.model_copy(update={"lab": None, "machines": MACHINES})
SHARING = Sharing(aggressors=("alexnet",), workloads={"alexnet": Sizes(batch=2, image_px=64, warmup_steps=1, steps=3)})


@pytest.mark.parametrize(
    ("old", "changes", "variants"),
    [
        # What is no digest is left as it is.
        (
            {"engine": "docker", "accelerator": "auto", "image": "d" * 64},
            {"engine": "runc", "image": "r" * 64},
            [f"engine=docker, image={'d' * 12}", f"engine=runc, image={'r' * 64}"],
        ),
        (DISTRIBUTED, {"workers": 1, "servers": 2}, ["workers=2, servers=1", "workers=1, servers=2"]),
        (DISTRIBUTED, {"lab": LAB.model_copy(update={"delay": "5ms"})}, ["lab.delay=none", "lab.delay=5ms"]),
        (
            ON_MACHINES,
            {"machines": (*MACHINES[:2], MACHINES[2].model_copy(update={"name": "n9", "interface": "eth1"}))},
            [
                "machines.name=n0+n1+n2, machines.interface=eth0+eth0+eth0",
                "machines.name=n0+n1+n9, machines.interface=eth0+eth0+eth1",
            ],
        ),
        (DISTRIBUTED, {"comm_timeout_s": 600}, [""]),
        (ON_MACHINES, {"guests": "routed"}, [""]),
        (
            ON_MACHINES,
            {"machines": tuple(one.model_copy(update={"address": f"{one.address}0"}) for one in MACHINES)},
            [""],
        ),
        (
            SHARING,
            {"workloads": {"alexnet": SHARING.workloads["alexnet"].model_copy(update={"batch": 9})}},
            ["workloads.alexnet.batch=2", "workloads.alexnet.batch=9"],
        ),
        # Aggressors are varied on purpose: a victim alone is the same whatever else the run holds it against.
        (SHARING, {"aggressors": ("disk",), "workloads": {}}, [""]),
    ],
)
def test_jobs_that_differ_in_what_decides_speed_are_kept_apart_and_say_in_what_they_differ(
    save: Save, old: Any, changes: dict[str, Any], variants: list[str]
) -> None:
    for run, new in (("a", {}), ("b", changes)):
        match old:
            case Sharing():
                job = {"scenario": "shared", "sharing": old.model_copy(update=new)}
            case DistributedJob():
                job = {"scenario": "distributed", "distributed": old.model_copy(update=new)}
            case _:
                job = old | new
        save(run, **job)
    found = {group.job.variant: group.targets[0].ok for group in save.compare("a", "b").groups}
    assert found == dict.fromkeys(variants, 3 - len(variants))


def test_a_failed_trial_stays_with_the_others_of_its_arrangement(save: Save) -> None:
    save("a", scenario="distributed", distributed=DISTRIBUTED)
    save("a", scenario="distributed", distributed=DISTRIBUTED, target="vm", failed="no")
    save("b", scenario="distributed", distributed=DISTRIBUTED.model_copy(update={"network": "host"}))
    found = {group.job.variant: [one.target for one in group.targets] for group in save.compare("a", "b").groups}
    assert found == {"network=overlay": ["bare-metal", "vm"], "network=host": ["bare-metal"]}


@pytest.mark.parametrize(
    ("facts", "text", "group"),
    [
        ({"gpus.memory_bytes": [84_929_347_584]}, "", None),
        ({"gpus.memory_bytes": [42_949_672_960]}, "GPU memory", ""),
        ({"gpus.memory_bytes": [85_017_493_504] * 2}, "GPU memory", ""),
        ({"gpus.uuid": ["GPU-b"]}, "GPU card GPU-b against GPU-a", "GPU"),
        ({"gpus.driver": ["570.86.15"]}, "GPU driver 570.86.15 against 580.159.04", "GPU"),
        ({"gpus.capability": ["8.0"]}, "GPU capability 8.0 against 9.0", ""),
        ({"cuda": "12.6"}, "CUDA 12.6 against 13.0", ""),
        ({"cudnn": "90100"}, "cuDNN 90100 against 91300", ""),
    ],
)
def test_another_card_of_a_model_is_named_and_another_model_refused(
    facts: dict[str, Any], text: str, group: str | None
) -> None:
    base = {
        "gpus.memory_bytes": [85_017_493_504],
        "gpus.uuid": ["GPU-a"],
        "gpus.driver": ["580.159.04"],
        "gpus.capability": ["9.0"],
        "cuda": "13.0",
        "cudnn": "91300",
    }
    found = fact_differences(Facts({**base, **facts}), Facts(base))
    assert [difference.group for difference in found] == ([] if group is None else [group])
    assert all(difference.text.startswith(text) for difference in found)


def test_a_job_whose_command_alone_knows_its_data_has_no_data_of_the_name_none() -> None:
    job = ComparedJob("command", "none", "quick", "", "engine=podman")
    assert str(job) == "command scenario, quick profile, engine=podman"
    assert str(replace(job, data="mnist")).startswith("command scenario, mnist data, ")
