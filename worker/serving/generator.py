"""A trained or fresh generator of images or tokens, and the file of a trained one: numbers, no code.

The only place in which images become pixels, and pixels a PNG: for a service, and as the last part of a training.
"""

import hashlib
import io
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.overrides import TorchFunctionMode

from suite.untrusted.grid import MOST_PIXEL_BYTES, MOST_PNG_BYTES
from worker.data.decode import scale_of
from worker.probes.probe import Measured, Reading, median
from worker.protocol import JobError
from worker.spec import GeneratorSpec
from worker.training.build import build_network
from worker.training.device import Device
from worker.weights import DAMAGED, read_tensors, weights_sha256, write_whole
from worker.workloads.workload import GENERATING, Shape, Workload

Pixels: TypeAlias = npt.NDArray[np.uint8]
BATCH = 64
MOST_SHOWN = 16
COLUMNS = 4
"""The images that are made at a time; the most that a grid shows, and that are timed one by one; those of its rows."""
_OTHER_NUMBERS = 1 << 31
"""Added to the seed of a trial: the first weights are drawn from the same numbers as they are."""


@dataclass(frozen=True)
class Generator:
    """A network of a workload that generates. Several threads may call it at once: each seed is of its call alone."""

    workload: Workload
    network: torch.nn.Module
    shape: Shape
    training: Mapping[str, object] = field(default_factory=dict)
    """What the training took, as its file tells."""

    @classmethod
    def loaded(cls, spec: GeneratorSpec, device: Device) -> "Generator":
        """Return one with the weights of the model's file, or without one drawn from the seed. Raises JobError."""
        workload = spec.load_workload()
        network = build_network(workload, spec.shape, spec.seed)
        training = {}
        if spec.model_file:
            training = read_model(
                network,
                Path(spec.model_file),
                spec.shape,
                workload.image_network,
                spec.weights_sha256,
            )
        placed = network.to(device.torch)
        return cls(workload, placed.eval(), spec.shape, training)

    def __call__(self, seed: int | None = None) -> bytes:
        with drawing(seed, self.network):
            return encode_png(self.pixels(1)[0])

    def pixels(self, count: int) -> Pixels:
        """Return so many new images: their bytes by image, row, column and channel."""
        with torch.inference_mode():
            images = self.workload.generate(self.network, count)
            if not isinstance(images, torch.Tensor):
                images = torch.stack(tuple(images))
        return to_pixels(images, self.workload, self.shape)

    def tokens(self, seed: int | None = None) -> Iterator[bytes]:
        """Yield the tokens of a new sequence, a line each, as they are decoded."""
        with drawing(seed, self.network):
            tokens = self.workload.generate(self.network, 1)
            return (b"%d\n" % int(token) for token in tokens)

    def measured(self, count: int, seed: int) -> dict[str, Any]:
        """Generate images as the last part of a training: one, then ``count`` in batches, then one by one.

        Returns the ``metrics``, and as ``generated`` the images of the batches: ``records.Generated``. The random
        generators of the training, and its network, are left as they were.
        """

        def timed(images: int) -> tuple[Pixels, float]:
            begin_s = time.monotonic()
            pixels = self.pixels(images)
            return pixels, time.monotonic() - begin_s

        digest = hashlib.sha256()
        png = None
        rates_per_s: list[float] = []
        single_s: list[float] = []
        self.network.eval()
        with torch.random.fork_rng():
            torch.manual_seed(seed + _OTHER_NUMBERS)
            _, first_s = timed(1)
            for begin in range(0, count, BATCH):
                pixels, batch_s = timed(min(BATCH, count - begin))
                png = png if begin else grid(pixels)
                digest.update(pixels.tobytes())
                rates_per_s.append(len(pixels) / batch_s)
            for _ in range(min(MOST_SHOWN, count)):
                _, image_s = timed(1)
                single_s.append(image_s)
        self.network.train()
        first = Reading(first_s, "s", "less")
        rate = median(rates_per_s, "images/s", "more")
        generated = {
            "images": count,
            "weights_sha256": weights_sha256(self.network.get_submodule(self.workload.image_network)),
            "pixels_sha256": digest.hexdigest(),
            "png": b64encode(png).decode() if png else None,
        }
        values = (first, rate, median(single_s, "s", "less"))
        metrics = dict(zip(GENERATING, values, strict=True))
        return {"metrics": Measured(metrics).columns(), "generated": generated}


