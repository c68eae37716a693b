"""The classifiers of torchvision as workloads, in the sizes of the paper's Table 1 and in smaller ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from worker.workloads.workload import CLASSES, Shape, StepCost, Workload

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Classifier(Workload):
    """A model of torchvision, called as there, with random weights."""

    options: Mapping[str, object] = field(default_factory=dict)
    """Arguments of the model's constructor."""

    def build(self, shape: Shape) -> "torch.nn.Module":
        """Return the model, with as many classes as ImageNet. It pools images of any size."""
        del shape
        # Here and not above: the host reads this declaration, and torch is imported in the target alone.
        from worker.training.device import import_torchvision

        models = import_torchvision().models
        make: Callable[..., torch.nn.Module] = getattr(models, self.name)
        return make(weights=None, num_classes=CLASSES, **self.options)


ALEXNET = Classifier(
    name="alexnet",
    sizes={"paper": (512, 224), "quick": (8, 64), "smoke": (2, 64)},
    smallest_image_px=63,
    cost=StepCost(4.14, 61.1),
)
RESNET50 = Classifier(
    name="resnet50",
    sizes={"paper": (32, 224), "quick": (8, 64), "smoke": (2, 32)},
    smallest_image_px=32,
    alone_from_px=33,
    cost=StepCost(24.3, 25.6),
)
INCEPTION_V3 = Classifier(
    name="inception_v3",
    sizes={"paper": (32, 299), "quick": (8, 75), "smoke": (2, 75)},
    smallest_image_px=75,
    alone_from_px=107,
    cost=StepCost(34.2, 23.8),
    # No auxiliary classifier, as in tf_cnn_benchmarks. Its own initialisation draws truncated normals, which takes
    # minutes on an emulated CPU and changes no step's work: the layers' default initialisation stays, on every target.
    options={"aux_logits": False, "init_weights": False},
)
