"""The networks of progressive GAN (Karras et al. 2018): layers for every size, of which a stage uses the first."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, interpolate, leaky_relu

from worker.workloads.workload import Shape

_MOST_MAPS = 512
_MAPS_TIMES_PX = 16_384
_SLOPE = 0.2
_TINY = 1e-8


def maps_at(px: int) -> int:
    """Return the feature maps at a size: 512 up to 32 px, then half as many with every doubling."""
    return min(_MOST_MAPS, _MAPS_TIMES_PX // px)


def sizes_to(image_px: int) -> list[int]:
    stages = int(math.log2(image_px))
    return [4 << stage for stage in range(stages - 1)]


class Equalised(nn.Conv2d):
    """A convolution whose weights are drawn from N(0, 1) and scaled when they are used, so that all learn as fast."""

    def __init__(
        self,
        before: int,
        after: int,
        kernel: int,
        padding: int = 0,
        gain: float = math.sqrt(2),
    ) -> None:
        super().__init__(before, after, kernel, padding=padding)
        nn.init.normal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self.factor = gain / math.sqrt(before * kernel * kernel)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        weight = self.weight * self.factor
        convolved: torch.Tensor = self._conv_forward(maps, weight, self.bias)
        return convolved


def normalised(maps: torch.Tensor) -> torch.Tensor:
    """Return the maps with the feature vector of each pixel at a mean square of 1."""
    power = maps.square().mean(dim=1, keepdim=True)
    return maps * torch.rsqrt(power + _TINY)


def with_deviation(maps: torch.Tensor) -> torch.Tensor:
    """Return the maps and one more: the deviation of each feature over the batch, averaged over all of them."""
    variance = maps.float().var(0, unbiased=False)
    spread = variance.add(_TINY).sqrt()
    deviation = spread.mean().to(maps.dtype)
    constant = deviation.expand(len(maps), 1, *maps.shape[2:])
    return torch.cat([maps, constant], dim=1)


class GrowingGenerator(nn.Module):
    """Makes images of the size of a stage; the size before it is what a new one is faded in from."""

    def __init__(self, shape: Shape, latent: int) -> None:
        super().__init__()
        sizes = sizes_to(shape.px)
        widths = [maps_at(px) for px in sizes]
        # The first layer makes 4 x 4 pixels of one: a convolution over a padding of 3.
        first = Equalised(latent, widths[0], 4, 3)
        pair = _pair(first, widths[0])
        self.blocks = nn.ModuleList([pair])
        for before, width in pairwise(widths):
            convolution = Equalised(before, width, 3, 1)
            self.blocks.append(_pair(convolution, width))
        to_image = [Equalised(width, shape.channels, 1, gain=1.0) for width in widths]
        self.to_image = nn.ModuleList(to_image)

    def forward(self, noise: torch.Tensor, stage: int = -1, shown: float = 1.0) -> torch.Tensor:
        last = stage % len(self.blocks)
        point = normalised(noise)
        maps = point[:, :, None, None]
        before = maps
        for number in range(last + 1):
            if number:
                maps = interpolate(maps, scale_factor=2.0)
            before = maps
            for layer in self.blocks[number]:  # type: ignore[attr-defined]
                maps = normalised(leaky_relu(layer(maps), _SLOPE))
        image: torch.Tensor = self.to_image[last](maps)
        if shown == 1.0 or not last:
            return image
        smaller_image = self.to_image[last - 1](before)
        return torch.lerp(smaller_image, image, shown)


class Critic(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        sizes = sizes_to(shape.px)
        widths = [maps_at(px) for px in sizes]
        from_image = [Equalised(shape.channels, width, 1) for width in widths]
        self.from_image = nn.ModuleList(from_image)
        smallest = widths[0]
        first = Equalised(smallest + 1, smallest, 3, 1)
        second = Equalised(smallest, smallest, 4)
        block = nn.ModuleList([first, second])
        self.blocks = nn.ModuleList([block])
        for smaller, width in pairwise(widths):
            first = Equalised(width, width, 3, 1)
            second = Equalised(width, smaller, 3, 1)
            block = nn.ModuleList([first, second])
            self.blocks.append(block)
        self.score = Equalised(smallest, 1, 1, gain=1.0)

    def forward(self, images: torch.Tensor, stage: int = -1, shown: float = 1.0) -> torch.Tensor:
        last = stage % len(self.blocks)
        maps = leaky_relu(self.from_image[last](images), _SLOPE)
        for number in range(last, -1, -1):
            if not number:
                maps = with_deviation(maps)
            for layer in self.blocks[number]:  # type: ignore[attr-defined]
                maps = leaky_relu(layer(maps), _SLOPE)
            if number:
                maps = avg_pool2d(maps, 2)
            if number == last and number and shown < 1.0:
                halved = avg_pool2d(images, 2)
                converted = self.from_image[last - 1](halved)
                smaller = leaky_relu(converted, _SLOPE)
                maps = torch.lerp(smaller, maps, shown)
        scores: torch.Tensor = self.score(maps)
        return scores.flatten()


def _pair(first: Equalised, width: int) -> nn.ModuleList:
    second = Equalised(width, width, 3, 1)
    return nn.ModuleList([first, second])


def fade(images: torch.Tensor, px: int, shown: float) -> torch.Tensor:
    """Return real images at a size, as far faded in from half of it as those that are made."""
    divisor = images.shape[-1] // px
    smaller = avg_pool2d(images, divisor)
    if shown == 1.0:
        return smaller
    halved = avg_pool2d(smaller, 2)
    enlarged = interpolate(halved, scale_factor=2.0)
    return torch.lerp(enlarged, smaller, shown)


def gradient_penalty(
    critic: Callable[[torch.Tensor], torch.Tensor], real: torch.Tensor, fake: torch.Tensor
) -> torch.Tensor:
    """Return the mean of (the norm of the score's gradient - 1) squared, between real and generated images."""
    size = (len(real), 1, 1, 1)
    share = torch.rand(size, dtype=real.dtype, device=real.device)
    mixed = torch.lerp(real, fake, share).requires_grad_()
    judged = critic(mixed).sum()
    (gradient,) = torch.autograd.grad(judged, mixed, create_graph=True)
    flat = gradient.flatten(1)
    norms: torch.Tensor = flat.norm(dim=1)
    return (norms - 1).square().mean()


@torch.no_grad()
def move_average(average: nn.Module, network: nn.Module, kept: float) -> None:
    pairs = zip(average.parameters(), network.parameters(), strict=True)
    for mean, parameter in pairs:
        mean.lerp_(parameter, 1 - kept)
