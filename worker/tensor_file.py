"""Files that hold tensors: written whole or not at all, and read without running code of theirs."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

DAMAGED = (RuntimeError, pickle.UnpicklingError, EOFError, OSError, LookupError, ValueError, TypeError, AttributeError)
"""The exceptions of reading a file of anything else, or of giving a network what it holds."""


def write_whole(path: Path, content: Mapping[str, object], *, fsync: bool) -> None:
    """Write a file in place of the one before; with ``fsync`` it is on the disk, under its name, on return."""
    half = path.with_name(path.name + ".part")
    with half.open("wb") as file:
        torch.save(content, file)
        if fsync:
            file.flush()
            os.fsync(file.fileno())
    half.replace(path)
    if fsync:
        _sync(path.parent)


def read(path: Path) -> dict[str, Any]:
    """Return what a file holds, on the CPU. Raises an exception of ``DAMAGED``."""
    found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return found


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
