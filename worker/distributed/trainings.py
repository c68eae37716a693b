"""Trainings of one rank whose step is the workload's own: with averaged updates, or with half of a split GAN.

Averaged, each update of an optimizer reaches the other ranks. Split, the discriminator and the data are on rank 0, the
generator on rank 1. Rank 0 takes the workload's own step. When that calls the generator, rank 1 makes a batch of images
and sends it; when the step goes backward through these images, their gradient is sent back. Every message begins with
an order of two numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed

from worker.protocol import JobError
from worker.spec import GENERATOR_RANK, Membership
from worker.training.device import Device, Numerics
from worker.training.step import COMMUNICATE, PhaseClock, Training
from worker.workloads.workload import Shape


@dataclass(eq=False)
class JoinedTraining(Training):
    """A training that exchanges something with other ranks in each step."""

    def exchanged(self) -> dict[str, int]:
        """Return ``bytes_sent`` and ``bytes_received`` since the beginning."""
        raise NotImplementedError

    def check_step(self, workload: str) -> None:
        """Raise JobError if the step that has ended is not one that the ranks can share."""
        raise NotImplementedError


@dataclass(eq=False)
class AveragedTraining(JoinedTraining):
    """Each optimizer steps with the mean of all ranks' gradients. The ranks begin with equal weights."""

    membership: Membership = field(kw_only=True)
    updates: int = 0
    exchanged_bytes: int = 0
    """The bytes that a ring over all ranks sends and receives for what was averaged; they are reckoned, not counted."""

    def update(self, name: str) -> None:
        """Average the gradients of this optimizer over all ranks, as one message, and let it take its step."""
        parameters = (parameter for group in self.optimizers[name].param_groups for parameter in group["params"])
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients:
            world = self.membership.world
            with self.phase(COMMUNICATE):
                flat = torch.cat([gradient.flatten() for gradient in gradients])
                distributed.all_reduce(flat)
                sizes = [gradient.numel() for gradient in gradients]
                parts = torch.split(flat / world, sizes)
                for gradient, mean in zip(gradients, parts, strict=True):
                    gradient.copy_(mean.view_as(gradient))
            self.exchanged_bytes += 2 * (world - 1) * flat.nbytes // world
        self.updates += 1
        super().update(name)

    def exchanged(self) -> dict[str, int]:
        return dict.fromkeys(("bytes_sent", "bytes_received"), self.exchanged_bytes)

    def check_step(self, workload: str) -> None:
        if not self.updates:
            raise JobError(
                f"the step of {workload} averages nothing between the ranks: it never calls training.update",
                kind="request",
                remedy="call training.update(NAME) for each optimizer in the step",
            )


def broadcast_weights(network: torch.nn.Module) -> None:
    """Give all ranks the weights of the first."""
    for tensor in network.state_dict().values():
        first = tensor.contiguous()
        distributed.broadcast(first, src=0)
        tensor.copy_(first)


GENERATE, GRADIENT, UPDATE = range(3)
GENERATOR = "generator"
"""The name of the network, and of its optimizer."""


@dataclass
class OtherRank:
    """The other rank. What is sent and received is counted, without the headers of TCP."""

    rank: int
    shape: Shape
    device: Device
    phase: PhaseClock
    sent_bytes: int = 0
    received_bytes: int = 0

    def send(self, images: torch.Tensor) -> None:
        """Send images, or the gradient of a loss by images, in single precision."""
        self._send(images.float().contiguous())

    def order(self, order: int, count: int = 0) -> None:
        """Order the generator to make so many images, to take the gradient of so many, or to update."""
        counts = torch.tensor([order, count], device=self.device.torch)
        self._send(counts)

    def ordered(self) -> tuple[int, int]:
        announced = self._receive(torch.zeros(2, dtype=torch.int64, device=self.device.torch))
        order, count = announced.tolist()
        return order, count

    def images(self, count: int) -> torch.Tensor:
        size = count, self.shape.channels, self.shape.px, self.shape.px
        return self._receive(torch.empty(size, device=self.device.torch))

    def exchanged(self) -> dict[str, int]:
        return {"bytes_sent": self.sent_bytes, "bytes_received": self.received_bytes}

    def _send(self, values: torch.Tensor) -> None:
        with self.phase(COMMUNICATE):
            distributed.send(values, self.rank)
        self.sent_bytes += values.nbytes

    def _receive(self, landing: torch.Tensor) -> torch.Tensor:
        with self.phase(COMMUNICATE):
            distributed.recv(landing, self.rank)
        self.received_bytes += landing.nbytes
        return landing


class _Images(torch.autograd.Function):
    """Images of the other rank. ``anchor`` is only there to have a gradient asked for."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, peer: OtherRank, count: int) -> torch.Tensor:  # noqa: ANN401 (torch's)
        del anchor
        ctx.peer = peer
        peer.order(GENERATE, count)
        return peer.images(count)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None]:  # noqa: ANN401
        ctx.peer.order(GRADIENT, len(gradient))
        ctx.peer.send(gradient)
        return None, None, None


class RemoteGenerator(torch.nn.Module):
    """Stands for the generator on the discriminator's rank: what it is made of is drawn on the other."""

    def __init__(self, peer: OtherRank) -> None:
        super().__init__()
        self._peer = peer
        anchor = torch.zeros((), device=peer.device.torch)
        self._anchor = anchor.requires_grad_()

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        images: torch.Tensor = _Images.apply(self._anchor, self._peer, len(noise))  # type: ignore[no-untyped-call]
        return images


@dataclass(eq=False)
class SplitTraining(JoinedTraining):
    """The training of the discriminator's rank, whose generator is on the other."""

    shape: Shape = field(kw_only=True)
    peer: OtherRank = field(init=False)
    generator_updates: int = 0
    """The updates of the generator in this step."""

    @classmethod
    def open(
        cls,
        network: torch.nn.Module,
        optimizers: Mapping[str, torch.optim.Optimizer],
        device: Device,
        numerics: Numerics,
        shape: Shape,
    ) -> "SplitTraining":
        """Return the training of a network that gets the other rank's generator."""
        training = cls(network, optimizers, device, numerics, shape=shape)
        training.peer = OtherRank(GENERATOR_RANK, shape, device, training.phase)
        network.add_module(GENERATOR, RemoteGenerator(training.peer))
        return training

    def update(self, name: str) -> None:
        """Let the discriminator's optimizer take its step, or order the other rank to take the generator's."""
        if name == GENERATOR:
            self.peer.order(UPDATE)
            self.generator_updates += 1
        else:
            super().update(name)

    def exchanged(self) -> dict[str, int]:
        return self.peer.exchanged()

    def check_step(self, workload: str) -> None:
        updates = self.generator_updates
        self.generator_updates = 0
        if updates != 1:
            raise JobError(
                f"the step of {workload} updates its generator {updates} times; split takes one update",
                kind="request",
                remedy="use --strategy all-reduce",
            )
