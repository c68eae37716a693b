"""Storage of the measured steps, allocated before the first of them."""

from __future__ import annotations  # array cannot be subscripted before Python 3.12

from array import array
from collections.abc import Collection
from dataclasses import dataclass

ALL = slice(None)


@dataclass(frozen=True)
class Samples:
    """One column per phase, in seconds; a phase that the job does not have is None, not zero."""

    elapsed: array[float]
    data: array[float]
    compute: array[float]
    copy: array[float] | None
    communicate: array[float] | None

    @classmethod
    def allocate(cls, steps: int, phases: Collection[str]) -> Samples:
        """Allocate the columns. ``phases`` names those that not every job has: ``copy``, ``communicate``."""
        zeros = bytes(8 * steps)
        copy = array("d", zeros) if "copy" in phases else None
        communicate = array("d", zeros) if "communicate" in phases else None
        return cls(array("d", zeros), array("d", zeros), array("d", zeros), copy, communicate)

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

    def columns(self, steps: slice = ALL) -> dict[str, list[float] | None]:
        """Return the steps as ``records.Steps``."""
        return {
            "elapsed_s": self.elapsed[steps].tolist(),
            "data_s": self.data[steps].tolist(),
            "copy_s": None if self.copy is None else self.copy[steps].tolist(),
            "compute_s": self.compute[steps].tolist(),
            "communicate_s": None if self.communicate is None else self.communicate[steps].tolist(),
        }
