"""The variational autoencoder (Kingma and Welling 2013), of the sizes of PyTorch's example."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from worker.workloads.adversarial import Generative, deviation
from worker.workloads.workload import Losses, Shape, StepCost

if TYPE_CHECKING:
    import torch

    from worker.training.step import Training

_HIDDEN = 400


@dataclass(frozen=True, kw_only=True)
class Vae(Generative):
    """Two linear layers that encode an image as a distribution, and two that decode a draw from it."""

    pixels: Literal["imagenet", "signed", "unit"] = "unit"
    phases: tuple[str, ...] = ("forward", "backward", "update")
    image_network: str = "decoder"
    losses: tuple[str, ...] = ("reconstruction", "divergence", "generated-deviation")
    """The first two are means per image, in nats; the last is of the reconstructed images."""

    def build(self, shape: Shape) -> "torch.nn.Module":
        from torch import nn

        elements = shape.channels * shape.px * shape.px
        encoder = nn.Sequential(
            nn.Flatten(),
            nn.Linear(elements, _HIDDEN),
            nn.ReLU(inplace=True),
            nn.Linear(_HIDDEN, 2 * self.latent),
        )
        decoder = nn.Sequential(
            nn.Linear(self.latent, _HIDDEN),
            nn.ReLU(inplace=True),
            nn.Linear(_HIDDEN, elements),
            nn.Unflatten(1, (shape.channels, shape.px, shape.px)),
        )
        return nn.ModuleDict({"encoder": encoder, "decoder": decoder})

    def optimizers(self, network: "torch.nn.Module") -> Mapping[str, "torch.optim.Optimizer"]:
        import torch

        parameters = network.parameters()
        return {"network": torch.optim.Adam(parameters, lr=1e-3)}

    def step(self, training: "Training", images: "torch.Tensor", labels: "torch.Tensor") -> Losses:
        """Encode, draw, decode, and go back: the loss is the negative lower bound of the evidence."""
        del labels
        import torch

        with training.phase("forward"):
            with training.autocast():
                encoded = training.network.get_submodule("encoder")(images)
            mean, log_variance = encoded.float().chunk(2, dim=1)
            noise = torch.randn_like(mean)
            drawn = mean + noise * (0.5 * log_variance).exp()
            with training.autocast():
                logits = training.network.get_submodule("decoder")(drawn)
            pixels = logits.float()
            reconstruction = torch.nn.functional.binary_cross_entropy_with_logits(pixels, images, reduction="sum")
            reconstruction = reconstruction / len(images)
            divergence = gaussian_divergence(mean, log_variance)
        with training.phase("backward"):
            (reconstruction + divergence).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        with training.phase("update"):
            training.update("network")
        spread = deviation(pixels.sigmoid())
        values = (reconstruction, divergence, spread)
        return dict(zip(self.losses, values, strict=True))

    def generate(self, network: "torch.nn.Module", count: int) -> "torch.Tensor":
        return super().generate(network, count).sigmoid()


def gaussian_divergence(mean: "torch.Tensor", log_variance: "torch.Tensor") -> "torch.Tensor":
    """Return the divergence of N(mean, variance) from N(0, 1), summed over the latent numbers, per image."""
    terms = 1 + log_variance - mean.square() - log_variance.exp()
    return -0.5 * terms.sum(dim=1).mean()


VAE = Vae(
    name="vae",
    latent=20,
    sizes={"paper": (128, 28), "quick": (128, 28), "smoke": (4, 28)},
    cost=StepCost(0.00328, 0.653),
)
