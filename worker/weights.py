"""The digest of a network's weights, by which two trainings, or two files of a model, prove that they are the same."""

import hashlib

import torch


def weights_sha256(network: torch.nn.Module) -> str:
    """Return the SHA-256 of all weights and statistics: in the order of their names, each with its type and shape.

    The bytes are those of the numbers in row order: neither the device nor the memory format matters.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            plain = (tensor if tensor.layout == torch.strided else tensor.to_dense()).cpu().contiguous()
            digest.update(f"{name} {plain.dtype} {list(plain.shape)}\n".encode())
            digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
