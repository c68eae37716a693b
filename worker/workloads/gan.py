"""The GAN of fully connected layers, with the settings of the published notebooks and with usual ones."""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from worker.workloads.adversarial import Adversarial
from worker.workloads.workload import Shape

if TYPE_CHECKING:
    import torch

_GENERATOR, _DISCRIMINATOR = (128, 256, 512, 1024), (512, 256, 128)
SLOPE = 0.2


@dataclass(frozen=True, kw_only=True)
class Gan(Adversarial):
    """Linear layers, normalised over the batch in the generator alone."""

    def generator(self, shape: Shape) -> "torch.nn.Module":
        """Return four blocks and a layer of all pixels."""
        from torch import nn

        elements = shape.channels * shape.px * shape.px
        blocks = [
            nn.Sequential(nn.Linear(before, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True))
            for before, width in pairwise((self.latent, *_GENERATOR))
        ]
        ends = nn.Sigmoid() if self.pixels == "unit" else nn.Tanh()
        unflatten = nn.Unflatten(1, (shape.channels, shape.px, shape.px))
        return nn.Sequential(*blocks, nn.Linear(_GENERATOR[-1], elements), ends, unflatten)

    def discriminator(self, shape: Shape) -> "torch.nn.Module":
        """Return three blocks and a logit."""
        from torch import nn

        elements = shape.channels * shape.px * shape.px
        blocks = [
            nn.Sequential(nn.Linear(before, width), nn.LeakyReLU(SLOPE, inplace=True))
            for before, width in pairwise((elements, *_DISCRIMINATOR))
        ]
        return nn.Sequential(nn.Flatten(), *blocks, nn.Linear(_DISCRIMINATOR[-1], 1))


_SIZES = {"paper": (128, 28), "quick": (128, 28), "smoke": (4, 28)}
GAN = Gan(name="gan", sizes=_SIZES, latent=100, learning_rate=2e-4, betas=(0.5, 0.999))
GAN_PUBLISHED = Gan(
    name="gan-published",
    sizes=_SIZES,
    latent=64,
    learning_rate=1e-5,
    betas=(0.9, 0.999),
    pixels="unit",
    published=True,
)
