"""Parts that run on GPUs alone, with events that are played: their clock goes on by a second at each record."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from worker.training import device as devices
from worker.training.device import Device, numerics_of, torch_facts


class PlayedEvent:
    """An event as CUDA's: one that was not recorded has no time."""

    clock: Iterator[int]

    def __init__(self) -> None:
        self.at_s: int | None = None

    def record(self, stream: object = None) -> None:
        del stream
        self.at_s = next(self.clock)

    def elapsed_time(self, end: "PlayedEvent") -> float:
        if self.at_s is None or end.at_s is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end.at_s - self.at_s) * 1e3


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that copies and computes on the CPU, and is timed as a GPU is."""
    monkeypatch.setattr(PlayedEvent, "clock", itertools.count(), raising=False)
    monkeypatch.setattr(devices, "timing_event", PlayedEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    played = Device("cuda:0")
    played.torch = torch.device("cpu")
    return played


def test_a_step_without_a_copy_has_a_copy_phase_of_none(gpu: Device) -> None:
    batch = torch.zeros(2), torch.zeros(2)
    assert gpu.copy_s() == 0, "the generator of a split GAN copies nothing"
    gpu.copy(batch, wait=True)
    assert gpu.copy_s() == 1
    assert gpu.copy_s() == 0, "that was the step before"


@pytest.fixture
def _restored() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(("recipe", "rounding"), [("reference", []), ("tuned", ["matmul", "convolution"])])
def test_a_recipe_sets_and_records_what_rounds_to_tf32(
    recipe: str, rounding: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.backends.cudnn.allow_tf32 = recipe == "reference"  # torch's default is on for convolutions alone
    numerics_of(recipe, "cuda").apply()
    monkeypatch.setattr(devices, "gpus", list[Any])
    assert torch_facts("cuda")["tf32"] == rounding
    assert "tf32" not in torch_facts("cpu")
