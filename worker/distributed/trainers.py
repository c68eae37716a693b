"""The trainers of a worker's rank: the same step as on one device, with the strategy's exchange in it."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.nn.parallel import DistributedDataParallel

from worker.data.batches import Batches
from worker.distributed.exchange import Exchange
from worker.distributed.group import Group
from worker.distributed.parameters import Parameters
from worker.distributed.partition import CHUNK_BYTES
from worker.training.device import Device
from worker.training.numerics import Numerics
from worker.training.samples import Samples
from worker.workloads.workload import Workload


class Worker:
    """The parts that all strategies share: one network, one device, and the passes forward and backward."""

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

    @property
    def bytes_sent(self) -> int:
        """The payload of gradients and parameters since the beginning."""
        raise NotImplementedError

    @property
    def bytes_received(self) -> int:
        raise NotImplementedError

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


class ParameterServerWorker(Worker):
    """A step has ended when the updated parameters are there."""

    def __init__(
        self,
        workload: Workload,
        network: torch.nn.Module,
        device: Device,
        batches: Batches,
        numerics: Numerics,
        exchange: Exchange,
    ) -> None:
        super().__init__(workload, network, device, batches, numerics)
        self._exchange = exchange

    @property
    def bytes_sent(self) -> int:
        return self._exchange.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._exchange.bytes_received

    def train(self, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        self._exchange.begin()
        self.passes(batch)
        self._exchange.finish()
        return self._exchange.busy_s


class AllReduceWorker(Worker):
    """DistributedDataParallel. What is reduced while the backward pass still computes is not told from it.

    A rank's bytes are those of a ring over all ranks, which is what gloo does; they are reckoned and not counted.
    """

    def __init__(
        self,
        workload: Workload,
        network: torch.nn.Module,
        device: Device,
        batches: Batches,
        numerics: Numerics,
        world: int,
    ) -> None:
        self._last = LastGradient(network.parameters(), device)
        # Statistics of batches stay with each worker, as they do with parameter servers and in tf_cnn_benchmarks.
        parallel = DistributedDataParallel(
            network,
            device_ids=[device.torch] if device.is_cuda else None,
            gradient_as_bucket_view=True,
            forward_sync_buffers=False,
        )
        super().__init__(workload, numerics.compile(parallel), device, batches, numerics)
        self._optimizer = workload.optimizer(network)
        self._steps = 0
        gradient_bytes = sum(each.nbytes for each in network.parameters() if each.requires_grad)
        self._step_bytes = 2 * (world - 1) * gradient_bytes // world

    @property
    def bytes_sent(self) -> int:
        return self._steps * self._step_bytes

    @property
    def bytes_received(self) -> int:
        return self._steps * self._step_bytes

    def train(self, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        self.passes(batch)
        self._last.reduced()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.device.synchronize()
        self._steps += 1
        return self._last.exposed_s()


class LastGradient:
    """Finds how long a step waits for the reduction after the backward pass has made its last gradient.

    Hooks of the parameters note the time of each gradient, and the last one stays. torch runs them before those of
    DistributedDataParallel. On CUDA the times are the device's, by events on the stream that computes, which at the end
    of the backward pass waits for the reduction.
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
        """Note that the backward pass has returned, and all gradients with it."""
        self._reduced_s = time.monotonic()
        if self._events:
            self._events[1].record()

    def exposed_s(self) -> float:
        """Return the seconds from the last gradient to the end of the reduction. On CUDA, synchronise first."""
        if self._events:
            return float(self._events[0].elapsed_time(self._events[1])) / 1e3
        return self._reduced_s - self._made_s

    def _made(self, _: torch.Tensor) -> None:
        self._made_s = time.monotonic()
        if self._events:
            self._events[0].record()


@contextmanager
def opened_trainer(
    group: Group,
    workload: Workload,
    network: torch.nn.Module,
    device: Device,
    batches: Batches,
    numerics: Numerics,
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[Worker]:
    """Open the trainer of a worker's rank. Its servers are told of the end, unless the body failed."""
    placed = numerics.place(network, device)
    if group.membership.strategy == "all-reduce":
        yield AllReduceWorker(workload, placed, device, batches, numerics, group.membership.world)
        return
    exchange = Exchange(group, Parameters(placed), chunk_bytes)
    yield ParameterServerWorker(workload, numerics.compile(placed), device, batches, numerics, exchange)
    exchange.close()
