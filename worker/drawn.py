"""The digest of the data, the order and the seed of a training, of bits that every CPU computes alike.

Integers and uniform floats are such bits. Normal floats are not, which instruction sets round differently, nor is the
count of numbers that dropout takes, which depends on the vendor of the CPU: seeds and the state of generators stand for
them.
"""

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch.nn.modules.dropout import _DropoutNd

from worker.weights import update_tensor


def drawn_sha256(taken: Iterable[str], network: torch.nn.Module, device: torch.device) -> str:
    """Return the digest of a training after its last step: of the batches that it has ``taken``, and of its noise.

    Draws from the generators, and waits for the device.
    """
    digest = hashlib.sha256(f"{torch.initial_seed()}\n".encode())
    if not any(isinstance(module, _DropoutNd) for module in network.modules()):
        for kind in dict.fromkeys((torch.device("cpu"), device)):
            upcoming_draws = upcoming(torch.randint(1 << 62, (2,), device=kind))
            digest.update(upcoming_draws)
    digest.update("\n".join(taken).encode())
    return digest.hexdigest()


def upcoming(numbers: torch.Tensor) -> bytes:
    """Return integers as text. Drawn from a generator, they show its seed, and how much it has drawn before."""
    return f"{numbers.tolist()}\n".encode()


def batch_sha256(batch: Sequence[torch.Tensor], generator: torch.Generator, *, uniform: bool) -> bytes:
    """Return the digest of tensors that were drawn from the generator; of floats only if they are ``uniform``."""
    upcoming_draws = upcoming(torch.randint(1 << 62, (2,), generator=generator))
    digest = hashlib.sha256(upcoming_draws)
    for tensor in batch:
        exact = uniform or not tensor.is_floating_point()
        update_tensor(digest, "", tensor if exact else tensor.new_empty((0, *tensor.shape)))
    return digest.digest()
