"""A trained or fresh generator of images or tokens, and the file of a trained one: numbers, no code."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from worker.data.decode import scale_of
from worker.protocol import JobError
from worker.spec import ServeSpec
from worker.training.build import build_network
from worker.training.device import Device
from worker.weights import DAMAGED, read_tensors, write_whole
from worker.workloads.workload import Shape, Workload


@dataclass(frozen=True)
class Generator:
    """A network of a workload that generates. Several threads may call it at once: it changes nothing but the seed."""

    workload: Workload
    network: torch.nn.Module
    shape: Shape

    @classmethod
    def loaded(cls, spec: ServeSpec, device: Device) -> "Generator":
        """Return one with the weights of the model's file, or without one drawn from the seed. Raises JobError."""
        workload = spec.load_workload()
        network = build_network(workload, spec.shape, spec.seed)
        if spec.model_file:
            read_model(network, Path(spec.model_file), spec.shape)
        return cls(workload, network.to(device.torch).eval(), spec.shape)

    def __call__(self) -> bytes:
        """Return a new image as PNG."""
        with torch.inference_mode():
            (image,) = self.workload.generate(self.network, 1)
            made = image.float().cpu()
        mean, factor = (torch.from_numpy(each) for each in scale_of(self.workload.pixels, self.shape.channels))
        pixels = (made.permute(1, 2, 0) / factor + mean).round().clamp(0, 255).to(torch.uint8).numpy()
        out = io.BytesIO()
        Image.fromarray(pixels[..., 0] if self.shape.channels == 1 else pixels).save(out, format="PNG")
        return out.getvalue()

    def tokens(self) -> Iterator[bytes]:
        """Yield the tokens of a new sequence, a line each, as they are decoded."""
        return (b"%d\n" % int(token) for token in self.workload.generate(self.network, 1))


def write_model(path: Path, shape: Shape, network: torch.nn.Module) -> None:
    """Write a network whole or not at all: who serves it must not find half of one."""
    content = {"image_px": shape.px, "channels": shape.channels, "network": network.state_dict()}
    write_whole(path, content, fsync=True)


def read_model(network: torch.nn.Module, path: Path, shape: Shape) -> None:
    """Give a network the numbers of a file. No code of the file is run. Raises JobError for a file of anything else."""
    try:
        found = read_tensors(path)
        written = Shape(found["image_px"], found["channels"])
        if written != shape:
            raise ValueError(f"it makes images of {written}, and {shape} is to be served")
        network.load_state_dict(found["network"])
    except DAMAGED as error:
        first = str(error).partition("\n")[0][:300]
        raise JobError(
            f"the model {path} cannot be served: {first}", kind="model", remedy="train it again, with the same --model"
        ) from error
