"""What this machine's options are refused for: engines and runtimes that guests lack, and data sets that do not fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commands.run.validate import ablations_of, check_data
from provisioning.doctor import Check
from provisioning.engines.base import get_engine
from provisioning.hindrances import refuse_ablation
from provisioning.images.image import Image
from provisioning.sites.here import Here, carried
from provisioning.targets import Choices
from scenarios.synthetic import Synthetic
from suite.errors import RequestError
from suite.job.ablations import arms, get_ablation, label_of, properties_of
from suite.job.datasets import Dataset
from suite.job.envelope import GIB, Envelope
from suite.job.job import CpuCapability
from suite.job.profiles import Sizes
from suite.plan import Plan
from suite.registries import ABLATIONS
from suite.request.request import RunRequest
from suite.targets import TARGETS
from tests import sites
from tests.jobs import plan_of
from tests.sites import inputs_of

CHECKS = [Check(kind="target", name=name, usable=True, evidence="fake") for name in TARGETS]


@pytest.mark.parametrize("engine", ["gvisor", "charliecloud", "apptainer"])
def test_an_engine_that_guests_lack_runs_containers_here_alone(engine: str) -> None:
    request = RunRequest.of({"engine": engine})
    notes: list[str] = []
    assert carried(request, CHECKS, notes.append) == ("bare-metal", "container", "vm")
    assert f"container-vm is left out: the image of the guests has no {engine}" in notes[0]
    with pytest.raises(RequestError, match=f"cannot carry container-vm: the image of the guests has no {engine}"):
        carried(request.changed(target=("container", "container-vm")), CHECKS, print)


def test_an_oci_runtime_of_this_machine_is_not_in_the_image_of_guests() -> None:
    request = RunRequest.of({"engine": "podman", "oci_runtime": "kata", "target": ["container-vm"]})
    with pytest.raises(RequestError, match="cannot carry container-vm: the image of the guests has no kata"):
        carried(request, CHECKS, print)


@pytest.mark.parametrize("engine", ["runc", "gvisor", "charliecloud", "kubernetes"])
def test_an_engine_that_is_told_no_runtime_refuses_one(engine: str) -> None:
    with pytest.raises(RequestError, match=f"{engine} takes no OCI runtime, such as kata") as caught:
        get_engine(engine).run_by("kata")
    assert "docker or podman" in str(caught.value.remedy)


def test_the_value_of_an_ablation_is_the_runtime() -> None:
    assert RunRequest.of({"ablate": ["oci-runtime=kata", "seccomp"]}).targets.ablate == ("oci-runtime=kata", "seccomp")
    assert properties_of("oci-runtime=kata").oci_runtime == "kata"
    assert label_of("oci-runtime=kata") == "run by kata"
    assert arms("container", ["oci-runtime=kata"]) == ("oci-runtime=kata",)
    assert arms("container-vm", ["oci-runtime=kata"]) == ()


@pytest.mark.parametrize("name", ["oci-runtime=", "oci-runtime=../kata", "seccomp=off", "nosuch=kata"])
def test_a_value_that_no_ablation_takes_is_refused(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        properties_of(name)
    remedies = {"oci-runtime": "write it as --ablate oci-runtime=crun", "seccomp": "write it as --ablate seccomp"}
    if remedy := remedies.get(name.partition("=")[0]):
        assert caught.value.remedy == remedy


def test_an_ablation_without_its_value_is_told_one() -> None:
    image = Image(digest="a" * 64, variant="cpu", recipe_sha256="b" * 64, created_at="2026", base="debian", files={})
    choices = Here(Choices(image, "podman", "tcg"))
    with pytest.raises(RequestError, match="--ablate oci-runtime changes nothing without a value") as caught:
        refuse_ablation("oci-runtime", choices, "reference", Synthetic())
    assert caught.value.remedy == "write it as --ablate oci-runtime=crun"
    with pytest.raises(RequestError, match="it is the engine of the run already") as caught:
        refuse_ablation("podman", choices, "reference", Synthetic())
    assert caught.value.remedy == "leave out --ablate podman, or change the other option"


DATASET = Dataset(kind="imagefolder", directory="/set", sha256="ab" * 32, images=7, size_bytes=4000)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path))
    return sites.here("podman", ("container",))


def request(*ablations: str, scenario: str = "real") -> RunRequest:
    return RunRequest.of({"scenario": scenario, "ablate": ablations})


def test_of_all_switches_those_that_would_switch_nothing_are_left_out_and_named(site: Here) -> None:
    notes: list[str] = []
    kept = ablations_of(inputs_of(request(*ABLATIONS), notes.append), site, "avx2")
    assert {"seccomp", "rootfs", "data-layer"} <= set(kept)
    assert not {"disk-cache", "virtiofs"} & set(kept)
    assert {note.split(":")[1].split()[1] for note in notes} >= {"disk-cache", "virtiofs"}


@pytest.mark.parametrize(("capability", "known"), [(None, "not capped"), ("default", "already default")])
def test_vector_instructions_that_cannot_be_lowered_are_left_out_of_all_and_refused_alone(
    capability: CpuCapability | None, known: str, site: Here
) -> None:
    notes: list[str] = []
    assert "isa" not in ablations_of(inputs_of(request(*ABLATIONS), notes.append), site, capability)
    assert f"left out: --ablate isa: the vector instructions are {known}" in notes
    with pytest.raises(RequestError, match=known):
        ablations_of(inputs_of(request("isa")), site, capability)


@pytest.mark.parametrize("name", ["virtiofs", "data-layer"])
def test_a_named_switch_of_where_a_data_set_lies_is_refused_without_one(name: str, site: Here) -> None:
    targets = get_ablation(name).targets
    with pytest.raises(RequestError, match=f"--ablate {name} is about where a data set lies"):
        ablations_of(inputs_of(request(name, scenario="synthetic")), replace(site, targets=targets), "avx2")


def plan(batch: int = 1, dataset: Dataset = DATASET, **changes: Any) -> Plan:
    return plan_of(
        scenario="real",
        targets=("bare-metal",),
        models=("resnet50",),
        profile="smoke",
        sizes=Sizes(batch=batch, image_px=32, warmup_steps=0, steps=1),
        envelope=Envelope(cpus=(0,), memory_bytes=GIB, threads=1),
        trial_timeout_s=60,
        dataset=dataset,
        **changes,
    )


@pytest.mark.parametrize(("batch", "devices", "refused"), [(7, 1, False), (8, 1, True), (3, 2, False), (4, 2, True)])
def test_a_data_set_of_less_than_one_step_is_refused(batch: int, devices: int, refused: bool) -> None:
    if not refused:
        return check_data(plan(batch), devices)
    with pytest.raises(RequestError, match=f"7 images, and one step of resnet50 takes {batch * devices}") as caught:
        check_data(plan(batch), devices)
    assert f"--batch {7 // devices}" in str(caught.value.remedy)
    return None


def test_a_set_that_memory_cannot_keep_is_refused_before_anything_is_read() -> None:
    large = DATASET.model_copy(update={"size_bytes": GIB // 2 + 1})
    check_data(plan(dataset=large, page_cache="cold"), 1)
    check_data(plan(dataset=DATASET, page_cache="warm"), 1)
    with pytest.raises(RequestError, match=r"0.50 GiB cannot be kept .* 1.00 GiB of memory .* 0.50 GiB are") as caught:
        check_data(plan(dataset=large, page_cache="warm"), 1)
    assert "--cache cold" in str(caught.value.remedy)
