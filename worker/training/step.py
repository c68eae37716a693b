"""One training step: networks and optimizers, a clock for its phases, and the storage of all measured steps."""

from __future__ import annotations  # array cannot be subscripted before Python 3.12

import time
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch

from worker.training.device import Device, Numerics, timing_event

ALL = slice(None)
COMMUNICATE = "communicate"
"""The phase of a step that waits for other ranks; it is no part of computing."""


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
        communicate = None
        if "communicate" in phases:
            communicate = array("d", zeros)
        parted = {name: array("d", zeros) for name in parts}
        return cls(array("d", zeros), array("d", zeros), array("d", zeros), copy, communicate, parted)

    @property
    def count(self) -> int:
        return len(self.elapsed)

    def put(
        self,
        index: int,
        elapsed_s: float,
        data_s: float,
        copy_s: float = 0.0,
        communicate_s: float = 0.0,
    ) -> None:
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


class PhaseClock:
    """Times the phases of a step: with the host's clock on the CPU, on CUDA with events, for which nothing waits."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._spans: list[tuple[str, str | None, torch.cuda.Event, torch.cuda.Event]] = []
        self._inner: str | None = None

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the time until this is left as the phase's, and not as that of a phase around it."""
        outer = self._inner
        self._inner = name
        if not self._device.timed:
            yield
        elif self._device.is_cuda:
            begin = timing_event()
            end = timing_event()
            stream = torch.cuda.current_stream(self._device.torch)
            begin.record(stream)
            yield
            end.record(stream)
            self._spans.append((name, outer, begin, end))
        else:
            begin_s = time.monotonic()
            yield
            self._count(name, outer, time.monotonic() - begin_s)
        self._inner = outer

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase of the step that has ended, and begin the next. Synchronise first."""
        for name, outer, begin, end in self._spans:
            self._count(name, outer, float(begin.elapsed_time(end)) / 1e3)
        self._spans.clear()
        seconds = self._seconds
        self._seconds = defaultdict(float)
        return seconds

    def _count(self, name: str, outer: str | None, seconds: float) -> None:
        self._seconds[name] += seconds
        if outer is not None:
            self._seconds[outer] -= seconds


@dataclass(eq=False)
class Training:
    """One training on one device. ``optimizers`` are by the names that the workload has given them."""

    network: torch.nn.Module
    optimizers: Mapping[str, torch.optim.Optimizer]
    device: Device
    numerics: Numerics
    progress: float = 1.0
    """The share of the measured steps that have ended with this one; 1 before them."""
    phase: PhaseClock = field(init=False)

    def __post_init__(self) -> None:
        self.phase = PhaseClock(self.device)

    def autocast(self) -> AbstractContextManager[object]:
        return self.numerics.autocast(self.device)

    @contextmanager
    def passing_through(self, network: torch.nn.Module) -> Iterator[None]:
        """Go through a network on the way to another: its own gradients are of no use, and ``tuned`` spares them."""
        network.requires_grad_(not self.numerics.sparing)
        yield
        network.requires_grad_()

    def update(self, name: str) -> None:
        """Let an optimizer take its step, and forget the gradients that it has used."""
        self.optimizers[name].step()
        self.optimizers[name].zero_grad()
