"""Data-parallel training of workloads whose step is their own: each optimizer steps with the mean of all gradients."""

from dataclasses import dataclass, field

import torch
from torch import distributed

from worker.training.step import COMMUNICATE, Training


@dataclass(eq=False)
class AveragedTraining(Training):
    """One rank's training. All ranks begin with the weights of the first."""

    world: int = field(kw_only=True)
    updates: int = 0
    exchanged_bytes: int = 0
    """The bytes that a ring over all ranks sends and receives for what was averaged; they are reckoned, not counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for tensor in self.network.state_dict().values():
            first = tensor.contiguous()
            distributed.broadcast(first, src=0)
            tensor.copy_(first)

    def update(self, name: str) -> None:
        """Average the gradients of this optimizer over all ranks, as one message, and let it take its step."""
        parameters = (each for group in self.optimizers[name].param_groups for each in group["params"])
        gradients = [each.grad for each in parameters if each.grad is not None]
        if gradients:
            with self.phase(COMMUNICATE):
                flat = torch.cat([gradient.flatten() for gradient in gradients])
                distributed.all_reduce(flat)
                parts = torch.split(flat / self.world, [gradient.numel() for gradient in gradients])
                for gradient, mean in zip(gradients, parts, strict=True):
                    gradient.copy_(mean.view_as(gradient))
            self.exchanged_bytes += 2 * (self.world - 1) * flat.nbytes // self.world
        self.updates += 1
        super().update(name)
