"""What this machine's options come to or are refused for: engines, runtimes and GPUs, and data sets that do not fit."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commands.run.validate import ablations_of, check_data
from provisioning.doctor import Check
from provisioning.engines.base import get_engine
from provisioning.hindrances import hindrances
from provisioning.images.image import Image
from provisioning.remote.discovery import Discovery
from provisioning.sites.here import Here, carried
from provisioning.sites.lab import LabSite
from provisioning.sites.machines import discovered_choices
from provisioning.targets import Choices
from scenarios.distributed import check_way
from suite.errors import MeasurementError, RequestError
from suite.job.ablations import arms, label_of, properties_of
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
from tests.provisioning.conftest import raises
from tests.sites import IMAGE, inputs_of

CHECKS = [Check(kind="target", name=name, usable=True, evidence="fake") for name in TARGETS]


@pytest.mark.parametrize("engine", ["gvisor", "charliecloud", "apptainer"])
def test_an_engine_that_guests_lack_runs_containers_here_alone(engine: str) -> None:
    request = RunRequest.of({"engine": engine, "target": ["all"]})
    notes: list[str] = []
    assert carried(request, CHECKS, notes.append) == ("bare-metal", "container", "vm")
    assert f"container-vm is left out: the image of the guests has no {engine}" in notes[0]
    with pytest.raises(RequestError, match=f"cannot carry container-vm: the image of the guests has no {engine}"):
        carried(request.changed(target=("container", "container-vm")), CHECKS, print)


@pytest.mark.parametrize("engine", ["runc", "gvisor", "charliecloud", "kubernetes"])
def test_an_engine_that_is_told_no_runtime_refuses_one(engine: str) -> None:
    with raises(RequestError, f"{engine} takes no OCI runtime, such as kata", "docker or podman"):
        get_engine(engine).run_by("kata")


def test_the_value_of_an_ablation_is_the_runtime() -> None:
    assert RunRequest.of({"ablate": ["oci-runtime=kata", "seccomp"]}).targets.ablate == ("oci-runtime=kata", "seccomp")
    assert properties_of("oci-runtime=kata").oci_runtime == "kata"
    assert label_of("oci-runtime=kata") == "run by kata"
    assert arms("container", ["oci-runtime=kata"]) == ("oci-runtime=kata",)
    assert arms("container-vm", ["oci-runtime=kata"]) == ()


def test_requests_of_a_disk_are_limited_to_the_number_that_is_given() -> None:
    assert RunRequest.of({"ablate": ["disk-iops=30000"]}).targets.ablate == ("disk-iops=30000",)
    assert properties_of("disk-iops=30000").disk_limit_iops == 30_000
    assert properties_of("disk-iops").disk_limit_iops == 100
    assert label_of("disk-iops=30000") == "30000 disk requests/s"
    for wrong in ("0", "many", "-3", "1e4"):
        with pytest.raises(RequestError, match=r"is not a number of requests|has a wrong value"):
            properties_of(f"disk-iops={wrong}")


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
    why = f"7 images, and one step of resnet50 takes {batch * devices}"
    with raises(RequestError, why, f"--batch {7 // devices}") if refused else nullcontext():
        check_data(plan(batch), devices)


def test_a_set_that_memory_cannot_keep_is_refused_before_anything_is_read() -> None:
    large = DATASET.model_copy(update={"size_bytes": GIB // 2 + 1})
    check_data(plan(dataset=large, page_cache="cold"), 1)
    check_data(plan(dataset=DATASET, page_cache="warm"), 1)
    with raises(RequestError, r"0.50 GiB cannot be kept .* 1.00 GiB of memory .* 0.50 GiB are", "--cache cold"):
        check_data(plan(dataset=large, page_cache="warm"), 1)


DDP = {"devices": 2, "parallel": "ddp"}


def on_gpus(**options: Any) -> RunRequest:
    return RunRequest.of({"device": "cuda", **options})


def test_on_machines_of_an_inventory_gpus_are_counted_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "cuda", "13.0")

    def gpus(**options: Any) -> tuple[str, ...]:
        return discovered_choices(inputs_of(on_gpus(**options)), Discovery((), "runc")).gpus

    assert gpus(**DDP) == ("0", "1")
    with pytest.raises(RequestError, match="an instance has 1 GPU"):
        gpus(gpus="3", **DDP)


def test_what_takes_no_gpus_is_refused_where_it_is_named_and_else_left_out() -> None:
    notes: list[str] = []
    assert carried(on_gpus(target=["all"]), CHECKS, notes.append) == ("bare-metal", "container")
    assert all("virtual machines with GPUs are not supported yet" in note for note in notes)
    assert carried(RunRequest.of({"target": ["all"]}), CHECKS, notes.append) == TARGETS
    with pytest.raises(RequestError, match="cannot carry vm: virtual machines with GPUs are not supported yet"):
        carried(on_gpus(target=["bare-metal", "vm"]), CHECKS, notes.append)
    for gpus, refused in ((("GPU-0",), True), ((), False)):
        reasons = list(hindrances(properties_of("gvisor"), Here(Choices(IMAGE, "runc", "tcg", gpus)), "reference"))
        assert ("gvisor takes no GPUs" in reasons) == refused


TRAINING, SERVING = ("server", "worker", "worker"), ("server", "client")


@pytest.mark.parametrize(
    ("roles", "gpus", "shared", "given"),
    [
        (TRAINING, "01", True, ["", "0", "1"]),
        (TRAINING, "0123", True, ["", "01", "23"]),
        (TRAINING, "01", False, ["", "01", "01"]),
        (SERVING, "01", True, ["01", ""]),
        (SERVING, "01", False, ["01", ""]),
    ],
)
def test_instances_that_compute_have_gpus_of_their_own_and_others_none(
    roles: tuple[str, ...], gpus: str, shared: bool, given: list[str]
) -> None:
    strategy = "parameter-server" if roles == TRAINING else None
    job = SimpleNamespace(distributed=SimpleNamespace(strategy=strategy))
    trial: Any = SimpleNamespace(job=job, instances=[SimpleNamespace(role=role) for role in roles])
    choices = LabSite(Choices(IMAGE, "runc", "kvm", tuple(gpus))).choices_of(trial, shared=shared)
    assert ["".join(each.gpus) for each in choices] == given


@pytest.mark.parametrize(("passed", "refused"), [(49, True), (50, False), (130, False), (None, False)])
def test_messages_that_take_another_way_than_the_network_fail_the_trial(passed: int | None, refused: bool) -> None:
    rank: Any = SimpleNamespace(number=1, instance=SimpleNamespace(interface="eth0"))
    with pytest.raises(MeasurementError, match="passed its interface eth0") if refused else nullcontext():
        check_way(rank, {"bytes_sent": 100, "interface_sent_bytes": passed})
