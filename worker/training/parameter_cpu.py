"""Several devices of one instance, with the parameters on the CPU, as in the paper's Table 1.

Every step copies the parameters from the CPU to each device, computes gradients there on the device's own batch, brings
them back, averages them on the CPU and updates there. Batch statistics stay with each device, as they do in
tf_cnn_benchmarks' ``parameter_server``.
"""

import copy
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from worker.data.batches import Batches
from worker.training.device import Device, Numerics
from worker.training.step import Samples
from worker.workloads.workload import Workload


@dataclass(frozen=True, eq=False)
class Replicas:
    """The replica on each device, the parameters on the CPU, and memory for gradients on their way to these."""

    networks: Sequence[torch.nn.Module]
    parameters: Sequence[torch.nn.Parameter]
    landing: Sequence[torch.Tensor]
    """Where the gradients of the devices after the first land before they are added."""

    @classmethod
    def place(cls, network: torch.nn.Module, devices: Sequence[Device], numerics: Numerics) -> "Replicas":
        """Copy the network to each device, and its parameters, if need be, to pinned memory."""
        networks = [numerics.compile(numerics.place(copy.deepcopy(network), device)) for device in devices]
        # In the devices' own memory format, so that every copy between them is of one piece.
        parameters = list(numerics.place(network, Device("cpu")).parameters())
        pin = numerics.overlapped
        for parameter in parameters:
            if pin:
                parameter.data = parameter.data.pin_memory()
            parameter.grad = torch.zeros_like(parameter, pin_memory=pin)
        landing = [torch.zeros_like(parameter, pin_memory=pin) for parameter in parameters]
        return cls(networks, parameters, landing)


@dataclass(eq=False)
class ParameterCpu:
    """The parameters on the CPU and one replica of the network on each device.

    The phases are told apart by waiting for all devices after each: they follow each other in any case, since every
    device needs all parameters before it computes, and the update all gradients.
    """

    workload: Workload
    network: torch.nn.Module
    devices: Sequence[Device]
    batches: Sequence[Batches]
    numerics: Numerics
    replicas: Replicas

    def __post_init__(self) -> None:
        self.phases: tuple[str, ...] = ("copy", "communicate") if self.devices[0].is_cuda else ("communicate",)
        networks = self.replicas.networks
        self._copies = [list(replica.parameters()) for replica in networks]
        self._optimizer = self.workload.optimizer(self.network)
        self.parts: tuple[str, ...] = ()
        self._losses: list[torch.Tensor] = []

    @property
    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return (self._optimizer,)

    def step(self, samples: Samples, index: int) -> None:
        begin_s = time.monotonic()
        batches = [batch.next() for batch in self.batches]
        got_s = time.monotonic()
        pairs = zip(self.devices, batches, strict=True)
        placed = [device.copy(batch, wait=not self.numerics.overlapped) for device, batch in pairs]
        self.synchronize()
        copied_s = time.monotonic()
        self._send_parameters()
        sent_s = time.monotonic()
        self._compute_gradients(placed)
        computed_s = time.monotonic()
        self._gather_gradients()
        gathered_s = time.monotonic()
        exchanged_s = self.update()
        end_s = time.monotonic()
        samples.put(
            index,
            end_s - begin_s,
            got_s - begin_s,
            copied_s - got_s if "copy" in self.phases else 0.0,
            (sent_s - copied_s) + (gathered_s - computed_s) + exchanged_s,
        )
        losses = [loss.cpu() for loss in self._losses]
        samples.put_losses(index, {"loss": torch.stack(losses).mean()})

    def update(self) -> float:
        """Update the parameters by their gradients. Returns how many seconds it only communicated."""
        self._optimizer.step()
        return 0.0

    @torch.no_grad()
    def _send_parameters(self) -> None:
        for copies in self._copies:
            for there, parameter in zip(copies, self.replicas.parameters, strict=True):
                there.copy_(parameter, non_blocking=self.numerics.overlapped)
        self.synchronize()

    def _compute_gradients(self, placed: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        losses = []
        networks = self.replicas.networks
        replicas = zip(networks, self.devices, self.batches, placed, strict=True)
        for replica, device, batches, batch in replicas:
            images = batches.prepared(batch[0])
            labels = batch[1]
            replica.zero_grad()
            with self.numerics.autocast(device):
                losses.append(self.workload.checked_loss(replica, images, labels))
        # One call for all: torch runs the backward pass of each CUDA device in a thread of its own.
        torch.autograd.backward(losses)
        self._losses = [loss.detach() for loss in losses]
        self.synchronize()

    @torch.no_grad()
    def _gather_gradients(self) -> None:
        """Leave the mean over the devices, each of which has averaged over its own batch."""
        pairs = zip(self.replicas.parameters, self.replicas.landing, strict=True)
        landed = list(pairs)
        for number, copies in enumerate(self._copies):
            for there, (parameter, landing) in zip(copies, landed, strict=True):
                if parameter.grad is None or there.grad is None:
                    raise RuntimeError("a parameter has no gradient: the network does not use it")
                target = landing if number else parameter.grad
                target.copy_(there.grad, non_blocking=self.numerics.overlapped)
            self.devices[number].synchronize()
            for parameter, landing in landed if number else ():
                if parameter.grad is not None:
                    parameter.grad.add_(landing)
        for parameter in self.replicas.parameters:
            if parameter.grad is not None:
                parameter.grad.div_(len(self.devices))

    def synchronize(self) -> None:
        for device in self.devices:
            device.synchronize()

    def loss(self) -> float:
        losses = [float(loss) for loss in self._losses]
        return sum(losses) / len(losses)