def to_pixels(images: torch.Tensor, workload: Workload, shape: Shape) -> Pixels:
    """Return the bytes of images in the scale of a workload, by image, row, column and channel."""
    moments = scale_of(workload.pixels, shape.channels)
    mean = torch.from_numpy(moments[0])
    factor = torch.from_numpy(moments[1])
    planes = images.detach()
    floats = planes.float().cpu().permute(0, 2, 3, 1)
    levels = (floats / factor + mean).round()
    pixels: Pixels = levels.clamp(0, 255).to(torch.uint8).numpy()
    return pixels


class SeededDraws(TorchFunctionMode):
    """Draws what this thread draws from one generator: torch's default one is shared by all threads."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Call a function of torch; see its class."""
        keywords = dict(kwargs or {})
        if function in (torch.randn, torch.rand, torch.randint):
            keywords["generator"] = self._generator
        return function(*args, **keywords)


def drawing(seed: int | None, network: torch.nn.Module) -> AbstractContextManager[object]:
    """Return what makes the draws of this thread those of the seed; nothing without one."""
    if seed is None:
        return nullcontext()
    device = next(network.parameters()).device
    generator = torch.Generator(device)
    generator.manual_seed(seed)
    return SeededDraws(generator)


def encode_png(pixels: Pixels) -> bytes:
    out = io.BytesIO()
    if pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    file_image = Image.fromarray(pixels)
    file_image.save(out, format="PNG")
    return out.getvalue()


def grid(images: Pixels) -> bytes | None:
    """Return the first images as one PNG, in rows of ``COLUMNS``: as many as its bounds allow; None if not even one."""
    height, width, channels = images.shape[1:]
    counts = (*range(MOST_SHOWN, 0, -COLUMNS), 3, 2, 1)
    for count in filter(len(images).__ge__, counts):
        columns = min(count, COLUMNS)
        grid = images[:count].reshape(-1, columns, height, width, channels)
        rows = grid.swapaxes(1, 2)
        drawn = rows.reshape(-1, columns * width, channels)
        # Each row of a PNG begins with the number of its filter.
        pixel_bytes = drawn.nbytes + len(drawn)
        if pixel_bytes <= MOST_PIXEL_BYTES:
            png = encode_png(drawn)
            if len(png) <= MOST_PNG_BYTES:
                return png
    return None


def write_model(path: Path, shape: Shape, network: torch.nn.Module, training: Mapping[str, object]) -> None:
    """Write a network, with what its training took, whole or not at all: who serves it must not find half of one."""
    content = {**model_content(shape, network), "training": training}
    write_whole(path, content, fsync=True)


def model_content(shape: Shape, network: torch.nn.Module) -> dict[str, object]:
    return {"image_px": shape.px, "channels": shape.channels, "network": network.state_dict()}


def read_model(
    network: torch.nn.Module,
    path: Path,
    shape: Shape,
    part: str = "",
    digest: str | None = None,
) -> dict[str, object]:
    """Give a network the numbers of a file, and return what it tells of the training. No code of the file is run.

    The file may hold the ``part`` that makes the images alone, as a kept model does. Raises JobError for a file of
    anything else, and for other weights of the part than those of the ``digest``.
    """
    try:
        content = read_tensors(path)
        written = Shape(content["image_px"], content["channels"])
        if written != shape:
            raise ValueError(f"it makes images of {written}, and {shape} is to be served")
        of_part = network.get_submodule(part)
        expected = of_part.state_dict().keys()
        weights = content["network"]
        if weights.keys() == expected:
            of_part.load_state_dict(weights)
        else:
            network.load_state_dict(weights)
        loaded_sha256 = weights_sha256(of_part)
        if digest not in (None, loaded_sha256):
            raise ValueError(f"it was changed: its weights have the digest {loaded_sha256}")
        return dict(content.get("training", {}))
    except DAMAGED as error:
        first_line, *_ = str(error).split("\n")
        message = f"the model {path} cannot be served: {first_line[:300]}"
        raise JobError(message, kind="model", remedy="train it again, with the same --model") from error
