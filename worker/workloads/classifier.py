"""The classifiers of torchvision as workloads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from worker.workloads.workload import CLASSES, Shape, Workload

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
        from worker.training.models import import_torchvision

        make: Callable[..., torch.nn.Module] = getattr(import_torchvision().models, self.name)
        return make(weights=None, num_classes=CLASSES, **self.options)
