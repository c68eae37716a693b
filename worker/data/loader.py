"""The input pipeline: torch's DataLoader, whose processes read, decode and crop images into memory that all share.

What a process hands over is the number of the place that it has filled: a batch is never copied or faulted in anew.
Pixels stay bytes until the training process takes them; as floats they would take four times the memory.
"""

import ctypes
import itertools
import signal
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from worker.data.batches import Batch
from worker.data.decode import Decoder
from worker.data.filler import Filler, SetDamagedError
from worker.data.normalise import CpuNormaliser, CudaNormaliser, scale_of
from worker.data.order import steps_of_epoch
from worker.data.sets import ImageSet
from worker.data.tally import LoaderUse, Tally, too_damaged
from worker.errors import JobError
from worker.spec import Data, Spec
from worker.training.numerics import Numerics

PREFETCH = 2
"""Batches that each process may be ahead: torch's own default."""
_PR_SET_PDEATHSIG = 1


def workers_of(data: Data, parts: int, part: int) -> int:
    """Return how many loader processes one device has: an equal share, and at least one where there are any."""
    share, rest = divmod(data.loader_workers, parts)
    return max(min(1, data.loader_workers), share + (part < rest))


class Loader:
    """The batches of one device of a job."""

    def __init__(self, spec: Spec, data: Data, images: ImageSet, part: int, numerics: Numerics, epoch: int = 0) -> None:
        self._workers, self._set = workers_of(data, spec.devices, part), images
        # In the hands of the processes are PREFETCH batches of each, and one in those of the trainer.
        places = self._workers * PREFETCH + 1
        self._tally = Tally(max(1, self._workers))
        decoder = Decoder(data.decoder, spec.image_px, data.crop)
        self._decoder = decoder.name if images.encoded else "none"
        filler = Filler(spec, images, decoder, part, self._tally, places)
        self._pixels, self._labels = filler.pixels, filler.labels
        processes: dict[str, Any] = {}
        if self._workers:
            start = {"multiprocessing_context": "fork", "worker_init_fn": _die_with_parent}
            processes = {"num_workers": self._workers, "prefetch_factor": PREFETCH, **start}
        # The numbers of filled places in the order of their batches, without end. The processes are started first: what
        # they are copies of has not met CUDA yet.
        self._places: Iterator[int] | None = iter(
            DataLoader(filler, batch_size=None, sampler=itertools.count(epoch * filler.epoch_steps), **processes)
        )
        self._on_cpu = self._on_cuda = None
        scale = scale_of(spec.load_workload().pixels, spec.shape.channels)
        if spec.device == "cuda":
            self._on_cuda = CudaNormaliser(numerics, f"cuda:{part}", scale)
            for pinned in (self._pixels, self._labels):
                # torch annotates no part of its way to the CUDA runtime.
                runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
                torch.cuda.check_error(runtime.cudaHostRegister(pinned.data_ptr(), pinned.nbytes, 0))
        else:
            self._on_cpu = CpuNormaliser(spec.batch, spec.image_px, numerics, torch.get_num_threads(), scale)

    def next(self) -> Batch:
        """Return the next batch. Raises JobError when hardly any image of the set can be decoded."""
        if self._places is None:
            raise RuntimeError("the loader is closed")
        try:
            place = next(self._places)
        except SetDamagedError as error:
            use = self.close()
            raise too_damaged(use.damaged, use.images_read, use.damaged_files) from error
        images = self._pixels[place]
        return self._on_cpu(images) if self._on_cpu else images, self._labels[place]

    def prepared(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images as floats: on CUDA bytes are copied, a quarter of the size, and converted on the device."""
        return self._on_cuda(images) if self._on_cuda else images

    def close(self) -> LoaderUse:
        """End the processes. Harmless when repeated."""
        self._tally.stop()
        places, self._places = self._places, None
        # torch does this itself when nothing holds its iterator any more; but an error on its way does, by its frames.
        if end := getattr(places, "_shutdown_workers", None):
            end()
        if self._on_cpu:
            self._on_cpu.close()
        return self._tally.use(self._decoder, self._workers, self._set.loaded_bytes, self._set.name)


def check_size(images: ImageSet, spec: Spec) -> None:
    """Raise JobError for a set of less than one batch."""
    wanted = spec.batch * spec.devices
    if len(images) < wanted:
        raise JobError(
            f"the data set has {len(images)} images, and one step takes {wanted}; a smaller --batch needs fewer",
            kind="data",
        )
    if spec.epochs and spec.steps != (steps := spec.epochs * steps_of_epoch(len(images), wanted)):
        raise JobError(f"{spec.epochs} epochs of the data set are {steps} steps, and not {spec.steps}", kind="data")


def _die_with_parent(_process: int) -> None:
    # It holds the descriptors of the training process: were that killed, its end would not be seen.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
