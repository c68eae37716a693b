"""The quality of generated images, by a classifier that is trained on the real ones from a fixed seed, or by Inception.

The former's numbers are ``own-score`` and ``own-frechet``: the formulas of Inception Score and FID, over features that
tell the classes of this data set apart. They compare generators of one data set and size, and nothing else. It is a
program of the host's, which no target runs: ``python3 -m worker.quality``.
"""

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from math import sqrt
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from worker.data.batches import Batch, Batches, watching_loaders
from worker.data.decode import scale_of
from worker.data.loader import open_images
from worker.data.sets import steps_of_epoch
from worker.protocol import Events, JobError, guarded, take_stdout
from worker.serving.generator import BATCH, Generator, Pixels, read_model, to_pixels
from worker.spec import QualitySpec, Spec, parsed
from worker.training.build import build_network, opened_batches
from worker.training.device import import_torchvision, set_threads
from worker.weights import DAMAGED, read_tensors, weights_sha256

Item = TypeVar("Item")
Table = npt.NDArray[np.floating[Any]]
"""A row for each image."""
SEED = 0
MOST_CLASSES = 1000
_SUBSET = 1000
"""The images of a subset of KID."""
_ROWS = 1000
"""The images whose distances are in memory at a time."""
_WIDTHS = (16, 32, 64)


def frechet_distance(first: Table, second: Table) -> float:
    """Return |m - n|^2 + tr(S + T - 2 (ST)^1/2) of the Gaussians of two sets of features.

    Dowson and Landau, J. Multivar. Anal. 12 (1982) 450. The trace of the root is that of (S^1/2 T S^1/2)^1/2.
    """
    shift = first.mean(0) - second.mean(0)
    first_covariance = np.atleast_2d(np.cov(first, rowvar=False))
    second_covariance = np.atleast_2d(np.cov(second, rowvar=False))
    values, vectors = np.linalg.eigh(first_covariance)
    scaled_vectors = vectors * np.sqrt(values.clip(0))
    root = scaled_vectors @ vectors.T
    product = root @ second_covariance @ root
    eigenvalues = np.linalg.eigvalsh(product)
    root_trace = np.sqrt(eigenvalues.clip(0)).sum()
    first_trace = np.trace(first_covariance)
    second_trace = np.trace(second_covariance)
    distance = shift @ shift + first_trace + second_trace - 2 * root_trace
    # Rounding may leave less than nothing of two equal sets.
    return float(max(1e-12, distance))


def score(logits: Table) -> float:
    """Return exp(mean KL(p(y|x) || p(y))): 1 where all images look alike, up to the number of classes.

    Salimans et al., NeurIPS 2016, over all images at once.
    """
    logs = logits - logits.max(1, keepdims=True)
    totals = np.exp(logs).sum(1, keepdims=True)
    logs = (logs - np.log(totals)).clip(-700)  # whose exponential is no zero
    marginal = np.exp(logs).mean(0)
    differences = logs - np.log(marginal)
    divergences = (np.exp(logs) * differences).sum(1)
    return float(np.exp(divergences.mean()))


class OwnClassifier(nn.Module):
    """Three convolutions with stride 2, of which the means of the maps are the features, and a linear layer."""

    accuracy = 0.0  # the share of the last steps' images that it classified before it learned from them

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        widths = zip((channels, *_WIDTHS), _WIDTHS, strict=False)
        for before, width in widths:
            convolution = nn.Conv2d(before, width, 3, 2, 1, bias=False)
            normalisation = nn.BatchNorm2d(width)
            layers += [convolution, normalisation, nn.ReLU()]
        pooling = nn.AdaptiveAvgPool2d(1)
        self.features = nn.Sequential(*layers, pooling, nn.Flatten())
        self.classes = nn.Linear(_WIDTHS[-1], classes)

    @property
    def network(self) -> nn.Module:
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.features(images)
        logits: torch.Tensor = self.classes(features)
        return logits

    @torch.inference_mode()
    def seen(self, images: torch.Tensor) -> tuple[Table, Table]:
        """Return the features and the logits of images, without training."""
        self.eval()
        features = self.features(images)
        classes = self.classes(features)
        return features.double().numpy(), classes.double().numpy()

    def quality(self, generated: tuple[Table, Table], real: tuple[Table, Table]) -> dict[str, float]:
        features, logits = generated
        real_features, _ = real
        return {
            "own-frechet": frechet_distance(features, real_features),
            "own-score": score(logits),
            "accuracy": self.accuracy,
        }


