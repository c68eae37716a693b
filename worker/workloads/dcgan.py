"""DCGAN: as PyTorch's example has it (Radford et al. 2015), and with the shapes of the published notebooks."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from worker.workloads.adversarial import SLOPE, Adversarial
from worker.workloads.workload import Shape, StepCost

if TYPE_CHECKING:
    import torch

_WIDTH = 64
_SIDES = range(4, 8)
"""The widths, in pixels, of the smallest maps: each layer doubles one of them until the image is there."""


def halvings(image_px: int) -> tuple[int, int]:
    """Return the width of the smallest map, and how often it is doubled: 4 and 4 for 64 px, 7 and 2 for 28 px."""
    side = image_px
    count = 0
    while side % 2 == 0 and side >= 2 * _SIDES[0]:
        side = side // 2
        count = count + 1
    return side, count


@dataclass(frozen=True, kw_only=True)
class Dcgan(Adversarial):
    """Convolutions with stride 2 that halve the image, and transposed ones that double it."""

    def size_wanted(self, image_px: int) -> str | None:
        """Return which sizes can be halved down to 4 to 7 px."""
        side, count = halvings(image_px)
        if side in _SIDES and count:
            return None
        return "28, 32, 64, or 4 to 7 times another power of two"

    def noise(self, count: int, device: "torch.device") -> "torch.Tensor":
        noise = super().noise(count, device)
        return noise[:, :, None, None]

    def generator(self, shape: Shape) -> "torch.nn.Module":
        """Return a block for each doubling, of which each has half as many maps as the one before."""
        from torch import nn

        side, count = halvings(shape.px)
        widths = [_WIDTH << number for number in reversed(range(count))]
        parts: list[nn.Module] = []
        layer = nn.ConvTranspose2d(self.latent, widths[0], side, bias=False)
        for width, after in pairwise((*widths, shape.channels)):
            parts += _normalised(layer, width)
            layer = nn.ConvTranspose2d(width, after, 4, 2, 1, bias=False)
        network = nn.Sequential(*parts, layer, nn.Tanh())
        return network.apply(_weights(1.0))

    def discriminator(self, shape: Shape) -> "torch.nn.Module":
        """Return a block for each halving, the first without statistics of the batch, and a logit."""
        from torch import nn

        side, count = halvings(shape.px)
        widths = [_WIDTH << number for number in range(count)]
        parts: list[nn.Module] = []
        for before, width in pairwise((shape.channels, *widths)):
            convolution = nn.Conv2d(before, width, 4, 2, 1, bias=False)
            parts.append(convolution)
            if len(parts) > 1:
                normalisation = nn.BatchNorm2d(width)
                parts.append(normalisation)
            activation = nn.LeakyReLU(SLOPE, inplace=True)
            parts.append(activation)
        last = nn.Conv2d(widths[-1], 1, side, bias=False)
        network = nn.Sequential(*parts, last, nn.Flatten())
        return network.apply(_weights(1.0))


@dataclass(frozen=True, kw_only=True)
class PublishedDcgan(Dcgan):
    """The shapes of the notebooks: no padding, so that images of 28 px are made whatever the real ones have.

    The discriminator is eight times wider for colour images, of which those of 32 px get four logits each.
    """

    def size_wanted(self, image_px: int) -> str | None:
        if image_px in (28, 32):
            return None
        return "28 or 32"

    def generator(self, shape: Shape) -> "torch.nn.Module":
        """Return the layers that make 3, 6, 13 and 28 px."""
        from torch import nn

        kernels = (
            (self.latent, 256, 3, 2),
            (256, 128, 4, 1),
            (128, 64, 3, 2),
        )
        parts: list[nn.Module] = []
        for before, after, kernel_px, stride in kernels:
            layer = nn.ConvTranspose2d(before, after, kernel_px, stride)
            parts += _normalised(layer, after)
        last = nn.ConvTranspose2d(64, shape.channels, 4, 2)
        network = nn.Sequential(*parts, last, nn.Tanh())
        return network.apply(_weights(0.0))

    def discriminator(self, shape: Shape) -> "torch.nn.Module":
        from torch import nn

        width = 16 if shape.channels == 1 else 128
        blocks = []
        for before, after in pairwise((shape.channels, width, 2 * width)):
            convolution = nn.Conv2d(before, after, 4, 2)
            normalisation = nn.BatchNorm2d(after)
            activation = nn.LeakyReLU(SLOPE, inplace=True)
            block = nn.Sequential(convolution, normalisation, activation)
            blocks.append(block)
        last = nn.Conv2d(2 * width, 1, 4, 2)
        network = nn.Sequential(*blocks, last, nn.Flatten())
        return network.apply(_weights(0.0))


def _normalised(layer: "torch.nn.Module", width: int) -> "tuple[torch.nn.Module, ...]":
    from torch import nn

    normalisation = nn.BatchNorm2d(width)
    return layer, normalisation, nn.ReLU(inplace=True)


def _weights(mean: float) -> "Callable[[torch.nn.Module], None]":
    """Return what draws the weights of a layer from N(0, 0.02), and the factors of statistics around ``mean``."""
    from torch import nn

    def draw(layer: nn.Module) -> None:
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(layer.weight, 0.0, 0.02)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight, mean, 0.02)
            nn.init.zeros_(layer.bias)

    return draw


DCGAN = Dcgan(
    name="dcgan",
    sizes={"paper": (128, 64), "quick": (16, 64), "smoke": (4, 32)},
    latent=100,
    learning_rate=2e-4,
    betas=(0.5, 0.999),
    channels=3,
    cost=StepCost(2.48, 6.34),
)
DCGAN_PUBLISHED = PublishedDcgan(
    name="dcgan-published",
    sizes={"paper": (128, 28), "quick": (128, 28), "smoke": (4, 28)},
    latent=64,
    learning_rate=2e-4,
    betas=(0.5, 0.999),
    published=True,
    cost=StepCost(0.0656, 0.757),
)
