"""Weights of networks: their digest, and files that are written whole or not at all and read without running code.

By the digest two trainings, or two files of a model, prove that they are the same. The digest of the data, the order
and the seed is of bits that every CPU computes alike: integers and uniform floats. Normal floats are not, which
instruction sets round differently, nor is the count of numbers that dropout takes, which depends on the vendor of the
CPU: seeds and the state of generators stand for them.
"""

import hashlib
import os
import pickle
import stat
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

DAMAGED = (
    RuntimeError,
    pickle.UnpicklingError,
    EOFError,
    OSError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    zipfile.BadZipFile,
)
"""The exceptions of reading a file of anything else, or of giving a network what it holds."""


def weights_sha256(network: torch.nn.Module) -> str | None:
    """Return the SHA-256 of all weights and statistics: in the order of their names, each with its type and shape.

    The bytes are those of the numbers in row order: neither the device nor the memory format matters. None of a network
    without weights: all such networks would be equal, and prove nothing.
    """
    state = network.state_dict()
    if not state:
        return None
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        if isinstance(tensor, torch.Tensor):
            update_tensor(digest, name, tensor)
    return digest.hexdigest()


def update_tensor(digest: "hashlib._Hash", name: str, tensor: torch.Tensor) -> None:
    """Add a tensor to a digest: its name, type, shape and bytes in row order."""
    dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
    plain = dense.cpu().contiguous()
    header = f"{name} {plain.dtype} {list(plain.shape)}\n"
    digest.update(header.encode())
    content = plain.reshape(-1).view(torch.uint8)
    digest.update(content.numpy().data)


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
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_tensors(path: Path) -> dict[str, Any]:
    """Return what a regular file holds, on the CPU. Raises an exception of ``DAMAGED``."""
    # A pipe is not waited for, and a link is not followed: whoever trained may have put it there.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
                if compressed or sum(entry.file_size for entry in entries) > status.st_size:
                    raise ValueError("it is a compressed archive, whose content is larger than the file")
                if archive.testzip():  # torch does not look at the checksums that it writes
                    raise ValueError("it is damaged: a checksum differs")
        file.seek(0)
        try:
            content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, EOFError, LookupError) as error:  # torch's text advises to run its code
            raise ValueError("it is damaged, or holds more than numbers") from error
        return content


def drawn_sha256(taken: Iterable[str], network: torch.nn.Module, device: torch.device) -> str:
    """Return the digest of a training after its last step: of the batches that it has ``taken``, and of its noise.

    Draws from the generators, and waits for the device.
    """
    digest = hashlib.sha256(f"{torch.initial_seed()}\n".encode())
    if not any(isinstance(module, _DropoutNd) for module in network.modules()):
        for kind in dict.fromkeys((torch.device("cpu"), device)):
            numbers = torch.randint(1 << 62, (2,), device=kind)
            digest.update(upcoming(numbers))
    digest.update("\n".join(taken).encode())
    return digest.hexdigest()


def upcoming(numbers: torch.Tensor) -> bytes:
    """Return integers as text. Drawn from a generator, they show its seed, and how much it has drawn before."""
    return f"{numbers.tolist()}\n".encode()


def batch_sha256(batch: Sequence[torch.Tensor], generator: torch.Generator, *, uniform: bool) -> bytes:
    """Return the digest of tensors that were drawn from the generator; of floats only if they are ``uniform``."""
    numbers = torch.randint(1 << 62, (2,), generator=generator)
    digest = hashlib.sha256(upcoming(numbers))
    for tensor in batch:
        exact = uniform or not tensor.is_floating_point()
        content = tensor if exact else tensor.new_empty((0, *tensor.shape))
        update_tensor(digest, "", content)
    return digest.digest()
