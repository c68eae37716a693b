"""The batches of a job, those that are drawn from the seed, and the account of what was read for the others."""

import hashlib
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from worker.protocol import JobError
from worker.spec import Spec
from worker.training.device import Numerics
from worker.weights import batch_sha256
from worker.workloads.workload import Workload, line_of

NAMED = 5
"""The most damaged files that are named."""
_MOST_DAMAGED_SHARE = 0.01
_FEW_DAMAGED = 3
DECODERS = ("simplejpeg", "pillow", "none")
_IMAGES, _BYTES, _DAMAGED, _STOPPED, _DECODED = range(5)
_FIRST = _DECODED + len(DECODERS)
Batch = tuple[torch.Tensor, torch.Tensor]
SEED_STRIDE = 1_000_003
"""Between the seeds of devices and of workers, which draw from generators of their own: those of trials are closer."""


@dataclass(frozen=True)
class LoaderUse:
    """The fields of ``records.DataUse`` that a job measures."""

    decoder: str
    """The libraries that decoded the images: of ``auto`` the second takes what the first refuses."""
    loader_workers: int
    images_read: int
    bytes_read: int
    damaged: int
    damaged_files: list[str]


def shared(shape: tuple[int, ...], kind: type) -> np.ndarray[Any, Any]:
    """Return an array that forked processes share. It takes nothing of /dev/shm, of which a container has little."""
    elements = int(np.prod(shape))
    element_bytes = np.dtype(kind).itemsize
    anonymous = mmap.mmap(-1, elements * element_bytes)
    return np.frombuffer(anonymous, dtype=kind).reshape(shape)


class Tally:
    """A row for each process, so that nobody waits for anybody."""

    def __init__(self, processes: int) -> None:
        self._rows = shared((processes, _FIRST + NAMED), np.int64)
        self._rows[:, _FIRST:] = -1

    def read(self, process: int, size_bytes: int) -> None:
        self._rows[process, _IMAGES] += 1
        self._rows[process, _BYTES] += size_bytes

    def decoded(self, process: int, decoder: str) -> None:
        self._rows[process, _DECODED + DECODERS.index(decoder)] += 1

    def damaged(self, process: int, index: int) -> None:
        row = self._rows[process]
        row[_DAMAGED] += 1
        free = np.flatnonzero(row[_FIRST:] < 0)
        if len(free) and index not in row[_FIRST:]:
            row[_FIRST + free[0]] = index

    def stop(self) -> None:
        """Tell the processes that nobody waits for their batches any more."""
        self._rows[:, _STOPPED] = 1

    def stopped(self, process: int) -> bool:
        return bool(self._rows[process, _STOPPED])

    def use(self, loader_workers: int, loaded_bytes: int, name: Callable[[int], str]) -> LoaderUse:
        """Return what was read so far. ``loaded_bytes`` were read before; ``name`` gives the file of an image."""
        images = self._rows[:, _IMAGES].sum()
        size_bytes = self._rows[:, _BYTES].sum()
        damaged = self._rows[:, _DAMAGED].sum()
        indices = {int(index) for index in self._rows[:, _FIRST:].flat if index >= 0}
        first = sorted(indices)[:NAMED]
        counts = self._rows[:, _DECODED:_FIRST].sum(0)
        used = (name for name, count in zip(DECODERS, counts, strict=True) if count)
        decoder = " and ".join(used) or DECODERS[-1]
        return LoaderUse(
            decoder=decoder,
            loader_workers=loader_workers,
            images_read=int(images),
            bytes_read=loaded_bytes + int(size_bytes),
            damaged=int(damaged),
            damaged_files=[name(index) for index in first],
        )


def together(uses: Sequence[LoaderUse]) -> LoaderUse:
    """Return the use of several loaders as one. Raises JobError when more of it is damaged than a result can bear."""
    images = sum(use.images_read for use in uses)
    damaged = sum(use.damaged for use in uses)
    names: list[str] = []
    for use in uses:
        names += use.damaged_files
    distinct_names = list(dict.fromkeys(names))
    files = distinct_names[:NAMED]
    if damaged > _FEW_DAMAGED and damaged > _MOST_DAMAGED_SHARE * images:
        raise too_damaged(damaged, images, files)
    used = " ".join(use.decoder for use in uses)
    return LoaderUse(
        decoder=" and ".join(name for name in DECODERS if name in used),
        loader_workers=sum(use.loader_workers for use in uses),
        images_read=images,
        bytes_read=sum(use.bytes_read for use in uses),
        damaged=damaged,
        damaged_files=files,
    )


def too_damaged(damaged: int, images: int, files: Sequence[str]) -> JobError:
    return JobError(
        f"{damaged} of {images} images read could not be decoded, such as {', '.join(files)}; "
        f"{_MOST_DAMAGED_SHARE:.0%} is borne",
        kind="data",
    )


class Batches(Protocol):
    def next(self) -> Batch:
        """Images and labels. They stay as they are until the next ones are taken."""

    def prepared(self, images: torch.Tensor) -> torch.Tensor:
        """Return what the network takes, from images that have been brought to their device."""

    def taken_sha256(self) -> str:
        """Return the digest of all batches so far, in their order, of bits that every CPU computes alike."""

    def close(self) -> LoaderUse | None:
        """End what makes the batches. Returns what was read for them; None where nothing is read."""


def _drawn(workload: Workload, spec: Spec, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch that a workload draws. Raises TypeError for what is not two tensors."""
    batch: object = workload.draw(spec.batch, spec.shape, generator)
    parts = batch if isinstance(batch, tuple) else (batch,)
    kinds = [type(part).__name__ for part in parts]
    if len(parts) != 2 or not all(isinstance(part, torch.Tensor) for part in parts):
        where = line_of(type(workload).draw)
        raise TypeError(
            f"draw ({where}) returns ({', '.join(kinds)}): return two tensors, inputs and labels; stack what else a "
            "sequence has, such as its mask"
        )
    inputs, labels = parts
    return inputs, labels


class SyntheticBatches:
    """The same random batch again and again."""

    def __init__(self, spec: Spec, number: int, numerics: Numerics) -> None:
        generator = torch.Generator().manual_seed(spec.seed + SEED_STRIDE * number)
        workload = spec.load_workload()
        images, labels = _drawn(workload, spec, generator)
        uniform = type(workload).draw is Workload.draw
        self._taken = hashlib.sha256()
        self._content = batch_sha256((images, labels), generator, uniform=uniform)
        if numerics.channels_last and images.dim() == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        if spec.device == "cuda":  # as those of a data set
            images = images.pin_memory()
            labels = labels.pin_memory()
        self._batch = images, labels

    def next(self) -> Batch:
        self._taken.update(self._content)
        return self._batch

    def prepared(self, images: torch.Tensor) -> torch.Tensor:
        return images

    def taken_sha256(self) -> str:
        return self._taken.hexdigest()

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
