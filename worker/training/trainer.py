"""One training step on one device, timed by phase."""

import time
from typing import Protocol

import torch

from worker.data.batches import Batches
from worker.training.device import Device
from worker.training.numerics import Numerics
from worker.training.samples import Samples
from worker.workloads.workload import Workload


class Trainer(Protocol):
    """Trains one step at a time."""

    phases: tuple[str, ...]
    """The phases it has beside data and compute."""
    network: torch.nn.Module
    """The network that is trained; of replicas, the one that is updated."""

    def step(self, samples: Samples, index: int) -> None:
        """Train one step to its end, and store its times at ``index``."""

    def synchronize(self) -> None:
        """Wait until every device has done all it was given."""

    def loss(self) -> float:
        """Return the loss of the last step; of several devices, one that is not finite if there is one."""


class Single:
    """One network on one device; with DistributedDataParallel around the network, one rank of several.

    What ranks exchange overlaps with the backward pass and cannot be told from it: it is part of computing.
    """

    def __init__(
        self, workload: Workload, network: torch.nn.Module, device: Device, batches: Batches, numerics: Numerics
    ) -> None:
        self.phases: tuple[str, ...] = ("copy",) if device.is_cuda else ()
        self.network = network
        self._workload = workload
        self._device = device
        self._batches = batches
        self._numerics = numerics
        self._optimizer = workload.optimizer(network)
        self._loss = torch.tensor(0.0)

    def step(self, samples: Samples, index: int) -> None:
        begin_s = time.monotonic()
        batch = self._batches.next()
        data_s = time.monotonic() - begin_s
        images, labels = self._device.copy(batch, wait=not self._numerics.pinned)
        images = self._batches.prepared(images)
        with self._numerics.autocast(self._device):
            loss = self._workload.loss(self.network, images, labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._loss = loss.detach()
        # A step has ended when its result is there, as a session's run in tf_cnn_benchmarks.
        self._device.synchronize()
        elapsed_s = time.monotonic() - begin_s
        samples.put(index, elapsed_s, data_s, self._device.copy_s() if self._device.is_cuda else 0.0)

    def synchronize(self) -> None:
        self._device.synchronize()

    def loss(self) -> float:
        return float(self._loss)
