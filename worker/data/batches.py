"""The source of batches, and synthetic ones: one per device, drawn from the seed once and used in every step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from worker.data.tally import LoaderUse
from worker.errors import JobError
from worker.spec import Spec
from worker.training.numerics import Numerics
from worker.workloads.workload import CLASSES

Batch = tuple[torch.Tensor, torch.Tensor]
_SEED_STRIDE = 1_000_003  # devices draw from generators of their own; seeds of different trials are much closer


class Batches(Protocol):
    """The batches of one device, in host memory."""

    def next(self) -> Batch:
        """Images and labels. They stay as they are until the next ones are taken."""

    def prepared(self, images: torch.Tensor) -> torch.Tensor:
        """Return what the network takes, from images that have been brought to their device."""

    def close(self) -> LoaderUse | None:
        """End what makes the batches. Returns what was read for them; None where nothing is read."""


class SyntheticBatches:
    """The same random batch again and again."""

    def __init__(self, spec: Spec, number: int, numerics: Numerics) -> None:
        generator = torch.Generator().manual_seed(spec.seed + _SEED_STRIDE * number)
        images = torch.rand(spec.batch, spec.shape.channels, spec.image_px, spec.image_px, generator=generator)
        if spec.load_workload().pixels == "signed":
            images = images * 2 - 1
        labels = torch.randint(CLASSES, (spec.batch,), generator=generator)
        if numerics.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        if numerics.pinned:
            images, labels = images.pin_memory(), labels.pin_memory()
        self._batch = images, labels

    def next(self) -> Batch:
        return self._batch

    def prepared(self, images: torch.Tensor) -> torch.Tensor:
        return images

    def close(self) -> None:
        return None


@contextmanager
def watching_loaders() -> Iterator[None]:
    """Raise JobError if a loader process dies."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        why = "one that was killed has most likely found no memory"
        raise JobError(f"a process that reads images has ended: {error}; {why}", kind="data") from error
