"""The tools of a workload's step: networks, optimizers, the arithmetic of the recipe, and a clock for its phases."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch

from worker.training.device import Device, timing_event
from worker.training.numerics import Numerics


class PhaseClock:
    """Times the phases of a step: with the host's clock on the CPU, on CUDA with events, for which nothing waits."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._spans: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the time until this is left as the phase's; a phase can come several times."""
        if not self._device.is_cuda:
            begin_s = time.monotonic()
            yield
            self._seconds[name] += time.monotonic() - begin_s
            return
        begin, end = timing_event(), timing_event()
        stream = torch.cuda.current_stream(self._device.torch)
        begin.record(stream)
        yield
        end.record(stream)
        self._spans.append((name, begin, end))

    def seconds(self) -> Mapping[str, float]:
        """Return the seconds of each phase of the step that has ended, and begin the next. Synchronise first."""
        for name, begin, end in self._spans:
            self._seconds[name] += float(begin.elapsed_time(end)) / 1e3
        self._spans.clear()
        found, self._seconds = self._seconds, defaultdict(float)
        return found


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
        """Return the context in which the recipe goes forward."""
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
