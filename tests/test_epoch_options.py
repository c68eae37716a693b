"""Epochs and checkpoints as they are asked for: refused before anything is started where they cannot be."""

from typing import Any

import pytest

from commands.run.plan import in_epochs
from suite.errors import RequestError
from suite.job.profiles import PROFILES
from suite.request.request import RunRequest


def request(**given: object) -> RunRequest:
    return RunRequest.of({"scenario": "real", "model": ("gan",), "data": "mnist:/data", **given})


@pytest.mark.parametrize(
    ("given", "says", "remedy"),
    [
        ({"epochs": 2, "steps": 5}, "--epochs and --steps exclude each other", "give one"),
        ({"epochs": 2, "warmup_steps": 0}, "--epochs and --warmup-steps exclude", "give one"),
        ({"epochs": 2, "design": "alternating"}, "--epochs and --design alternating exclude", "give one"),
        ({"checkpoint": "on"}, "--checkpoint on needs --epochs", "add --epochs 2"),
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


def test_the_steps_of_epochs_are_whole_batches_and_none_is_a_warm_up() -> None:
    sizes = PROFILES["smoke"].sizes_of("gan").model_copy(update={"epochs": 3})
    planned = in_epochs("gan", sizes, 42, 2)
    assert (planned.batch, planned.steps, planned.warmup_steps, planned.epochs) == (4, 3 * 5, 0, 3)
    with pytest.raises(RequestError, match="--epochs 3 of gan are 750,000 steps") as raised:
        in_epochs("gan", sizes, 1_000_000, 1)
    assert "--batch" in str(raised.value.remedy)
