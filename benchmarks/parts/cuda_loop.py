"""Prints the last loss and the images per second of a model on a device: a loop by hand, or the suite's worker.

Run by ``benchmarks/gpu_day.py``; arguments: side, model (resnet50, dcgan), device, batch, image_px, warmup_steps,
steps. Sides: ``free`` (the host runs ahead of the GPU, as ordinary training does), ``synchronised`` (the host waits
after each step, as the suite does), ``tf32`` (the same with TF32) and ``suite``, whose loss is not read. All copy each
batch from pinned memory, and but for one in fp32 without TF32.
"""

import sys
import time
from pathlib import Path

import torch

# As a script, this file is not part of the installed suite.
sys.path[:0] = [str(parent) for parent in Path(__file__).parents[1:3]]

from parts.bare_loop import import_torchvision  # noqa: E402
from parts.dcgan_loop import Step, stepper  # noqa: E402

SEED, CLASSES = 3, 1000


def main() -> None:
    side, model, device, *numbers = sys.argv[1:]
    batch, image_px, warmup_steps, steps = map(int, numbers)
    if side == "suite":
        from parts.suite_steps import suite_s

        from worker.training.device import numerics_of

        numerics_of("reference", device).apply()
        sizes = {"batch": batch, "image_px": image_px, "channels": 3, "threads": torch.get_num_threads()}
        seconds = suite_s(model, device, warmup_steps, steps, **sizes, recipe="reference", seed=SEED)
        loss = float("nan")
    else:
        seconds, loss = by_hand(side, model, device, batch, image_px, (warmup_steps, steps))
    print(loss, batch * steps / seconds)


def by_hand(
    side: str, model: str, device: str, batch: int, image_px: int, steps: tuple[int, int]
) -> tuple[float, float]:
    """Return the seconds of the measured steps, and the loss of the last."""
    torch.manual_seed(SEED)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = side == "tf32"
    step = {"resnet50": resnet50, "dcgan": stepper}[model](device)
    images, labels = torch.rand(batch, 3, image_px, image_px) * 2 - 1, torch.randint(CLASSES, (batch,))
    if device == "cuda":
        images, labels = images.pin_memory(), labels.pin_memory()

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for number in range(sum(steps)):
        if number == steps[0]:
            wait()
            begin_s = time.monotonic()
        loss = step(images.to(device, non_blocking=True), labels.to(device, non_blocking=True))
        if side != "free":
            wait()
    wait()
    return time.monotonic() - begin_s, float(loss)


def resnet50(device: str) -> Step:
    model = import_torchvision().models.resnet50(weights=None, num_classes=CLASSES).train().to(device)
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.01), torch.nn.CrossEntropyLoss()

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = criterion(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    main()
