"""The file that holds a trained network between its training and its service: numbers alone, and no code."""

from pathlib import Path

import torch

from worker.errors import JobError
from worker.tensor_file import DAMAGED, read, write_whole
from worker.workloads.workload import Shape


def write(path: Path, shape: Shape, network: torch.nn.Module) -> None:
    """Write a network whole or not at all: who serves it must not find half of one."""
    content = {"image_px": shape.px, "channels": shape.channels, "network": network.state_dict()}
    write_whole(path, content, fsync=True)


def read_into(network: torch.nn.Module, path: Path, shape: Shape) -> None:
    """Give a network the numbers of a file. No code of the file is run. Raises JobError for a file of anything else."""
    try:
        found = read(path)
        written = Shape(found["image_px"], found["channels"])
        if written != shape:
            raise ValueError(f"it makes images of {written}, and {shape} is to be served")
        network.load_state_dict(found["network"])
    except DAMAGED as error:
        first = str(error).partition("\n")[0][:300]
        raise JobError(
            f"the model {path} cannot be served: {first}", kind="model", remedy="train it again, with the same --model"
        ) from error
