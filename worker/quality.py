"""The quality of generated images, by a classifier that is trained on the real ones from a fixed seed.

Its numbers are ``own-score`` and ``own-frechet``: the formulas of Inception Score and FID, over features that tell the
classes of this data set apart. They compare generators of one data set and size with each other, and nothing else. It
is a program of the host's, which no target runs: ``python3 -m worker.quality``.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from worker.data.batches import Batch, watching_loaders
from worker.data.decode import scale_of
from worker.data.loader import open_images
from worker.protocol import Events, JobError, guarded, take_stdout
from worker.serving.generator import BATCH, Generator, Pixels, read_model
from worker.spec import QualitySpec, Spec, parsed
from worker.training.build import build_network, opened_batches
from worker.weights import weights_sha256

Table = npt.NDArray[np.float64]
"""A row for each image."""
SEED = 0
MOST_CLASSES = 1000
_WIDTHS = (16, 32, 64)


def frechet_distance(first: Table, second: Table) -> float:
    """Return |m - n|^2 + tr(S + T - 2 (ST)^1/2) of the Gaussians of two sets of features.

    Dowson and Landau, J. Multivar. Anal. 12 (1982) 450. The trace of the root is that of (S^1/2 T S^1/2)^1/2.
    """
    shift = first.mean(0) - second.mean(0)
    first_covariance, second_covariance = (
        np.atleast_2d(np.cov(features, rowvar=False)) for features in (first, second)
    )
    values, vectors = np.linalg.eigh(first_covariance)
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T
    both = np.sqrt(np.linalg.eigvalsh(root @ second_covariance @ root).clip(0)).sum()
    # Rounding may leave less than nothing of two equal sets.
    return float(max(1e-12, shift @ shift + np.trace(first_covariance) + np.trace(second_covariance) - 2 * both))


def score(logits: Table) -> float:
    """Return exp(mean KL(p(y|x) || p(y))): 1 where all images look alike, up to the number of classes.

    Salimans et al., NeurIPS 2016, over all images at once.
    """
    logs = logits - logits.max(1, keepdims=True)
    logs = (logs - np.log(np.exp(logs).sum(1, keepdims=True))).clip(-700)  # whose exponential is no zero
    marginal = np.exp(logs).mean(0)
    return float(np.exp((np.exp(logs) * (logs - np.log(marginal))).sum(1).mean()))


class OwnClassifier(nn.Module):
    """Three convolutions with stride 2, of which the means of the maps are the features, and a linear layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in zip((channels, *_WIDTHS), _WIDTHS, strict=False):
            layers += [nn.Conv2d(before, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classes = nn.Linear(_WIDTHS[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.classes(self.features(images))
        return logits

    @torch.inference_mode()
    def seen(self, images: torch.Tensor) -> tuple[Table, Table]:
        """Return the features and the logits of images, without training."""
        self.eval()
        features = self.features(images)
        return features.double().numpy(), self.classes(features).double().numpy()


def train_classifier(batches: Iterator[Batch], steps: int, channels: int, classes: int) -> tuple[OwnClassifier, float]:
    """Return a classifier, and its accuracy, a share, on the images of its last steps before it learned from them."""
    torch.manual_seed(SEED)
    network = OwnClassifier(channels, classes)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    right = []
    for _, (images, labels) in zip(range(steps), batches, strict=False):
        logits = network(images)
        right.append(float((logits.argmax(1) == labels).float().mean()))
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network, float(np.mean(right[-(steps // 10) :]))


def run(request: QualitySpec, events: Events) -> None:
    """Train the classifier, and emit its ``classifier`` and a ``quality`` of every model. Raises JobError."""
    spec = request.spec
    torch.set_num_threads(spec.threads)
    classes = _classes(spec, request.samples)
    generators = [_loaded(spec, digest, Path(path)) for digest, path in request.models.items()]
    with watching_loaders(), opened_batches(spec) as [reader]:
        batches = ((reader.prepared(images), labels) for images, labels in iter(reader.next, None))
        network, accuracy = train_classifier(batches, spec.steps, spec.shape.channels, classes)
        real = _seen(network, (next(batches)[0] for _ in range(0, request.samples, spec.batch)), request.samples)
    events.emit("classifier", accuracy=accuracy, parameters=sum(each.numel() for each in network.parameters()))
    for digest, generator in zip(request.models, generators, strict=True):
        features, logits = _seen(network, _generated(generator, spec, request.samples), request.samples)
        distance = frechet_distance(features, real[0])
        events.emit("quality", weights_sha256=digest, score=score(logits), frechet=distance)
    events.emit("done")


def _classes(spec: Spec, samples: int) -> int:
    """Return the number of classes of the data set. Raises JobError for a set that trains no classifier."""
    if spec.data is None:
        raise JobError("drawn images have no classes", kind="data", remedy="name the data set with --data")
    labels = open_images(spec.data).labels
    classes = int(labels.max()) + 1
    if not 2 <= classes <= MOST_CLASSES or len(labels) < samples:
        sizes = f"the data set has {len(labels)} images of {classes} classes"
        raise JobError(f"{sizes}; 2 to {MOST_CLASSES} are needed, and {samples} images", kind="data")
    return classes


def _loaded(spec: Spec, digest: str, path: Path) -> Generator:
    """Return the generator of a model. Raises JobError for a file of anything else."""
    workload = spec.load_workload()
    network = build_network(workload, spec.shape, SEED).eval()
    maker = network.get_submodule(workload.image_network)
    read_model(maker, path, spec.shape)
    if (found := weights_sha256(maker)) != digest:
        raise JobError(f"{path} holds the weights {found}: it was changed", kind="model", remedy="train it again")
    return Generator(workload, network, spec.shape)


def _generated(generator: Generator, spec: Spec, samples: int) -> Iterator[torch.Tensor]:
    """Yield images of a model, in the scale of the real ones."""
    torch.manual_seed(SEED)
    for _ in range(0, samples, BATCH):
        yield scaled(generator.pixels(BATCH), spec)


def scaled(pixels: Pixels, spec: Spec) -> torch.Tensor:
    """Return images as a network of the workload takes them, of their bytes."""
    mean, factor = scale_of(spec.load_workload().pixels, spec.shape.channels)
    return torch.from_numpy((pixels - mean) * factor).float().permute(0, 3, 1, 2)


def _seen(network: OwnClassifier, images: Iterator[torch.Tensor], samples: int) -> tuple[Table, Table]:
    """Return the features and the logits of the first images."""
    parts = [network.seen(each) for each in images]
    features, logits = (np.concatenate(column)[:samples] for column in zip(*parts, strict=True))
    return features, logits


if __name__ == "__main__":
    EVENTS = Events(take_stdout())
    raise SystemExit(guarded(EVENTS, lambda: run(parsed(QualitySpec, sys.stdin.read()), EVENTS)))
