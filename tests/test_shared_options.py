"""From the options of a run of jobs that share the machine to its plan."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from provisioning.images.image import Image
from provisioning.targets import Choices
from scenarios.shared import Shared
from suite.errors import RequestError
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import PROFILES
from suite.job.sharing import PAPERS_VICTIMS, Sharing, sizes_of, victim_names
from suite.registries import WORKLOADS
from suite.request.request import RunRequest

FOUR = Envelope(cpus=(0, 1, 2, 3), memory_bytes=4 * GIB, threads=4)


def request(**options: Any) -> RunRequest:
    return RunRequest.of({"scenario": "shared", "profile": "paper", **options})


def sharing_of(asked: RunRequest) -> Sharing:
    sharing = Shared().part(asked, PROFILES["paper"], "resnet50")["sharing"]
    assert isinstance(sharing, Sharing)
    return sharing


def check_shares(envelope: Envelope, targets: Sequence[str], note: Callable[[str], Any], **options: Any) -> None:
    Shared().check_shares(request(aggressor=["disk"], aggressors=2, **options), envelope, targets, note)


def test_the_default_aggressor_has_the_papers_large_batch() -> None:
    sharing = sharing_of(request(aggressor=["alexnet", "disk"]))
    assert (sharing.aggressors, sharing.copies) == (("alexnet", "disk"), 1)
    assert {name: workload.batch for name, workload in sharing.workloads.items()} == {"alexnet": 512}
    assert sharing_of(request(aggressor=["disk"], aggressors=3)).copies == 3


def test_the_default_victims_are_the_papers_and_one_where_only_the_path_is_proved() -> None:
    assert request().models == PAPERS_VICTIMS
    assert request(profile="smoke").models == ("resnet50",)
    assert request(profile="smoke", model="all").models == victim_names()
    assert request(scenario="synthetic").models == ("resnet50",)
    assert request(scenario="synthetic", model="all").models == WORKLOADS.names()


def test_the_numbers_of_every_victim_can_be_overridden_within_what_it_can_take() -> None:
    assert {sizes_of(PROFILES["paper"], name, {"steps": 5}).steps for name in victim_names()} == {5}
    with pytest.raises(RequestError, match="alexnet-small cannot take images of 32 px"):
        sizes_of(PROFILES["paper"], "alexnet-small", {"image_px": 32})


def test_a_machine_that_is_too_small_is_refused_with_the_arithmetic() -> None:
    check_shares(FOUR, ["vm"], pytest.fail)
    narrow = Envelope(cpus=(0, 1), memory_bytes=4 * GIB, threads=2)
    with pytest.raises(RequestError, match=r"3 instances on 2 CPUs: there is 0\.67 of a CPU for each") as caught:
        check_shares(narrow, ["vm"], pytest.fail)
    assert "--cpus 3" in str(caught.value.remedy)


def test_bare_metal_alone_shares_what_there_is_and_says_so() -> None:
    narrow = Envelope(cpus=(0,), memory_bytes=4 * GIB, threads=1)
    notes: list[str] = []
    check_shares(narrow, ["bare-metal"], notes.append)
    assert "as its operating system likes" in notes[0]


def choices(gpus: tuple[str, ...] = ()) -> Choices:
    image = Image(digest="a" * 64, variant="cpu", recipe_sha256="b" * 64, created_at="2026", base="debian", files={})
    return Choices(image, "runc", "kvm", gpus)


def test_each_instance_has_gpus_of_its_own_where_there_are_enough_and_else_they_are_shared() -> None:
    assert [choices(("0", "1")).of_instance(number, 2).gpus for number in range(2)] == [("0",), ("1",)]
    assert [choices(("0",)).of_instance(number, 2).gpus for number in range(2)] == [("0",), ("0",)]
    assert choices().of_instance(1, 2).gpus == ()
