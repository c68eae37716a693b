"""Synthetic data: one batch per device, drawn from the seed once and used in every step."""

import torch

from scenarios.worker.models import CLASSES
from scenarios.worker.numerics import Numerics
from scenarios.worker.spec import Spec

_SEED_STRIDE = 1_000_003  # devices draw from generators of their own; seeds of different trials are much closer


class Batches:
    """The batches of one device, in host memory."""

    def __init__(self, spec: Spec, number: int, numerics: Numerics) -> None:
        generator = torch.Generator().manual_seed(spec.seed + _SEED_STRIDE * number)
        images = torch.rand(spec.batch, 3, spec.image_px, spec.image_px, generator=generator)
        labels = torch.randint(CLASSES, (spec.batch,), generator=generator)
        if numerics.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        if numerics.pinned:
            images, labels = images.pin_memory(), labels.pin_memory()
        self._batch = images, labels

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._batch
