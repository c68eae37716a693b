"""Several devices of one instance with the variables on the CPU, as in the paper's Table 1.

Every step copies the variables from the CPU to each device, computes gradients there on the device's own batch, brings
them back, averages them on the CPU and updates there. Batch statistics stay with each device, as they do in
tf_cnn_benchmarks' ``parameter_server``.
"""

import copy
import time
from collections.abc import Sequence

import torch

from worker.data.batches import Batches
from worker.training.device import Device
from worker.training.numerics import Numerics
from worker.training.samples import Samples
from worker.training.trainer import sgd


class ParameterCpu:
    """The variables on the CPU and one replica of the model on each device.

    The phases are told apart by waiting for all devices after each: they follow each other in any case, since every
    device needs all variables before it computes, and the update all gradients.
    """

    def __init__(
        self, model: torch.nn.Module, devices: Sequence[Device], batches: Sequence[Batches], numerics: Numerics
    ) -> None:
        on_cuda = devices[0].is_cuda
        self.phases: tuple[str, ...] = ("copy", "communicate") if on_cuda else ("communicate",)
        self._devices = devices
        self._batches = batches
        self._numerics = numerics
        replicas = [numerics.place(copy.deepcopy(model), device) for device in devices]
        self._replicas = [numerics.compile(replica) for replica in replicas]
        self._copies = [list(replica.parameters()) for replica in replicas]
        # In the devices' own layout, so that every copy between them is of one piece.
        self._variables = list(numerics.place(model, Device("cpu")).parameters())
        pin = numerics.pinned
        for variable in self._variables:
            if pin:
                variable.data = variable.data.pin_memory()
            variable.grad = torch.zeros_like(variable, pin_memory=pin)
        # Where the gradients of the devices after the first land before they are added.
        self._landing = [torch.zeros_like(variable, pin_memory=pin) for variable in self._variables]
        self._optimizer = sgd(model)
        self._criterion = torch.nn.CrossEntropyLoss()
        self._losses: list[torch.Tensor] = []

    def step(self, samples: Samples, index: int) -> None:
        begin_s = time.monotonic()
        batches = [batch.next() for batch in self._batches]
        got_s = time.monotonic()
        pairs = zip(self._devices, batches, strict=True)
        placed = [device.copy(batch, wait=not self._numerics.pinned) for device, batch in pairs]
        self.synchronize()
        copied_s = time.monotonic()
        self._send_variables()
        sent_s = time.monotonic()
        self._compute_gradients(placed)
        computed_s = time.monotonic()
        self._gather_gradients()
        gathered_s = time.monotonic()
        self._optimizer.step()
        end_s = time.monotonic()
        samples.put(
            index,
            end_s - begin_s,
            got_s - begin_s,
            copied_s - got_s if "copy" in self.phases else 0.0,
            (sent_s - copied_s) + (gathered_s - computed_s),
        )

    @torch.no_grad()
    def _send_variables(self) -> None:
        for copies in self._copies:
            for there, variable in zip(copies, self._variables, strict=True):
                there.copy_(variable, non_blocking=self._numerics.pinned)
        self.synchronize()

    def _compute_gradients(self, placed: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        losses = []
        for replica, device, batches, batch in zip(self._replicas, self._devices, self._batches, placed, strict=True):
            images, labels = batches.prepared(batch[0]), batch[1]
            replica.zero_grad()
            with self._numerics.autocast(device):
                losses.append(self._criterion(replica(images), labels))
        # One call for all: torch runs the backward pass of each CUDA device in a thread of its own.
        torch.autograd.backward(losses)
        self._losses = [loss.detach() for loss in losses]
        self.synchronize()

    @torch.no_grad()
    def _gather_gradients(self) -> None:
        """The mean over the devices, each of which has averaged over its own batch."""
        for number, copies in enumerate(self._copies):
            for there, variable, landing in zip(copies, self._variables, self._landing, strict=True):
                total, gradient = variable.grad, there.grad
                if total is None or gradient is None:
                    raise RuntimeError("a variable has no gradient: the model does not use it")
                (landing if number else total).copy_(gradient, non_blocking=self._numerics.pinned)
            self._devices[number].synchronize()
            if number:
                self._add_landed()
        for variable in self._variables:
            if variable.grad is not None:
                variable.grad.div_(len(self._devices))

    def _add_landed(self) -> None:
        for variable, landing in zip(self._variables, self._landing, strict=True):
            if variable.grad is not None:
                variable.grad.add_(landing)

    def synchronize(self) -> None:
        for device in self._devices:
            device.synchronize()

    def loss(self) -> float:
        losses = [float(loss) for loss in self._losses]
        return sum(losses) / len(losses)
