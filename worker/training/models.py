"""The models, as torchvision has them, and the way into torchvision beside a CPU build of torch."""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import torch

CLASSES = 1000

# No auxiliary classifier, as in tf_cnn_benchmarks. Inception's own initialisation draws truncated normals, which takes
# minutes on an emulated CPU and changes no step's work: the layers' default initialisation stays, on every target.
_OPTIONS: dict[str, dict[str, object]] = {
    "inception_v3": {"aux_logits": False, "init_weights": False},
    "resnet50": {},
    "alexnet": {},
}
_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # a declaration ends with the object that made it


def build_model(name: str, seed: int) -> torch.nn.Module:
    """The model in training mode with weights drawn from the seed."""
    torch.manual_seed(seed)
    make: Callable[..., torch.nn.Module] = getattr(import_torchvision().models, name)
    return make(weights=None, num_classes=CLASSES, **_OPTIONS[name]).train()


def torchvision_version() -> str:
    return str(import_torchvision().__version__)


def import_torchvision() -> ModuleType:
    """torchvision from PyPI, whose extension wants CUDA libraries and is silently left out beside a CPU build of torch.

    Its import then fails on two operators that no model uses; declared without an implementation, they let it pass. An
    installation that matches its torch never comes to that.
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
