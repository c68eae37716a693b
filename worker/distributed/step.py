"""A worker's step: the same as on one device, with the strategy's exchange in it."""

import time

import torch

from worker.data.batches import Batches
from worker.training.device import Device
from worker.training.numerics import Numerics
from worker.training.samples import Samples
from worker.workloads.workload import Workload


class Worker:
    """What the strategies have in common: one network, one device, and the passes forth and back."""

    def __init__(
        self, workload: Workload, network: torch.nn.Module, device: Device, batches: Batches, numerics: Numerics
    ) -> None:
        self.phases: tuple[str, ...] = ("copy", "communicate") if device.is_cuda else ("communicate",)
        self.network = network
        self._workload = workload
        self.device = device
        self._batches = batches
        self._numerics = numerics
        self._loss = torch.tensor(0.0)

    def step(self, samples: Samples, index: int) -> None:
        begin_s = time.monotonic()
        batch = self._batches.next()
        data_s = time.monotonic() - begin_s
        communicate_s = self.train(batch)
        elapsed_s = time.monotonic() - begin_s
        copy_s = self.device.copy_s() if self.device.is_cuda else 0.0
        samples.put(index, elapsed_s, data_s, copy_s, communicate_s)

    def synchronize(self) -> None:
        self.device.synchronize()

    def loss(self) -> float:
        return float(self._loss)

    def train(self, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        """Take a step on the batch. Returns how many seconds it did nothing but communicate."""
        raise NotImplementedError

    def passes(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        images, labels = self.device.copy(batch, wait=not self._numerics.pinned)
        images = self._batches.prepared(images)
        with self._numerics.autocast(self.device):
            loss = self._workload.loss(self.network, images, labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self._loss = loss.detach()
