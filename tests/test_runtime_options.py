"""Engines and OCI runtimes that the image of the guests lacks, and runtimes that no engine has."""

import pytest

from provisioning.doctor import Check
from provisioning.engines.base import get_engine
from provisioning.hindrances import refuse_ablation
from provisioning.images.image import Image
from provisioning.sites.here import Here, carried
from provisioning.targets import Choices
from scenarios.synthetic import Synthetic
from suite.errors import RequestError
from suite.job.ablations import arms, label_of, properties_of
from suite.request.request import RunRequest
from suite.targets import TARGETS

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
