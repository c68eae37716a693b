"""The training loop that the suite's worker runs, as one would write it by hand: no suite, one timing around all steps.

Run by ``benchmarks/intrusion.py``; arguments: model, batch, image_px, warmup_steps, steps, threads, seed. Prints
images per second.
"""

import sys
import time
from types import ModuleType

import torch

_declared: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Import torchvision for CUDA beside torch for CPUs: it lacks two operators, which no model uses."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        # torch annotates no part of torch.library.Library.
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(name + "(Tensor dets, Tensor scores, float iou) -> Tensor")  # type: ignore[no-untyped-call]
        _declared.append(library)
        import torchvision
    module: ModuleType = torchvision
    return module


def main() -> None:
    name, *numbers = sys.argv[1:]
    batch, image_px, warmup_steps, steps, threads, seed = map(int, numbers)
    torch.set_num_interop_threads(1)
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    options = {"aux_logits": False, "init_weights": False} if name == "inception_v3" else {}
    model = getattr(import_torchvision().models, name)(weights=None, num_classes=1000, **options).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = torch.nn.CrossEntropyLoss()
    images, labels = torch.rand(batch, 3, image_px, image_px), torch.randint(1000, (batch,))

    for step in range(warmup_steps + steps):
        if step == warmup_steps:
            begin_s = time.monotonic()
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
    print(batch * steps / (time.monotonic() - begin_s))


if __name__ == "__main__":
    main()
