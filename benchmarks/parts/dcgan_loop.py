"""The training loop of PyTorch's example of DCGAN, as one would write it by hand: no suite, one timing of all steps.

Run by ``benchmarks/plain_loop.py``; arguments: batch, image_px (64), channels (3), warmup_steps, steps, threads, seed.
Prints images per second. Networks, losses, settings and the order of the passes are the example's (latent 100, widths
of 64, Adam 2e-4).
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import nn

LATENT, WIDTH, COLOURS = 100, 64, 3
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def draw(layer: nn.Module) -> None:
    name = type(layer).__name__
    if "Conv" in name:
        nn.init.normal_(layer.weight, 0.0, 0.02)  # type: ignore[arg-type]
    elif "BatchNorm" in name:
        nn.init.normal_(layer.weight, 1.0, 0.02)  # type: ignore[arg-type]
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]


def generator() -> nn.Module:
    return nn.Sequential(
        *(nn.ConvTranspose2d(LATENT, WIDTH * 8, 4, 1, 0, bias=False), nn.BatchNorm2d(WIDTH * 8), nn.ReLU(True)),
        *(nn.ConvTranspose2d(WIDTH * 8, WIDTH * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH * 4), nn.ReLU(True)),
        *(nn.ConvTranspose2d(WIDTH * 4, WIDTH * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH * 2), nn.ReLU(True)),
        *(nn.ConvTranspose2d(WIDTH * 2, WIDTH, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(True)),
        *(nn.ConvTranspose2d(WIDTH, COLOURS, 4, 2, 1, bias=False), nn.Tanh()),
    )


def discriminator() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(COLOURS, WIDTH, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)),
        *(nn.Conv2d(WIDTH, WIDTH * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH * 2), nn.LeakyReLU(0.2, True)),
        *(nn.Conv2d(WIDTH * 2, WIDTH * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH * 4), nn.LeakyReLU(0.2, True)),
        *(nn.Conv2d(WIDTH * 4, WIDTH * 8, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH * 8), nn.LeakyReLU(0.2, True)),
        *(nn.Conv2d(WIDTH * 8, 1, 4, 1, 0, bias=False), nn.Sigmoid()),
    )


def stepper(device: str) -> Step:
    """Return the example's step on images, which needs no labels and returns the generator's loss."""
    makes, judges = (network.apply(draw).to(device) for network in (generator(), discriminator()))
    criterion = nn.BCELoss()
    optimizer_d, optimizer_g = (torch.optim.Adam(n.parameters(), lr=2e-4, betas=(0.5, 0.999)) for n in (judges, makes))

    def step(images: torch.Tensor, _labels: torch.Tensor) -> torch.Tensor:
        judges.zero_grad()
        real, fake = torch.ones(len(images), device=device), torch.zeros(len(images), device=device)
        criterion(judges(images).view(-1), real).backward()
        made = makes(torch.randn(len(images), LATENT, 1, 1, device=device))
        criterion(judges(made.detach()).view(-1), fake).backward()
        optimizer_d.step()
        makes.zero_grad()
        loss: torch.Tensor = criterion(judges(made).view(-1), real)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer_g.step()
        return loss.detach()

    return step


def main() -> None:
    batch, image_px, _, warmup_steps, steps, threads, seed = map(int, sys.argv[1:])
    torch.set_num_interop_threads(1)
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    step, images = stepper("cpu"), torch.rand(batch, COLOURS, image_px, image_px) * 2 - 1
    for number in range(warmup_steps + steps):
        if number == warmup_steps:
            begin_s = time.monotonic()
        step(images, images)
    print(batch * steps / (time.monotonic() - begin_s))


if __name__ == "__main__":
    main()
