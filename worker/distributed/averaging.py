"""Trainings of one rank whose step is the workload's own: each update of an optimizer reaches the other ranks."""

from dataclasses import dataclass, field

import torch
from torch import distributed

from worker.protocol import JobError
from worker.spec import Membership
from worker.training.step import COMMUNICATE, Training


@dataclass(eq=False)
class JoinedTraining(Training):
    """A training that exchanges something with other ranks in each step."""

    def exchanged(self) -> dict[str, int]:
        """Return ``bytes_sent`` and ``bytes_received`` since the beginning."""
        raise NotImplementedError

    def check_step(self, workload: str) -> None:
        """Raise JobError if the step that has ended was none that the ranks can share."""
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
