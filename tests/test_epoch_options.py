"""Epochs and checkpoints as they are asked for: refused before anything is started where they cannot be."""

from typing import Any

import pytest

from commands.run.plan import between_checkpoints, in_epochs
from scenarios.synthetic import Synthetic
from suite.errors import RequestError
from suite.job.profiles import PROFILES
from suite.registries import SCENARIOS, WORKLOADS
from suite.request.request import RunRequest


def request(**given: object) -> RunRequest:
    return RunRequest.of({"scenario": "real", "model": ("gan",), "data": "mnist:/data", **given})


@pytest.mark.parametrize(
    ("given", "says", "remedy"),
    [
        ({"epochs": 2, "steps": 5}, "--epochs and --steps exclude each other", "give one"),
        ({"epochs": 2, "warmup_steps": 0}, "--epochs and --warmup-steps exclude", "give one"),
        ({"epochs": 2, "design": "alternating"}, "--epochs and --design alternating exclude", "give one"),
        ({"checkpoint": "on"}, "--checkpoint on needs --epochs or --checkpoint-every", "add --epochs 2 or add"),
        ({"epochs": 2, "checkpoint": "on", "checkpoint_every": 5}, "--checkpoint-every and a data set exclude", ""),
        (
            {"epochs": 2, "scenario": "synthetic"},
            "--epochs does not apply to --scenario synthetic",
            "it is for --scenario real",
        ),
        ({"epochs": 0}, "--epochs 0", "from 1 up"),
    ],
)
def test_what_goes_with_no_epochs_is_refused(given: dict[str, Any], says: str, remedy: str) -> None:
    with pytest.raises(RequestError) as raised:
        request(**given)
    assert says in raised.value.message
    assert remedy in str(raised.value.remedy)


def test_checkpoints_of_several_devices_are_refused() -> None:
    with pytest.raises(RequestError, match="no checkpoint is written of several devices"):
        request(epochs=2, checkpoint="on", device="cuda", devices=2, parallel="ddp")
    assert request(epochs=2, checkpoint="fsync").measurement.checkpoint == "fsync"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"checkpoint_every": 5}, "--checkpoint-every needs --checkpoint on or fsync"),
        ({"checkpoint": "on"}, "--checkpoint on needs --epochs or --checkpoint-every"),
        ({"checkpoint": "on", "checkpoint_every": 5, "design": "both"}, "exclude each other"),
        ({"checkpoint": "on", "checkpoint_every": 5, "inventory": "hosts.toml"}, "the disk is one of this machine"),
        ({"checkpoint": "on", "checkpoint_every": 5, "scenario": "probe"}, "does not apply to --scenario probe"),
    ],
)
def test_what_writes_no_checkpoints_of_drawn_data_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        RunRequest.of({"scenario": "synthetic", **given})


def test_checkpoints_of_drawn_data_lie_whole_steps_apart_and_have_room_for_two() -> None:
    sizes = PROFILES["quick"].sizes_of("gan")
    parts = between_checkpoints(sizes, 5)
    assert (parts.steps, parts.warmup_steps, parts.epochs) == (20, sizes.warmup_steps, 4)
    with pytest.raises(RequestError, match="--steps 20 is no multiple of --checkpoint-every 8") as raised:
        between_checkpoints(sizes, 8)
    assert raised.value.remedy == "give --steps 24"
    usual = RunRequest.of({"model": ("gan",)})
    assert Synthetic().scratch_bytes(usual, ("gan",)) == {}
    writing = usual.changed(checkpoint="fsync", checkpoint_every=5)
    assert Synthetic().scratch_bytes(writing, ("gan",)) == {"gan": 4 << 30}


def test_the_steps_of_epochs_are_whole_batches_and_none_is_a_warm_up() -> None:
    sizes = PROFILES["smoke"].sizes_of("gan").model_copy(update={"epochs": 3})
    planned = in_epochs("gan", sizes, 42, 2)
    assert (planned.batch, planned.steps, planned.warmup_steps, planned.epochs) == (4, 3 * 5, 0, 3)
    with pytest.raises(RequestError, match="--epochs 3 of gan are 750,000 steps") as raised:
        in_epochs("gan", sizes, 1_000_000, 1)
    assert "--batch" in str(raised.value.remedy)


@pytest.mark.parametrize("scenario", ["synthetic", "real"])
def test_images_are_generated_by_what_generates_images_and_nothing_else(scenario: str) -> None:
    kind = SCENARIOS.get(scenario)
    asked = RunRequest.of({"scenario": scenario, "generate": 8})
    for name in WORKLOADS.own:
        if scenario not in (WORKLOADS.get(name).scenarios or (scenario,)):
            continue
        if WORKLOADS.get(name).makes_images:
            kind.of(asked).check_model(asked, name)
            continue
        with pytest.raises(RequestError, match=f"{name} generates no images") as raised:
            kind.of(asked).check_model(asked, name)
        assert "leave out --generate" in str(raised.value.remedy)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"scenario": "shared"}, "--generate does not apply to --scenario shared"),
        ({"scenario": "serve"}, "--generate does not apply to --scenario serve"),
        ({"design": "alternating"}, "--generate and --design alternating exclude each other"),
        ({"generate": 0}, "--generate 0"),
    ],
)
def test_what_cannot_generate_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as raised:
        RunRequest.of({"generate": 8, "model": ("gan",), **given})
    assert says in raised.value.message


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"keep_model": "each"}, "--keep-model each needs --epochs"),
        ({"keep_model": "last", "scenario": "shared"}, "--keep-model does not apply to --scenario shared"),
        ({"keep_model": "last", "design": "alternating"}, "--keep-model last and --design alternating exclude"),
    ],
)
def test_a_model_that_cannot_be_kept_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as raised:
        RunRequest.of({"model": ("gan",), "scenario": "real", **given})
    assert says in raised.value.message


def test_a_classifier_has_no_model_to_keep() -> None:
    asked = RunRequest.of({"model": ("resnet50",), "keep_model": "last"})
    with pytest.raises(RequestError, match="resnet50 generates no images") as raised:
        SCENARIOS.get("synthetic").of(asked).check_model(asked, "resnet50")
    assert "leave out --keep-model" in str(raised.value.remedy)
