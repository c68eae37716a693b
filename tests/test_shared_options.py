"""From the options of a run of jobs that share the machine to its plan."""

from typing import Any

import pytest

from analysis.report.provenance import run_command
from commands.run.plan import models_of
from commands.run.shared import check_shares, sharing_of, victims
from provisioning.images.image import Image
from provisioning.targets import Choices
from suite.errors import RequestError
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import MODELS, PROFILES
from suite.job.sharing import VICTIMS, Sharing
from tests.jobs import plan_of

FOUR = Envelope(cpus=(0, 1, 2, 3), memory_bytes=4 * GIB, threads=4)
TWO = Sharing(aggressors=("disk",), copies=2)


def options(**changes: Any) -> dict[str, Any]:
    usual = {"scenario": "shared", "aggressors": ("alexnet", "disk"), "copies": None, "aggressor_batch": None}
    return {**usual, "bare_metal_cpus": "unrestricted", "models": (), "profile": "paper", **changes}


def test_the_default_aggressor_has_the_papers_large_batch() -> None:
    sharing = sharing_of(options(), PROFILES["paper"])
    assert sharing
    assert (sharing.aggressors, sharing.copies) == (("alexnet", "disk"), 1)
    assert {name: workload.batch for name, workload in sharing.workloads.items()} == {"alexnet": 512}
    smaller = sharing_of(options(aggressor_batch=64, copies=3), PROFILES["paper"])
    assert smaller
    assert (smaller.workloads["alexnet"].batch, smaller.copies) == (64, 3)


def test_other_scenarios_share_nothing() -> None:
    assert sharing_of(options(scenario="synthetic"), PROFILES["paper"]) is None


def test_the_default_victims_are_the_papers_and_one_where_only_the_path_is_proved() -> None:
    assert models_of(options()) == VICTIMS
    assert models_of(options(profile="smoke")) == ("resnet50",)
    assert models_of(options(profile="smoke", models=VICTIMS)) == VICTIMS
    assert models_of(options(scenario="synthetic")) == ("resnet50",)
    assert models_of(options(scenario="synthetic", models=VICTIMS)) == MODELS


def test_the_numbers_of_every_victim_can_be_overridden_within_what_it_can_take() -> None:
    found = victims(PROFILES["paper"], VICTIMS, {"steps": 5})
    assert {workload.steps for workload in found.values()} == {5}
    with pytest.raises(RequestError, match="alexnet-small cannot take images of 32 px"):
        victims(PROFILES["paper"], ("alexnet-small",), {"image_px": 32})


def test_a_machine_that_is_too_small_is_refused_with_the_arithmetic() -> None:
    check_shares(TWO, FOUR, ["vm"], pytest.fail)
    little = FOUR.model_copy(update={"memory_bytes": GIB})
    with pytest.raises(RequestError, match=r"share 1\.0 GiB: 0\.33 GiB each, and each needs 0\.62 GiB"):
        check_shares(TWO, little, ["vm"], pytest.fail)
    narrow = Envelope(cpus=(0, 1), memory_bytes=4 * GIB, threads=2)
    with pytest.raises(RequestError, match=r"3 instances on 2 CPUs: there is 0\.67 of a CPU for each") as caught:
        check_shares(TWO, narrow, ["vm"], pytest.fail)
    assert "--cpus 3" in str(caught.value.remedy)


def test_bare_metal_alone_shares_what_there_is_and_says_so() -> None:
    narrow = Envelope(cpus=(0,), memory_bytes=4 * GIB, threads=1)
    notes: list[str] = []
    check_shares(TWO, narrow, ["bare-metal"], notes.append)
    assert "as its operating system likes" in notes[0]
    equal = TWO.model_copy(update={"bare_metal_cpus": "equal"})
    with pytest.raises(RequestError):
        check_shares(equal, narrow, ["bare-metal"], pytest.fail)


def choices(gpus: tuple[str, ...] = (), vfio: tuple[str, ...] = ()) -> Choices:
    image = Image(digest="a" * 64, variant="cpu", recipe_sha256="b" * 64, created_at="2026", base="debian", files={})
    return Choices(image, "runc", "kvm", gpus, vfio)


def test_each_instance_has_gpus_of_its_own_where_there_are_enough_and_else_they_are_shared() -> None:
    assert [choices(("0", "1")).of_instance(number, 2).gpus for number in range(2)] == [("0",), ("1",)]
    assert [choices(("0",)).of_instance(number, 2).gpus for number in range(2)] == [("0",), ("0",)]
    assert choices().of_instance(1, 2).gpus == ()


def test_a_gpu_that_is_passed_through_cannot_be_in_two_machines() -> None:
    assert choices(vfio=("a", "b")).of_instance(1, 2).vfio == ("b",)
    with pytest.raises(RequestError, match="names 1 GPUs, and 2 virtual machines need one each"):
        choices(vfio=("a",)).of_instance(0, 2)


def test_the_command_that_makes_a_plan_again_names_its_aggressors() -> None:
    sharing = sharing_of(options(aggressor_batch=64, copies=3), PROFILES["paper"])
    plan = plan_of(
        scenario="shared",
        targets=("vm",),
        models=("alexnet-small",),
        profile="paper",
        sizes=victims(PROFILES["paper"], ("alexnet-small",), {}),
        envelope=FOUR,
        trial_timeout_s=60,
        sharing=sharing,
    )
    words = " ".join(run_command(plan))
    assert "--scenario shared --target vm --model alexnet-small" in words
    assert "--aggressor alexnet --aggressor disk --aggressors 3 --bare-metal-cpus unrestricted" in words
    assert "--aggressor-batch 64" in words
