"""The numerics recipes: ``reference`` is torch as it comes, ``tuned`` what an experienced user would set."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch

from worker.training.device import Device


@dataclass(frozen=True)
class Numerics:
    """Formats and settings of the arithmetic. The recipe's allocator is set by the command that launches the worker."""

    bfloat16: bool = False
    channels_last: bool = False
    tf32: bool = False
    compiled: bool = False
    pinned: bool = False
    """Batches in pinned memory and their copies not waited for."""
    sparing: bool = False
    """Whether gradients that no optimizer uses are not computed."""

    def apply(self) -> None:
        """Set what torch keeps for the whole process."""
        if self.tf32:
            torch.set_float32_matmul_precision("high")

    def place(self, model: torch.nn.Module, device: Device) -> torch.nn.Module:
        placed = model.to(device.torch)
        if self.channels_last:
            # torch's stubs do not know that a module can be given a memory format.
            placed = placed.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return placed

    def compile(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model, compiled where the recipe is; of several networks, each by itself."""
        if self.compiled and isinstance(model, torch.nn.ModuleDict):
            for network in model.values():
                network.compile()
            return model
        return cast(torch.nn.Module, torch.compile(model)) if self.compiled else model

    def autocast(self, device: Device) -> AbstractContextManager[object]:
        if not self.bfloat16:
            return nullcontext()
        return torch.autocast(device.torch.type, dtype=torch.bfloat16)


def numerics_of(recipe: str, device: str) -> Numerics:
    """Return the numerics of a recipe. On the CPU torch.compile gains nothing, and its first step takes minutes."""
    if recipe == "reference":
        return Numerics()
    on_cuda = device == "cuda"
    return Numerics(bfloat16=True, channels_last=True, tf32=on_cuda, compiled=on_cuda, pinned=on_cuda, sparing=True)
