"""One training step on one device, timed by phase."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from worker.data.batches import Batch, Batches
from worker.training.device import Device, Numerics
from worker.training.step import COMMUNICATE, Samples, Training
from worker.workloads.workload import Losses, Workload


class Trainer(Protocol):
    phases: tuple[str, ...]
    """The phases it has beside data and compute."""
    parts: tuple[str, ...]
    network: torch.nn.Module
    """The network that is trained; of replicas, the one that is updated."""

    @property
    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        """The optimizers that step here; none where servers update in their place."""

    def step(self, samples: Samples, index: int) -> None:
        """Train one step to its end, and store its times at ``index``."""

    def synchronize(self) -> None:
        """Wait until every device has done all it was given."""

    def loss(self) -> float:
        """Return the first of the losses of the last step, 0 without any; of several devices, the mean."""


def set_learning_rate(trainer: Trainer, rate: float | None) -> None:
    """Give every optimizer this learning rate; None leaves each its own."""
    if rate is None:
        return
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


@dataclass(eq=False)
class OneDevice:
    """One network on one device. A subclass says how a step is taken after its batch has come."""

    workload: Workload
    network: torch.nn.Module
    device: Device
    batches: Batches
    numerics: Numerics

    def __post_init__(self) -> None:
        self.phases: tuple[str, ...] = ("copy",) if self.device.is_cuda and self.device.timed else ()
        self.parts: tuple[str, ...] = ()
        self._losses: Losses = {}

    @property
    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return ()

    def step(self, samples: Samples, index: int) -> None:
        begin_s = time.monotonic()
        batch = self.batches.next()
        data_s = time.monotonic() - begin_s
        communicate_s = self.train(batch)
        elapsed_s = time.monotonic() - begin_s
        copy_s = self.device.copy_s() if "copy" in self.phases else 0.0
        samples.put(
            index,
            elapsed_s,
            data_s,
            copy_s,
            communicate_s,
        )
        samples.put_losses(index, self._losses)

    def train(self, batch: Batch) -> float:
        """Take a step on the batch, to its end. Returns how many seconds it did nothing but communicate."""
        raise NotImplementedError

    def placed(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels on the device, as the network takes them."""
        # A blocking copy waits for the whole stream: where steps are not timed, not even the recipe reference does.
        wait = self.device.timed and not self.numerics.overlapped
        images, labels = self.device.copy(batch, wait=wait)
        return self.batches.prepared(images), labels

    def passes(self, batch: Batch, spread: torch.nn.Module | None = None) -> None:
        """Go forward and backward through the network, or through what spreads it over ranks."""
        images, labels = self.placed(batch)
        network = self.network if spread is None else spread
        with self.numerics.autocast(self.device):
            loss = self.workload.checked_loss(network, images, labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self._losses = {"loss": loss.detach()}

    def synchronize(self) -> None:
        self.device.synchronize()

    def loss(self) -> float:
        losses = iter(self._losses.values())
        return float(next(losses, 0.0))


class Single(OneDevice):
    """The workload's own step; with DistributedDataParallel around the network, that of one rank of several.

    What ranks exchange overlaps with the backward pass and cannot be told from it: it is part of computing.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts = self.workload.phases if self.device.timed else ()
        optimizers = self.workload.checked_optimizers(self.network)
        self.training = Training(
            self.network,
            optimizers,
            self.device,
            self.numerics,
        )
        self._parts_s: dict[str, float] = {}

    @property
    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return self.training.optimizers.values()

    def step(self, samples: Samples, index: int) -> None:
        self.training.progress = (index + 1) / samples.count
        super().step(samples, index)
        samples.put_parts(index, self._parts_s)

    def train(self, batch: Batch) -> float:
        images, labels = self.placed(batch)
        losses = self.workload.checked_step(self.training, images, labels)
        # A step has ended when its result is there, as a session's run in tf_cnn_benchmarks.
        if self.device.timed:
            self.device.synchronize()
        self._losses = {name: loss.detach() for name, loss in losses.items()}
        self._parts_s = self.training.phase.seconds()
        return self._parts_s.pop(COMMUNICATE, 0.0)


class Messages(OneDevice):
    """A step of nothing but communication between ranks. What it sends is in the metrics of its workload."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.phases = (*self.phases, COMMUNICATE)

    def train(self, batch: Batch) -> float:
        images, labels = self.placed(batch)
        begin_s = time.monotonic()
        self.workload.loss(self.network, images, labels)
        return time.monotonic() - begin_s