def train_classifier(
    batches: Iterator[Batch],
    steps: int,
    channels: int,
    classes: int,
) -> OwnClassifier:
    torch.manual_seed(SEED)
    network = OwnClassifier(channels, classes)
    parameters = network.parameters()
    optimizer = torch.optim.Adam(parameters, lr=2e-3)
    accuracies = []
    for _, (images, labels) in zip(range(steps), batches, strict=False):
        logits = network(images)
        correct = (logits.argmax(1) == labels).float()
        accuracy = correct.mean()
        accuracies.append(float(accuracy))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    latest = accuracies[-(steps // 10) :]
    network.accuracy = float(np.mean(latest))
    return network


class Inception:
    """torch-fidelity's InceptionV3 with the weights of a file, no code of which is run. Raises JobError for others."""

    def __init__(self, weights: str, request: QualitySpec) -> None:
        self._request = request
        import_torchvision()
        try:
            self._library = import_module("torch_fidelity")
        except ImportError as error:
            missing = "torch-fidelity is not installed"
            raise JobError(missing, kind="import", remedy="pip install 'virtbench[quality]'") from error
        numbers = io.BytesIO()  # the library would run code of the file itself
        try:
            tensors = read_tensors(Path(weights))
            torch.save(tensors, numbers)
            numbers.seek(0)
            self.network = self._library.FeatureExtractorInceptionV3(
                "inception-v3-compat",
                ["2048", "logits_unbiased"],
                feature_extractor_weights_path=numbers,
            )
        except DAMAGED as error:
            reason = " ".join(str(error).split())
            message = f"{weights} does not hold the weights of InceptionV3: {reason[:200]}"
            raise JobError(message, kind="model", remedy="name the file of torch-fidelity's releases") from error

    @torch.inference_mode()
    def seen(self, images: torch.Tensor) -> tuple[Table, Table]:
        """Return the features and the logits without bias; a grey image is repeated in three channels."""
        workload = self._request.spec.load_workload()
        images_in_bytes = to_pixels(images, workload, self._request.spec.shape)
        pixels = torch.from_numpy(images_in_bytes)
        planes = pixels.permute(0, 3, 1, 2)
        colour_planes = planes.expand(-1, 3, -1, -1)
        features, logits = self.network(colour_planes)
        return features.numpy(), logits.numpy()

    def quality(self, generated: tuple[Table, Table], real: tuple[Table, Table]) -> dict[str, float | None]:
        """Return what torch-fidelity calculates by default, but precision and recall over the features of FID.

        KID's interval is that of the delete-d jackknife: Shao and Wu, Ann. Statist. 17 (1989) 1176.
        """
        library = self._library
        first, logits = map(torch.from_numpy, generated)
        second = torch.from_numpy(real[0])
        count = len(second)
        subset = min(_SUBSET, count // 2)
        values = dict[str, float]()
        values |= library.metric_isc.isc_features_to_metric(logits)
        values |= library.metric_kid.kid_features_to_metric(
            first,
            second,
            kid_subset_size=subset,
            verbose=False,
        )
        values |= library.metric_prc.prc_features_to_metric(
            first,
            second,
            prc_batch_size=_ROWS,
            save_cpu_ram=True,
            verbose=False,
        )
        if self._request.measures_fid:
            first_statistics = library.metric_fid.fid_features_to_statistics(first)
            second_statistics = library.metric_fid.fid_features_to_statistics(second)
            values |= library.metric_fid.fid_statistics_to_metric(first_statistics, second_statistics, verbose=False)
        kid = values[library.KEY_METRIC_KID_MEAN]
        spread = subset / (count - subset)
        half = 1.96 * values[library.KEY_METRIC_KID_STD] * sqrt(spread)
        return {
            "fid": values.get(library.KEY_METRIC_FID),
            "kid": kid,
            "kid-low": kid - half,
            "kid-high": kid + half,
            "inception-score": values[library.KEY_METRIC_ISC_MEAN],
            "precision": values[library.KEY_METRIC_PRECISION],
            "recall": values[library.KEY_METRIC_RECALL],
        }


def run(request: QualitySpec, events: Events) -> None:
    """Emit a ``quality`` of every model, after all files were read. Raises JobError."""
    spec = request.spec
    set_threads(spec.threads)
    inception = None
    if request.inception:
        inception = Inception(request.inception, request)
    classes = _classes(spec, request.samples, trains=not inception)
    generators = [_loaded(spec, digest, Path(path)) for digest, path in request.models.items()]

    def told(what: str, steps: Iterable[Item], of: int) -> Iterator[Item]:
        for number, step in enumerate(steps):
            events.emit("progress", what=what, done=number, of=of)
            yield step

    network = inception or _trained(spec, classes, partial(told, "training the classifier", of=spec.steps))
    # From the beginning of an epoch, in which no image comes twice.
    with watching_loaders(), opened_batches(spec) as [reader]:
        batches = -(-request.samples // spec.batch)
        images_read = told("real images", _real_images(reader, batches), batches)
        real = _seen(network, images_read, request.samples)
    numbered = zip(request.models, generators, strict=True)
    for number, (digest, generator) in enumerate(numbered, start=1):
        torch.manual_seed(SEED)
        images = _generated_images(generator, spec, request.samples)
        batches = -(-request.samples // BATCH)
        images_generated = told(f"model {number} of {len(generators)}", images, batches)
        generated = _seen(network, images_generated, request.samples)
        numbers = network.quality(generated, real)
        events.emit("quality", weights_sha256=digest, numbers=numbers)
    events.emit("done", network_sha256=weights_sha256(network.network))


def _real_images(reader: Batches, batches: int) -> Iterator[torch.Tensor]:
    for _ in range(batches):
        images, _labels = reader.next()
        yield reader.prepared(images)


def _generated_images(generator: Generator, spec: Spec, samples: int) -> Iterator[torch.Tensor]:
    for left in range(samples, 0, -BATCH):
        count = min(BATCH, left)
        pixels = generator.pixels(count)
        yield scaled(pixels, spec)


def _trained(spec: Spec, classes: int, told: Callable[[Iterator[Batch]], Iterator[Batch]]) -> OwnClassifier:
    with watching_loaders(), opened_batches(spec) as [reader]:
        loaded = iter(reader.next, None)
        batches = told((reader.prepared(images), labels) for images, labels in loaded)
        return train_classifier(batches, spec.steps, spec.shape.channels, classes)


def _classes(spec: Spec, samples: int, *, trains: bool) -> int:
    """Return the number of classes of the data set. Raises JobError for a set that is too small, or trains nothing."""
    if spec.data is None:
        raise JobError("drawn images have no classes", kind="data", remedy="name the data set with --data")
    labels = open_images(spec.data).labels
    classes = int(labels.max()) + 1
    whole_batches = steps_of_epoch(len(labels), spec.batch)
    too_few_images = whole_batches * spec.batch < samples
    classes_unsuitable = trains and not 2 <= classes <= MOST_CLASSES
    if too_few_images or classes_unsuitable:
        sizes = f"the data set has {len(labels)} images of {classes} classes"
        raise JobError(f"{sizes}; own features need 2 to {MOST_CLASSES}, and {samples} images are asked", kind="data")
    return classes


def _loaded(spec: Spec, digest: str, path: Path) -> Generator:
    """Return the generator of a model. Raises JobError for a file of anything else."""
    workload = spec.load_workload()
    network = build_network(workload, spec.shape, SEED).eval()
    maker = network.get_submodule(workload.image_network)
    read_model(maker, path, spec.shape, digest=digest)
    return Generator(workload, network, spec.shape)


def scaled(pixels: Pixels, spec: Spec) -> torch.Tensor:
    """Return images as a network of the workload takes them, of their bytes."""
    workload = spec.load_workload()
    mean, factor = scale_of(workload.pixels, spec.shape.channels)
    levels = (pixels - mean) * factor
    floats = torch.from_numpy(levels).float()
    return floats.permute(0, 3, 1, 2)


def _seen(network: OwnClassifier | Inception, images: Iterator[torch.Tensor], samples: int) -> tuple[Table, Table]:
    """Return the features and the logits of the first images."""
    features_of_batches = []
    logits_of_batches = []
    for batch in images:
        features, logits = network.seen(batch)
        features_of_batches.append(features)
        logits_of_batches.append(logits)
    all_features = np.concatenate(features_of_batches)
    all_logits = np.concatenate(logits_of_batches)
    return all_features[:samples], all_logits[:samples]


if __name__ == "__main__":
    EVENTS = Events(take_stdout())
    raise SystemExit(guarded(EVENTS, lambda: run(parsed(QualitySpec, sys.stdin.read()), EVENTS)))
