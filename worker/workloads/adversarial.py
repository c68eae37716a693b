"""A generator against a discriminator, each with its optimizer (Goodfellow et al. 2014), and the GAN of linear layers.

The GAN comes with the settings of the published notebooks and with usual ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from worker.workloads.workload import Losses, Shape, StepCost, Workload

if TYPE_CHECKING:
    import torch

    from worker.training.step import Training


@dataclass(frozen=True, kw_only=True)
class Generative(Workload):
    """A workload whose ``image_network`` makes images."""

    latent: int
    """The numbers, drawn from N(0, 1), that an image is made of."""
    scenarios: tuple[str, ...] = ("synthetic", "real", "shared", "distributed")
    channels: int | None = 1
    smallest_batch: int = 2
    crop: Literal["random", "centre"] = "centre"
    pixels: Literal["imagenet", "signed", "unit"] = "signed"

    def noise(self, count: int, device: "torch.device") -> "torch.Tensor":
        import torch

        return torch.randn(count, self.latent, device=device)

    def generate(self, network: "torch.nn.Module", count: int) -> "torch.Tensor":
        generator = network.get_submodule(self.image_network)
        device = next(generator.parameters()).device
        images: torch.Tensor = generator(self.noise(count, device))
        return images


@dataclass(frozen=True, kw_only=True)
class Adversarial(Generative):
    """Binary cross entropy for the discriminator, and the non-saturating loss for the generator.

    Each step updates the discriminator, on real and on generated images in passes of their own, and then the generator.
    A subclass gives the two networks.
    """

    learning_rate: float
    betas: tuple[float, float]
    published: bool = False
    """Whether the step is that of the published notebooks: the discriminator's loss is the mean of both halves, not
    their sum, and the generator is updated with images of its own, not with those that the discriminator has seen."""
    splits: bool = True
    image_network: str = "generator"
    phases: tuple[str, ...] = (
        *("discriminator-real", "discriminator-fake", "discriminator-update"),
        *("generator", "generator-update"),
    )
    losses: tuple[str, ...] = ("discriminator-real", "discriminator-fake", "generator", "generated-deviation")
    """The last is the deviation of a pixel among the images of a step: it is 0 where they are all alike."""

    def generator(self, shape: Shape) -> "torch.nn.Module":
        """Return the network that makes images of ``latent`` numbers each."""
        raise NotImplementedError

    def discriminator(self, shape: Shape) -> "torch.nn.Module":
        """Return the network that gives images logits, which are high for real ones."""
        raise NotImplementedError

    def build(self, shape: Shape) -> "torch.nn.Module":
        import torch

        networks = {"generator": self.generator(shape), "discriminator": self.discriminator(shape)}
        return torch.nn.ModuleDict(networks)

    def optimizers(self, network: "torch.nn.Module") -> Mapping[str, "torch.optim.Optimizer"]:
        import torch

        return {
            name: torch.optim.Adam(network_part.parameters(), lr=self.learning_rate, betas=self.betas)
            for name, network_part in network.named_children()
        }

    def step(self, training: "Training", images: "torch.Tensor", labels: "torch.Tensor") -> Losses:
        """Update the discriminator, then the generator."""
        del labels
        names = ("generator", "discriminator")
        generator, discriminator = (training.network.get_submodule(name) for name in names)
        share = 0.5 if self.published else 1.0

        def judged(pictures: "torch.Tensor", *, real: bool) -> "torch.Tensor":
            with training.autocast():
                logits = discriminator(pictures)
            return cross_entropy(logits, real=real)

        def generated() -> "torch.Tensor":
            with training.autocast():
                noise = self.noise(len(images), images.device)
                made: torch.Tensor = generator(noise)
            return made

        with training.phase("discriminator-real"):
            on_real = judged(images, real=True)
            (share * on_real).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        with training.phase("discriminator-fake"):
            fake = generated()
            on_fake = judged(fake.detach(), real=False)
            (share * on_fake).backward()  # type: ignore[no-untyped-call]
        with training.phase("discriminator-update"):
            training.update("discriminator")
        with training.phase("generator"), training.passing_through(discriminator):
            if self.published:
                fake = generated()
            loss = judged(fake, real=True)
            loss.backward()  # type: ignore[no-untyped-call]
        with training.phase("generator-update"):
            training.update("generator")
            # What its own update left there is the generator's, and no gradient of the discriminator's loss.
            training.optimizers["discriminator"].zero_grad()
        values = (on_real, on_fake, loss, deviation(fake))
        return dict(zip(self.losses, values, strict=True))


def cross_entropy(logits: "torch.Tensor", *, real: bool) -> "torch.Tensor":
    """Return the mean binary cross entropy of logits that should all say the same."""
    import torch

    wanted = torch.full_like(logits, float(real), dtype=torch.float32)
    return torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), wanted)


def deviation(images: "torch.Tensor") -> "torch.Tensor":
    """Return the deviation of a pixel among the images, averaged over the pixels: 0 where all are alike."""
    deviations = images.detach().float().std(0)
    return deviations.mean()


_GENERATOR = (128, 256, 512, 1024)
_DISCRIMINATOR = (512, 256, 128)
SLOPE = 0.2


@dataclass(frozen=True, kw_only=True)
class Gan(Adversarial):
    """Linear layers, normalised over the batch in the generator alone."""

    def generator(self, shape: Shape) -> "torch.nn.Module":
        from torch import nn

        elements = shape.channels * shape.px * shape.px
        blocks = [
            nn.Sequential(nn.Linear(before, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True))
            for before, width in pairwise((self.latent, *_GENERATOR))
        ]
        ends = nn.Sigmoid() if self.pixels == "unit" else nn.Tanh()
        size = (shape.channels, shape.px, shape.px)
        unflatten = nn.Unflatten(1, size)
        last = nn.Linear(_GENERATOR[-1], elements)
        return nn.Sequential(*blocks, last, ends, unflatten)

    def discriminator(self, shape: Shape) -> "torch.nn.Module":
        from torch import nn

        blocks = [
            nn.Sequential(nn.Linear(before, width), nn.LeakyReLU(SLOPE, inplace=True))
            for before, width in pairwise((shape.channels * shape.px * shape.px, *_DISCRIMINATOR))
        ]
        last = nn.Linear(_DISCRIMINATOR[-1], 1)
        return nn.Sequential(nn.Flatten(), *blocks, last)


_SIZES = {"paper": (128, 28), "quick": (128, 28), "smoke": (4, 28)}
GAN = Gan(name="gan", sizes=_SIZES, latent=100, learning_rate=2e-4, betas=(0.5, 0.999), cost=StepCost(0.0176, 2.08))
GAN_PUBLISHED = Gan(
    name="gan-published",
    sizes=_SIZES,
    latent=64,
    learning_rate=1e-5,
    betas=(0.9, 0.999),
    pixels="unit",
    published=True,
    cost=StepCost(0.0205, 2.07),
)
