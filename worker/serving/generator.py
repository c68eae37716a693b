"""A trained or fresh generator that makes one PNG at a time."""

import io
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from worker.data.normalise import scale_of
from worker.serving.model_file import read_into
from worker.spec import ServeSpec
from worker.training.device import Device
from worker.training.models import build_network
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
            read_into(network, Path(spec.model_file), spec.shape)
        return cls(workload, network.to(device.torch).eval(), spec.shape)

    def __call__(self) -> bytes:
        """Return a new image as PNG."""
        with torch.inference_mode():
            (made,) = self.workload.generate(self.network, 1).float().cpu()
        mean, factor = (torch.from_numpy(each) for each in scale_of(self.workload.pixels, self.shape.channels))
        pixels = (made.permute(1, 2, 0) / factor + mean).round().clamp(0, 255).to(torch.uint8).numpy()
        out = io.BytesIO()
        Image.fromarray(pixels[..., 0] if self.shape.channels == 1 else pixels).save(out, format="PNG")
        return out.getvalue()
