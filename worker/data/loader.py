"""The input pipeline: torch's DataLoader, whose processes read, decode and crop images into memory that all share.

A process hands over the number of the slot that it has filled: a batch is never copied or faulted in anew. Pixels stay
bytes until the training process takes them; as floats they would take four times the memory.
"""

import ctypes
import hashlib
import itertools
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch.utils.data import DataLoader, Dataset, get_worker_info

from worker.data.batches import Batch, LoaderUse, Tally, shared, too_damaged
from worker.data.decode import CpuNormaliser, CudaNormaliser, DecodeError, Decoder, scale_of
from worker.data.kinds.kind import DataSetError
from worker.data.listing import entries_of, identify
from worker.data.sets import ImageSet, Order, steps_of_epoch
from worker.protocol import JobError
from worker.spec import Data, Spec
from worker.training.device import Numerics, timing_event

_MOST_SUBSTITUTES = 100
PREFETCH = 2
"""Batches that each process may be ahead: torch's own default."""
_PR_SET_PDEATHSIG = 1


def open_images(data: Data) -> ImageSet:
    """Open the set. Raises JobError of kind ``data`` for a directory that does not hold it."""
    kind = data.load_kind()
    try:
        root = kind.root(Path(data.directory))
        images = kind.open(root, data.frame_stride)
    except (OSError, DataSetError) as error:
        remedy = getattr(error, "remedy", None)
        raise JobError(
            f"{data.directory} is no readable data set of kind {kind.name}: {error}", kind="data", remedy=remedy
        ) from error
    if not len(images):
        raise JobError(f"{data.directory} holds no images", kind="data")
    return images


def identified(spec: Spec, data: Data) -> tuple[Spec, dict[str, object]]:
    """Return a job with its steps counted, and the facts that identify its data set. Raises as ``open_images``."""
    kind = data.load_kind()
    images = len(open_images(data))
    root = kind.root(Path(data.directory))
    digest, sha256 = identify(root, [*entries_of(root)])
    steps = spec.steps or (spec.epochs or 1) * steps_of_epoch(images, spec.batch)
    return replace(spec, steps=steps), {
        "kind": kind.name,
        "images": images,
        "digest": digest,
        "sha256": sha256,
    }


class SetDamagedError(Exception):
    """Too many files in a row could not be decoded; the rest is not tried."""


class Filler(Dataset[int]):
    """Fills places with batches, in one of the loader's processes or in the training process itself.

    Batch ``number`` of device ``part`` is a fixed stretch of an epoch, and a crop depends on the seed, the epoch and
    the place in it alone: how many processes share the work changes nothing.
    """

    def __init__(
        self,
        spec: Spec,
        images: ImageSet,
        decoder: Decoder,
        part: int,
        tally: Tally,
        places: int,
    ) -> None:
        self.pixels = torch.from_numpy(
            shared((places, spec.batch, spec.shape.px, spec.shape.px, spec.shape.channels), np.uint8)
        )
        numbers = shared((places, spec.batch), np.int64)
        self.labels = torch.from_numpy(numbers)
        self.checksums = shared((places, spec.batch), np.uint32)
        self._spec = spec
        self._images = images
        self._decoder = decoder
        self._part = part
        self._tally = tally
        self._order = Order(len(images), spec.seed)
        self.epoch_steps = steps_of_epoch(len(images), spec.batch * spec.devices)

    def __getitem__(self, number: int) -> int:
        """Fill the place of a batch, and return which it is."""
        info = get_worker_info()
        process = info.id if info else 0
        batch = self._spec.batch
        slot = number % len(self.pixels)
        epoch, step = divmod(number, self.epoch_steps)
        first = (step * self._spec.devices + self._part) * batch
        for nth in range(batch):
            if self._tally.stopped(process):
                break
            into = self.pixels[slot, nth]
            filled = self._fill(process, epoch, first + nth, into)
            self.labels[slot, nth], self.checksums[slot, nth] = filled
        return slot

    def _fill(self, process: int, epoch: int, place: int, into: torch.Tensor) -> tuple[int, int]:
        """Read an image, or the next of the set where that one is damaged. Returns its label, and the checksum.

        The checksum is of its content before decoding, its place in the set, its label and the seed of its crop.
        Raises SetDamagedError.
        """
        first = self._order.index(epoch, place)
        seed = self._order.crop_seed(epoch, place)
        most = min(_MOST_SUBSTITUTES, len(self._images))
        for index in range(first, first + most):
            index %= len(self._images)
            try:
                data = self._images.read(index)
                self._tally.read(process, len(data) if isinstance(data, bytes) else 0)
                self._tally.decoded(process, self._decoder.crop(data, seed, into))
            except (OSError, DecodeError):
                self._tally.damaged(process, index)
            else:
                label = self._images.label(index)
                seeded = zlib.crc32(f"{index} {label} {seed}".encode())
                return label, zlib.crc32(bytes(data), seeded)
        raise SetDamagedError


