"""Progressive GAN (Karras et al. 2018): images grow from 4 px on, and every new size is faded in.

A job goes through all sizes: the first takes one share of its measured steps, and every other one two shares, in the
first of which it is faded in, as in the paper. Warm-up steps are of the full size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.workloads.adversarial import Generative, deviation
from worker.workloads.workload import Losses, Shape, StepCost

if TYPE_CHECKING:
    import torch

    from worker.training.step import Training

PENALTY = 10.0
DRIFT = 1e-3
"""The weights of the gradient penalty, and of what keeps the scores of real images near zero."""
KEPT = 0.999
"""The share of itself that the averaged generator keeps in each step."""


@dataclass(frozen=True, kw_only=True)
class ProgressiveGan(Generative):
    """A generator, a critic with the loss of WGAN-GP, and the generator averaged over the steps.

    The generator's first layer normalises the noise to points of a sphere.
    """

    channels: int | None = 3
    phases: tuple[str, ...] = ("critic", "penalty", "critic-update", "generator", "generator-update", "average")
    losses: tuple[str, ...] = ("critic", "penalty", "generator", "generated-deviation")
    image_network: str = "average"
    compiles: bool = False

    def size_wanted(self, image_px: int) -> str | None:
        if image_px in (8, 16, 32, 64, 128, 256, 512, 1024):
            return None
        return "8, 16, 32, … or 1024"

    def stages(self, image_px: int) -> int:
        """Return one stage for 4 px, and for each doubling one of fading in and one of the new size."""
        return 2 * image_px.bit_length() - 5

    def size_at(self, progress: float, image_px: int) -> tuple[int, float]:
        """Return the size that is trained at a share of the job, counted from 4 px, and how far it is faded in."""
        stage = self.stage_at(progress, image_px)
        shown = 1.0
        if stage % 2:
            shown = progress * self.stages(image_px) - stage
        return (stage + 1) // 2, shown

    def build(self, shape: Shape) -> "torch.nn.Module":
        """Return generator, critic and averaged generator, each with the layers of all sizes."""
        import copy

        from torch import nn

        from worker.training.growing import Critic, GrowingGenerator

        generator = GrowingGenerator(shape, self.latent)
        average = copy.deepcopy(generator).requires_grad_(requires_grad=False)
        return nn.ModuleDict({"generator": generator, "critic": Critic(shape), "average": average})

    def optimizers(self, network: "torch.nn.Module") -> Mapping[str, "torch.optim.Optimizer"]:
        import torch

        optimizers = {}
        for name in ("generator", "critic"):
            parameters = network.get_submodule(name).parameters()
            optimizers[name] = torch.optim.Adam(
                parameters,
                lr=1e-3,
                betas=(0.0, 0.99),
                eps=1e-8,
            )
        return optimizers

    def step(self, training: "Training", images: "torch.Tensor", labels: "torch.Tensor") -> Losses:
        """Update the critic, the generator and its average at the size of this step."""
        del labels
        import torch

        from worker.training.growing import fade, gradient_penalty, move_average

        generator = training.network.get_submodule("generator")
        critic = training.network.get_submodule("critic")
        average = training.network.get_submodule("average")
        stage, shown = self.size_at(training.progress, images.shape[-1])
        with training.phase("critic"):
            real = fade(images, 4 << stage, shown)
            with training.autocast():
                with torch.no_grad():
                    noise = self.noise(len(images), images.device)
                    fake = generator(noise, stage, shown)
                on_real = critic(real, stage, shown).float()
                on_fake = critic(fake, stage, shown).float()
            distance = on_fake.mean() - on_real.mean()
            (distance + DRIFT * on_real.square().mean()).backward()
        with training.phase("penalty"):
            # Not in bfloat16: it is a gradient of a gradient.
            penalty = PENALTY * gradient_penalty(lambda mixed: critic(mixed, stage, shown), real, fake.float())
            penalty.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        with training.phase("critic-update"):
            training.update("critic")
        with training.phase("generator"), training.passing_through(critic):
            with training.autocast():
                noise = self.noise(len(images), images.device)
                fake = generator(noise, stage, shown)
                score = critic(fake, stage, shown).float()
            loss = -score.mean()
            loss.backward()
        with training.phase("generator-update"):
            training.update("generator")
            training.optimizers["critic"].zero_grad()
        with training.phase("average"):
            move_average(average, generator, KEPT)
        values = (distance, penalty, loss, deviation(fake))
        return dict(zip(self.losses, values, strict=True))


PROGRESSIVE_GAN = ProgressiveGan(
    name="progressive-gan",
    sizes={"paper": (16, 128), "quick": (4, 32), "smoke": (2, 16)},
    latent=512,
    cost=StepCost(750.0, 42.0),
)
