"""Checkpoints: all that a training goes on from, written after an epoch, whole or not at all.

A training whose directory holds a checkpoint goes on from it: a training that was killed and goes on ends with the
weights of one that was never stopped, on the CPU bit for bit.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch

from worker.protocol import JobError
from worker.spec import Checkpointing, Spec
from worker.training.trainer import Single
from worker.weights import DAMAGED, read_tensors, write_whole

FILE = "checkpoint.pt"
_IDENTITY = (
    "workload",
    "batch",
    "image_px",
    "channels",
    "recipe",
    "seed",
    "steps",
    "epochs",
    "learning_rate",
    "device",
)
"""What of a specification a training must share with the one that it goes on from."""
_ANOTHER = "empty the directory to begin anew, or name another"


class CheckpointStore:
    """The checkpoints of one training. ``epochs`` of it have ended, some of them perhaps in a process before this."""

    def __init__(self, spec: Spec, directory: Path, *, fsync: bool) -> None:
        self._spec = spec
        self._path = directory / FILE
        self._fsync = fsync
        self._found = self._read() if self._path.exists() else None
        self.epochs: int = self._found["epochs"] if self._found else 0
        self._seconds: list[float] = []

    def attach(self, trainer: Single) -> None:
        """Take the trainer, whose training goes on from the checkpoint if there is one. Raises JobError."""
        self._workload = trainer.workload
        self._training = trainer.training
        if self._found is None:
            return
        try:
            self._workload.restore(self._training, self._found["training"])
        except DAMAGED as error:
            raise JobError(f"{self._path} holds other networks: {error}", kind="checkpoint", remedy=_ANOTHER) from error
        set_random_states(self._found["random"])

    def write(self) -> None:
        """Write the state after one more epoch in place of the one before."""
        self.epochs += 1
        begin_s = time.monotonic()
        content = {
            "identity": _identity(self._spec),
            "epochs": self.epochs,
            "training": self._workload.checkpoint(self._training),
            "random": random_states(),
        }
        try:
            write_whole(self._path, content, fsync=self._fsync)
        except (OSError, RuntimeError) as error:
            message = f"the checkpoint cannot be written to {self._path.parent}: {error}"
            raise JobError(message, kind="checkpoint", remedy="see how much room there is, or leave it out") from error
        self._seconds.append(time.monotonic() - begin_s)

    def said(self) -> dict[str, object]:
        """Return fields of ``records.Checkpoints``: the seconds of each that this process wrote, and the size."""
        return {"seconds": self._seconds, "size_bytes": self._path.stat().st_size}

    def _read(self) -> dict[str, Any]:
        """Return the checkpoint. Raises JobError for one that is damaged, or of another training."""
        try:
            # The tensors reach the device with the networks that they are loaded into.
            content = read_tensors(self._path)
            stored = content["identity"]
            expected = _identity(self._spec)
            others = [
                f"{name} {stored[name]!r}, not {expected[name]!r}"
                for name in expected
                if stored[name] != expected[name]
            ]
        except DAMAGED as error:
            raise JobError(
                f"{self._path} is no whole checkpoint: {type(error).__name__}", kind="checkpoint", remedy=_ANOTHER
            ) from error
        if others:
            stored = f"{self._path} is a checkpoint of another training: {', '.join(others)}"
            raise JobError(stored, kind="checkpoint", remedy=_ANOTHER)
        return content


@contextmanager
def opened(given: Checkpointing | None, spec: Spec) -> Iterator[CheckpointStore | None]:
    """Open the checkpoints of a job, in a temporary directory if none is given. None where the job has none."""
    if given is None:
        yield None
        return
    with TemporaryDirectory(prefix="virtbench-checkpoint-") as temporary:
        yield CheckpointStore(spec, Path(given.directory or temporary), fsync=given.mode == "fsync")


def random_states() -> dict[str, Any]:
    """Return the states of all random generators, in types that can be read without running code."""
    name, numbers, *rest = cast(tuple[Any, ...], np.random.get_state())
    return {
        "python": random.getstate(),
        "numpy": (name, numbers.tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])


def _identity(spec: Spec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in _IDENTITY}