def workers_of(data: Data, parts: int, part: int) -> int:
    """Return how many loader processes one device has: an equal share, and at least one where there are any."""
    share, rest = divmod(data.loader_workers, parts)
    workers = share + (part < rest)
    return max(min(1, data.loader_workers), workers)


class Loader:
    def __init__(
        self,
        spec: Spec,
        data: Data,
        images: ImageSet,
        part: int,
        numerics: Numerics,
        epoch: int = 0,
    ) -> None:
        self._workers = workers_of(data, spec.devices, part)
        self._set = images
        # In the hands of the processes are PREFETCH batches of each, and one in those of the trainer.
        places = self._workers * PREFETCH + 1
        self._tally = Tally(max(1, self._workers))
        decoder = Decoder(data.decoder, spec.shape.px, data.crop)
        filler = Filler(spec, images, decoder, part, self._tally, places)
        self._pixels = filler.pixels
        self._labels = filler.labels
        self._checksums = filler.checksums
        self._taken = hashlib.sha256()
        processes: dict[str, Any] = {}
        if self._workers:
            start = {"multiprocessing_context": "fork", "worker_init_fn": _die_with_parent}
            processes = {"num_workers": self._workers, "prefetch_factor": PREFETCH, **start}
        # The numbers of filled places in the order of their batches, without end. The processes use no CUDA: after a
        # fork it would be broken.
        self._places: Iterator[int] | None = iter(
            DataLoader(filler, batch_size=None, sampler=itertools.count(epoch * filler.epoch_steps), **processes)
        )
        self._on_cpu = self._on_cuda = self._copied = None
        scale = scale_of(spec.load_workload().pixels, spec.shape.channels)
        if spec.device == "cuda":
            self._on_cuda = CudaNormaliser(numerics, f"cuda:{part}", scale)
            self._copied = timing_event()
            for pinned in (self._pixels, self._labels):
                # torch annotates no part of its way to the CUDA runtime.
                runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
                status = runtime.cudaHostRegister(pinned.data_ptr(), pinned.nbytes, 0)
                torch.cuda.check_error(status)
        else:
            threads = torch.get_num_threads()
            self._on_cpu = CpuNormaliser(spec.batch, spec.shape.px, numerics, threads, scale)

    def next(self) -> Batch:
        if self._places is None:
            raise RuntimeError("the loader is closed")
        if self._copied:
            # The next batch frees the memory of the last one, from which a copy may still read.
            self._copied.synchronize()
        try:
            slot = next(self._places)
        except SetDamagedError as error:
            use = self.close()
            raise too_damaged(use.damaged, use.images_read, use.damaged_files) from error
        images = self._pixels[slot]
        self._taken.update(self._checksums[slot].data)
        return self._on_cpu(images) if self._on_cpu else images, self._labels[slot]

    def prepared(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images as floats: on CUDA bytes are copied, a quarter of the size, and converted on the device."""
        if self._on_cuda is None or self._copied is None:
            return images
        self._copied.record(torch.cuda.current_stream(images.device))
        return self._on_cuda(images)

    def taken_sha256(self) -> str:
        return self._taken.hexdigest()

    def close(self) -> LoaderUse:
        """End the processes. Harmless when repeated."""
        self._tally.stop()
        places = self._places
        self._places = None
        # torch does this itself when nothing holds its iterator any more; but an error on its way does, by its frames.
        end = getattr(places, "_shutdown_workers", None)
        if end:
            end()
        if self._on_cpu:
            self._on_cpu.close()
        return self._tally.use(self._workers, self._set.loaded_bytes, self._set.name)


def check_size(images: ImageSet, spec: Spec) -> None:
    """Raise JobError for a set of less than one batch."""
    wanted = spec.batch * spec.devices
    of_step = wanted * spec.batches
    if len(images) < wanted:
        raise JobError(
            f"the data set has {len(images)} images, and one step takes {wanted}; a smaller --batch needs fewer",
            kind="data",
        )
    if spec.epochs and spec.steps != (steps := spec.epochs * steps_of_epoch(len(images), of_step)):
        raise JobError(f"{spec.epochs} epochs of the data set are {steps} steps, and not {spec.steps}", kind="data")


def _die_with_parent(_process: int) -> None:
    # It holds the descriptors of the training process: were that killed, its end would not be seen.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
