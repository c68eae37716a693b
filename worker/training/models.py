"""Building networks, and importing torchvision beside a CPU build of torch."""

import random
import sys
from importlib import import_module
from types import ModuleType

import numpy as np
import torch

from worker.workloads.workload import Shape, Workload

_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # a declaration ends with the object that made it


def build_network(workload: Workload, shape: Shape, seed: int) -> torch.nn.Module:
    """Return the workload's network in training mode, with weights drawn from the seed; so is all that comes later."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
    return workload.build(shape).train()


def torchvision_version() -> str:
    """Return the version of torchvision."""
    return str(import_torchvision().__version__)


def import_torchvision() -> ModuleType:
    """Return torchvision, also where it is PyPI's build beside a CPU build of torch.

    Its extension wants CUDA libraries and is then silently left out, so that the import fails on two operators that no
    model uses. Declared without an implementation, they let it pass. An installation that matches its torch needs none
    of this.
    """
    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    # torch annotates no part of torch.library.Library.
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(operator + _NMS)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return import_module("torchvision")
