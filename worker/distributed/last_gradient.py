"""When the backward pass has made its last gradient: all reducing that is left then is waited for, and nothing else."""

import time
from collections.abc import Iterable

import torch

from worker.training.device import Device


class LastGradient:
    """Hooks of the parameters note the time of each gradient, of which the last one stays.

    torch runs them before DistributedDataParallel's own. On CUDA the times are the device's, by events on the stream
    that computes, which at the end of the backward pass waits for the reduction.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], device: Device) -> None:
        self._made_s = self._reduced_s = 0.0
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if device.is_cuda:
            # torch annotates no part of its CUDA events.
            self._events = (
                torch.cuda.Event(enable_timing=True),  # type: ignore[no-untyped-call]
                torch.cuda.Event(enable_timing=True),  # type: ignore[no-untyped-call]
            )
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._made)  # type: ignore[no-untyped-call]

    def reduced(self) -> None:
        """The backward pass has returned, and all gradients with it."""
        self._reduced_s = time.monotonic()
        if self._events:
            self._events[1].record()

    def exposed_s(self) -> float:
        """From the last gradient to the end of the reduction. On CUDA to be asked after the device is synchronised."""
        if self._events:
            return float(self._events[0].elapsed_time(self._events[1])) / 1e3
        return self._reduced_s - self._made_s

    def _made(self, _: torch.Tensor) -> None:
        self._made_s = time.monotonic()
        if self._events:
            self._events[0].record()
