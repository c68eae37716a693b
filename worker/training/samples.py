"""Storage of the measured steps, allocated before the first of them."""

from __future__ import annotations  # array cannot be subscripted before Python 3.12

from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ALL = slice(None)


@dataclass(frozen=True)
class Samples:
    """One column per phase, in seconds; a phase that the job does not have is None, not zero."""

    elapsed: array[float]
    data: array[float]
    compute: array[float]
    copy: array[float] | None
    communicate: array[float] | None
    parts: dict[str, array[float]]
    """The phases of computing that the workload names."""
    losses: dict[str, torch.Tensor] = field(default_factory=dict)
    """The losses, on the device that has computed them: nothing waits for them before the last step has ended."""

    @classmethod
    def allocate(cls, steps: int, phases: Collection[str], parts: Collection[str] = ()) -> Samples:
        """Allocate the columns. ``phases`` names those that not every job has: ``copy``, ``communicate``."""
        zeros = bytes(8 * steps)
        copy = array("d", zeros) if "copy" in phases else None
        communicate = array("d", zeros) if "communicate" in phases else None
        parted = {name: array("d", zeros) for name in parts}
        return cls(array("d", zeros), array("d", zeros), array("d", zeros), copy, communicate, parted)

    @property
    def count(self) -> int:
        """Return how many steps there is room for."""
        return len(self.elapsed)

    def put(self, index: int, elapsed_s: float, data_s: float, copy_s: float = 0.0, communicate_s: float = 0.0) -> None:
        """Store a step. Computing is what is left of it: the phases follow each other and make up the whole."""
        self.elapsed[index] = elapsed_s
        self.data[index] = data_s
        if self.copy is not None:
            self.copy[index] = copy_s
        if self.communicate is not None:
            self.communicate[index] = communicate_s
        # The copy has the device's clock and the rest the host's: their difference must not become a negative time.
        self.compute[index] = max(0.0, elapsed_s - data_s - copy_s - communicate_s)

    def put_parts(self, index: int, seconds: Mapping[str, float]) -> None:
        """Store the phases of computing of a step. Raises KeyError for one that the workload does not declare."""
        for name, phase_s in seconds.items():
            self.parts[name][index] = phase_s

    def put_losses(self, index: int, losses: Mapping[str, torch.Tensor]) -> None:
        """Store what a step gave, without waiting for it."""
        for name, loss in losses.items():
            if name not in self.losses:
                self.losses[name] = loss.new_empty(self.count).float()
            self.losses[name][index].copy_(loss)

    def columns(self, steps: slice = ALL) -> dict[str, list[float] | dict[str, list[float]] | None]:
        """Return the steps as ``records.Steps``."""
        return {
            "elapsed_s": self.elapsed[steps].tolist(),
            "data_s": self.data[steps].tolist(),
            "copy_s": None if self.copy is None else self.copy[steps].tolist(),
            "compute_s": self.compute[steps].tolist(),
            "communicate_s": None if self.communicate is None else self.communicate[steps].tolist(),
            "phases": {name: column[steps].tolist() for name, column in self.parts.items()},
        }

    def lost(self, steps: slice = ALL) -> dict[str, list[float]]:
        """Return the losses of the steps, by name. Waits for the device."""
        return {name: column[steps].tolist() for name, column in self.losses.items()}
