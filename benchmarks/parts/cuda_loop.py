"""Prints the images per second of ResNet-50 on a device: a loop by hand, or the suite's worker.

Run by ``benchmarks/gpu_day.py``; arguments: side, device, batch, image_px, warmup_steps, steps. Sides: ``free`` (the
host runs ahead of the GPU, as ordinary training does), ``synchronised`` (the host waits after each step, as the suite
does) and ``suite``. All copy each batch from pinned memory, in fp32 without TF32.
"""

import sys
import time
from pathlib import Path

import torch

# As a script, this file is not part of the installed suite.
sys.path[:0] = [str(parent) for parent in Path(__file__).parents[1:3]]

from parts.bare_loop import import_torchvision  # noqa: E402

SEED, CLASSES = 3, 1000


def main() -> None:
    side, device, *numbers = sys.argv[1:]
    batch, image_px, warmup_steps, steps = map(int, numbers)
    if side == "suite":
        seconds = suite_s(device, batch, image_px, warmup_steps, steps)
    else:
        seconds = by_hand_s(device, batch, image_px, warmup_steps, steps, waits=side == "synchronised")
    print(batch * steps / seconds)


def by_hand_s(device: str, batch: int, image_px: int, warmup_steps: int, steps: int, *, waits: bool) -> float:
    torch.manual_seed(SEED)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = import_torchvision().models.resnet50(weights=None, num_classes=CLASSES).train().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = torch.nn.CrossEntropyLoss()
    images, labels = torch.rand(batch, 3, image_px, image_px), torch.randint(CLASSES, (batch,))
    if device == "cuda":
        images, labels = images.pin_memory(), labels.pin_memory()

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for step in range(warmup_steps + steps):
        if step == warmup_steps:
            wait()
            begin_s = time.monotonic()
        here, wanted = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        criterion(model(here), wanted).backward()
        optimizer.step()
        if waits:
            wait()
    wait()
    return time.monotonic() - begin_s


def suite_s(device: str, batch: int, image_px: int, warmup_steps: int, steps: int) -> float:
    from suite.registries import WORKLOADS
    from worker.spec import Spec
    from worker.training.build import build_trainer, opened_batches
    from worker.training.device import numerics_of, open_devices
    from worker.training.step import Samples

    place = {"workload": WORKLOADS.place("resnet50"), "device": device, "devices": 1, "parallel": "none"}
    sizes = {"batch": batch, "image_px": image_px, "channels": 3, "warmup_steps": warmup_steps, "steps": steps}
    threads = torch.get_num_threads()
    spec = Spec(**place, **sizes, threads=threads, recipe="reference", seed=SEED)  # type: ignore[arg-type]
    numerics_of("reference", device).apply()
    with opened_batches(spec) as batches:
        trainer = build_trainer(spec, open_devices(device, 1), batches)
        for _ in range(warmup_steps):
            trainer.step(Samples.allocate(1, trainer.phases, trainer.parts), 0)
        samples = Samples.allocate(steps, trainer.phases, trainer.parts)
        begin_s = time.monotonic()
        for index in range(steps):
            trainer.step(samples, index)
        return time.monotonic() - begin_s


if __name__ == "__main__":
    main()
