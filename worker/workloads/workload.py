"""A workload: what is trained, its sizes, how it is built, and the metrics that it has of its own.

The host reads declarations, and has no torch: a member imports torch inside the methods, which run in the target alone.
A workload of another package is one module, of which the text is sent into the target. It can import this module, the
standard library, and what the image holds: torch, torchvision, numpy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

CLASSES = 1000
"""The number of labels in data sets and in drawn data alike: as many as ImageNet has."""
LEARNING_RATE = 0.01
OF_EVERY_TRAINING = ("throughput", "elapsed", "opening")
"""The metrics of every training; no metric of a workload's own can have these names."""


@dataclass(frozen=True)
class WorkloadMetric:
    """A number that a workload measures beside those of every training; it must come out above zero."""

    name: str
    unit: str
    better: Literal["more", "less"]
    per: Literal["step", "job"] = "job"
    """A metric per step is recorded as the median of the measured steps, with every value as a sample."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The declaration of a workload. A subclass implements ``build``, and overrides of the rest what differs."""

    name: str
    sizes: Mapping[str, tuple[int, int]]
    """Batch per device, and width and height of the images in pixels, by profile."""
    smallest_image_px: int = 1
    """Below this, the layers leave nothing of the image."""
    unit: str = "images"
    """The name of one element of a batch; throughput counts them."""
    metrics: tuple[WorkloadMetric, ...] = ()
    crop: Literal["random", "centre"] = "random"
    """What is taken of the images of a data set: a random part, perhaps mirrored, or the square in the middle."""

    def __post_init__(self) -> None:
        names = [metric.name for metric in self.metrics]
        if wrong := [name for name in names if name in OF_EVERY_TRAINING or names.count(name) > 1]:
            raise ValueError(f"a metric of the workload {self.name} cannot be called {wrong[0]}: the name is taken")

    def build(self) -> "torch.nn.Module":
        """Return the network. torch has been seeded: the first weights depend on the seed of the trial alone."""
        raise NotImplementedError

    def optimizer(self, network: "torch.nn.Module") -> "torch.optim.Optimizer":
        """Return the optimizer: plain gradient descent, as the ``sgd`` of tf_cnn_benchmarks.

        Parameter servers do the same without it; they refuse a workload that overrides this.
        """
        import torch

        return torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)

    def loss(self, network: "torch.nn.Module", images: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
        """Return the loss of one batch, of which the step takes the gradients."""
        import torch

        return torch.nn.functional.cross_entropy(network(images), labels)

    def after_step(self, network: "torch.nn.Module", loss: float) -> Mapping[str, float]:
        """Return the metrics per step. Called after every measured step if there are any.

        The step's own time does not hold the call, but the throughput of the job does: do little here.
        """
        raise NotImplementedError

    def after_job(self, network: "torch.nn.Module", steps_s: Sequence[float]) -> Mapping[str, float]:
        """Return the metrics per job, from the seconds of every measured step. Called once, after the last of them."""
        raise NotImplementedError
