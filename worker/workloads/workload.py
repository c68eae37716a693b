"""A workload: what is trained, its sizes, its networks and optimizers, one training step, and what it has of its own.

The host reads declarations, and has no torch: a member imports torch inside the methods, which run in the target alone.
A workload of another package is one module, of which the text is sent into the target. It can import this module, the
standard library, and what the image holds: torch, torchvision, numpy.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    import torch

    from worker.training.step import Training

Extent = Literal["image_px", "tokens"]
"""The names of extents: the width and height of an image, and the length of a sequence."""
EXTENTS: tuple[Extent, ...] = get_args(Extent)
Losses = Mapping[str, "torch.Tensor"]
"""What a step gives, by the names that the workload declares."""
CLASSES = 1000
"""The number of labels in data sets and in drawn data alike: as many as ImageNet has."""
LEARNING_RATE = 0.01
GENERATING = ("first-image", "generated-per-s", "image")
"""The metrics of generating: the time of the first image, the median rate of batches, the median time of one image."""
OF_EVERY_TRAINING = (
    *("throughput", "elapsed", "opening", "epoch", "first-epoch", "epoch-scaled", "checkpoint"),
    *GENERATING,
    "allocated-cpu-time",
    *("own-frechet", "own-score", "time-to-quality"),
    *("fid", "kid", "inception-score", "precision", "recall", "time-to-fid"),
)
"""The metrics of every training and of every kept model; no metric of a workload's own can have these names."""


def line_of(function: Callable[..., object]) -> str:
    """Return the file and the line where a method of the user's begins: ``my_model.py, line 12``."""
    code = function.__code__
    return f"{code.co_filename.rpartition('/')[2]}, line {code.co_firstlineno}"


@dataclass(frozen=True)
class Shape:
    """The images of a job, squares of ``px`` pixels, or the length of its sequences; 0 for what it has not."""

    px: int
    channels: int
    tokens: int = 0
    depth: int = 0
    """The blocks of a network that has more of them in a larger profile."""

    @property
    def decoded(self) -> int:
        """Return how many tokens of a sequence are decoded when it is served, after a prompt of the others."""
        return self.tokens // 2


@dataclass(frozen=True)
class WorkloadMetric:
    """A number that a workload measures beside those of every training; it must come out above zero."""

    name: str
    unit: str
    """Empty for a number without a unit."""
    better: Literal["more", "less"]
    per: Literal["step", "job"] = "job"
    """A metric per step is recorded as the median of the measured steps, with every value as a sample."""


@dataclass(frozen=True)
class StepCost:
    """The cost of a training step, for forecasts. A test counts both numbers for every workload of the suite."""

    gflop: float
    """The 10^9 floating-point operations of a step for each unit of its batch: those forward and backward."""
    parameters_millions: float
    """The parameters that a step updates, in millions."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The declaration of a workload. A subclass implements ``build``, and overrides of the rest what differs.

    A workload of one network that has one loss overrides ``optimizer`` and ``loss``, and can be spread over devices and
    instances. One that overrides ``step`` has as many networks, optimizers and losses as it likes, on one device of
    each instance; it calls ``training.update`` for each optimizer.
    """

    name: str
    sizes: Mapping[str, tuple[int, int] | int]
    """Batch per device, in its ``unit``, and the ``extent`` by profile. The batch alone for a workload that has no
    extent. One without images implements ``draw``."""
    extent: Extent = "image_px"
    """What the second number of its sizes is: pixels of an image's side, or tokens of a sequence."""
    depth: Mapping[str, int] = field(default_factory=dict)
    """The depth of the network by profile, where profiles differ in it; ``build`` finds it in the shape."""
    smallest_image_px: int = 1
    """Below this, the layers leave nothing of the image."""
    unit: str = "images"
    """What batch and throughput count: images, or such as the tokens of all sequences of a batch."""
    metrics: tuple[WorkloadMetric, ...] = ()
    cost: StepCost | None = None
    """The cost of training at the sizes of the profile paper, for forecasts. None: it is forecast as a ResNet-50."""
    crop: Literal["random", "centre"] = "random"
    """What is taken of the images of a data set: a random part, perhaps mirrored, or the square in the middle."""
    scenarios: tuple[str, ...] = ()
    """The scenarios in which it can be trained, where not in all; the others refuse it before anything starts."""
    channels: int | None = None
    """The channels of images that no data set gives; None for a workload that takes three and no other number."""
    smallest_batch: int = 1
    """Below this, there is nothing to take batch statistics of."""
    alone_from_px: int = 1
    """Below this, the last layers leave single numbers of an image: a batch of one has no statistics either."""
    pixels: Literal["imagenet", "signed", "unit"] = "imagenet"
    """The scale of its images: less ImageNet's mean, over its deviation; from -1 to 1; or from 0 to 1."""
    phases: tuple[str, ...] = ()
    """The parts of computing that its step is timed by, in their order."""
    losses: tuple[str, ...] = ("loss",)
    """The numbers that each step gives, by name."""
    reproducible: bool = True
    """Whether its losses and weights follow from the seed alone: torch, numpy and random are seeded for it. Where they
    do not, targets that computed something else are named in place of refused."""
    communicates: bool = False
    """Whether ``loss`` does nothing but exchange messages between two or more workers, and trains nothing."""
    splits: bool = False
    """Whether generator and discriminator can train on an instance each: its network and its optimizers have these
    names, it has the method ``noise``, and a step updates the generator once."""
    image_network: str = ""
    """Which of several networks makes its images; empty for the whole."""
    compiles: bool = True
    """Whether torch.compile can take its networks; of compiled code there is no gradient of a gradient."""

    def __post_init__(self) -> None:
        names = [metric.name for metric in self.metrics]
        wrong = [name for name in names if name in OF_EVERY_TRAINING or names.count(name) > 1]
        if wrong:
            raise ValueError(f"a metric of the workload {self.name} cannot be called {wrong[0]}: the name is taken")
        if self.extent not in EXTENTS:
            raise ValueError(f"the extent of the workload {self.name} is {self.extent!r}, not {' or '.join(EXTENTS)}")

    def has(self, extent: Extent) -> bool:
        return self.extent == extent and not any(isinstance(size, int) for size in self.sizes.values())

    @property
    def has_images(self) -> bool:
        return self.has("image_px")

    @property
    def one_loss(self) -> bool:
        """Return whether its step is that of one network with one loss: replicas can average while they go backward."""
        return type(self).step is Workload.step

    @property
    def descends(self) -> bool:
        """Return whether its step is plain gradient descent, which parameter servers do."""
        return self.one_loss and type(self).optimizer is Workload.optimizer

    @property
    def generates(self) -> bool:
        return type(self).generate is not Workload.generate

    @property
    def makes_images(self) -> bool:
        return self.generates and self.has_images

    def least_batch(self, image_px: int | None) -> int:
        """Return the smallest batch, of such images if it has any, that it can train on."""
        return max(self.smallest_batch, 1 if image_px is None or image_px >= self.alone_from_px else 2)

    def size_wanted(self, extent: int) -> str | None:
        """Return which extents it takes, if not this one: ``32 or more``."""
        if extent < self.smallest_image_px:
            return f"{self.smallest_image_px} or more"
        return None

    def cost_at(self, extent: int | None, depth: int | None = None) -> StepCost | None:  # noqa: ARG002 (some have a depth)
        """Return the cost of training at an extent, in proportion to the pixels of an image; None if it has none."""
        size = self.sizes.get("paper", 0)
        if not self.cost or not extent or not self.has_images or isinstance(size, int):
            return self.cost
        return StepCost(self.cost.gflop * (extent / size[1]) ** 2, self.cost.parameters_millions)

    def stages(self, image_px: int) -> int:
        """Return in how many stages of equally many steps a job goes, by the pixels of its images; 0 for none."""
        del image_px
        return 1

    def stage_at(self, progress: float, image_px: int) -> int:
        """Return the stage, from 0 on, at a share of the job's measured steps."""
        stages = self.stages(image_px)
        return min(int(progress * stages), stages - 1)

    def draw(self, batch: int, shape: Shape, generator: "torch.Generator") -> "tuple[torch.Tensor, torch.Tensor]":
        """Return the one batch of inputs and labels that a job without a data set trains on, again and again."""
        import torch

        images = torch.rand(batch, shape.channels, shape.px, shape.px, generator=generator)
        labels = torch.randint(CLASSES, (batch,), generator=generator)
        return images * 2 - 1 if self.pixels == "signed" else images, labels

    def build(self, shape: Shape) -> "torch.nn.Module":
        """Return the network; of several, a ``ModuleDict``.

        torch has been seeded: the first weights depend on the seed of the trial alone.
        """
        raise NotImplementedError

    def optimizers(self, network: "torch.nn.Module") -> Mapping[str, "torch.optim.Optimizer"]:
        return {"network": self.optimizer(network)}

    def optimizer(self, network: "torch.nn.Module") -> "torch.optim.Optimizer":
        """Return the optimizer: plain gradient descent, as the ``sgd`` of tf_cnn_benchmarks."""
        import torch

        return torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)

    def loss(self, network: "torch.nn.Module", images: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
        """Return the loss of one batch, of which the step takes the gradients."""
        import torch

        output = network(images)
        if not isinstance(output, torch.Tensor):
            model: Any = getattr(network, "module", network)
            where = line_of(type(model).forward)
            raise TypeError(f"forward ({where}) returns a {type(output).__name__}: return a tensor, or declare a loss")
        try:
            return torch.nn.functional.cross_entropy(output, labels)
        except IndexError as error:  # a target out of bounds
            raise IndexError(
                f"build ({line_of(type(self).build)}) returns a network with {output.shape[1]} outputs, and labels are "
                f"drawn from {CLASSES}: give it {CLASSES}, or declare draw with labels of yours, or a loss"
            ) from error

    def checked_loss(
        self, network: "torch.nn.Module", images: "torch.Tensor", labels: "torch.Tensor"
    ) -> "torch.Tensor":
        """Return the loss. Raises TypeError for one that a step cannot take the gradients of."""
        import torch

        loss: object = self.loss(network, images, labels)
        where = f"loss ({line_of(type(self).loss)})"
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"{where} returns a {type(loss).__name__}: return one number, as a tensor")
        if loss.numel() != 1:
            raise TypeError(f"{where} returns {loss.numel()} numbers: return one, such as their mean")
        if loss.requires_grad:
            return loss
        if not any(parameter.requires_grad for parameter in network.parameters()):
            built = line_of(type(self).build)
            raise TypeError(f"build ({built}) returns a network without a parameter that is trained: see requires_grad")
        raise TypeError(f"{where} depends on no parameter that is trained: see requires_grad and no_grad")

    def checked_step(self, training: "Training", images: "torch.Tensor", labels: "torch.Tensor") -> "Losses":
        """Return the losses of a step. Raises TypeError for one that is no tensor."""
        import torch

        losses = self.step(training, images, labels)
        for name, loss in losses.items():
            if not isinstance(loss, torch.Tensor):
                where = f"step ({line_of(type(self).step)})"
                raise TypeError(f"{where} returns a {type(loss).__name__} as {name}: return tensors, as loss.detach()")
        return losses

    def checked_optimizers(self, network: "torch.nn.Module") -> Mapping[str, "torch.optim.Optimizer"]:
        """Return the optimizers. Raises TypeError for one whose step needs a closure, which none is given."""
        optimizers = self.optimizers(network)
        for optimizer in optimizers.values():
            closure = signature(optimizer.step).parameters.get("closure")
            if closure and closure.default is closure.empty:
                kind = type(self)
                declared = kind.optimizer if kind.optimizers is Workload.optimizers else kind.optimizers
                raise TypeError(
                    f"{declared.__name__} ({line_of(declared)}) returns {type(optimizer).__name__}, whose step needs a "
                    "closure: return one whose step needs none, such as SGD or Adam"
                )
        return optimizers

    def step(self, training: "Training", images: "torch.Tensor", labels: "torch.Tensor") -> "Losses":
        """Train on one batch. Returns what ``losses`` names, on the device: nothing here waits for it."""
        with training.autocast():
            loss = self.checked_loss(training.network, images, labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        training.update("network")
        return {"loss": loss}

    def noise(self, count: int, device: "torch.device") -> "torch.Tensor":
        """Return what the generator of a workload that ``splits`` makes so many images of."""
        raise NotImplementedError

    def generate(self, network: "torch.nn.Module", count: int) -> "Iterable[torch.Tensor]":
        """Return so many images that the trained network makes, in the scale of ``pixels``.

        The network is in evaluation mode, and no gradient is taken.

        Where the extent is ``tokens``, yield the next token of each of so many sequences, ``Shape.decoded`` times.
        """
        raise NotImplementedError

    def checkpoint(self, training: "Training") -> dict[str, Any]:
        """Return what a training goes on from: every network and every optimizer."""
        optimizers = {name: optimizer.state_dict() for name, optimizer in training.optimizers.items()}
        return {"network": training.network.state_dict(), "optimizers": optimizers}

    def restore(self, training: "Training", checkpoint: Mapping[str, Any]) -> None:
        training.network.load_state_dict(checkpoint["network"])
        for name, optimizer in training.optimizers.items():
            optimizer.load_state_dict(checkpoint["optimizers"][name])

    def after_step(self, network: "torch.nn.Module", loss: float) -> Mapping[str, float]:
        """Return the metrics per step. Called after every measured step if there are any.

        The step's own time does not hold the call, but the throughput of the job does: do little here.
        """
        raise NotImplementedError

    def after_job(self, network: "torch.nn.Module", steps_s: Sequence[float]) -> Mapping[str, float]:
        """Return the metrics per job, from the seconds of every measured step. Called once, after the last of them."""
        raise NotImplementedError
