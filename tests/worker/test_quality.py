"""Quality by the suite's own classifier: the formulas against closed forms, and what is refused."""

import json
import math
import os
import pickle
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.test_epochs import STEPS, directory, epochs
from tests.worker.test_keeping import last, models_of
from tests.worker.test_worker_program import REPOSITORY
from worker import quality
from worker.protocol import Events
from worker.quality import OwnClassifier, frechet_distance, scaled, score, train_classifier
from worker.spec import QualitySpec, parse_spec

__all__ = ["directory", "epochs", "last"]


def whitened(rng: np.random.Generator, count: int, size: int) -> np.ndarray[Any, Any]:
    """Return features with a mean of exactly zero and a covariance of exactly one."""
    drawn = rng.normal(size=(count, size))
    centred = drawn - drawn.mean(0)
    root = np.linalg.cholesky(np.linalg.inv(np.cov(centred, rowvar=False)))
    whole: np.ndarray[Any, Any] = centred @ root
    return whole


def test_the_distance_of_gaussians_is_the_closed_form() -> None:
    rng = np.random.default_rng(1)
    one, other = whitened(rng, 500, 6), whitened(rng, 700, 6)
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(one, other) == pytest.approx(0, abs=1e-9)
    shift = np.arange(6.0)
    assert frechet_distance(one, other + shift) == pytest.approx(float(shift @ shift))
    deviations = np.array([1, 2, 3, 0.5, 1, 0])
    assert frechet_distance(one, other * deviations) == pytest.approx(float(((deviations - 1) ** 2).sum()))


def test_the_distance_does_not_depend_on_the_axes_or_on_the_side() -> None:
    rng = np.random.default_rng(2)
    one, other = whitened(rng, 300, 4) * [1, 2, 3, 4] + 1, whitened(rng, 300, 4) * [4, 1, 1, 2]
    turn, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    assert frechet_distance(one @ turn, other @ turn) == pytest.approx(frechet_distance(one, other))
    assert frechet_distance(other, one) == pytest.approx(frechet_distance(one, other))


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        (np.zeros((8, 4)), 1.0),
        (np.tile([9.0, 0, 0, 0], (8, 1)), 1.0),
        (np.repeat(np.eye(4), 2, axis=0) * 1000, 4.0),
        (np.repeat(np.eye(4)[:2], 4, axis=0) * 1000, 2.0),
        (np.log([[0.8, 0.2], [0.2, 0.8]]), math.exp(0.8 * math.log(1.6) + 0.2 * math.log(0.4))),
    ],
)
def test_the_score_of_known_logits_is_the_closed_form(logits: np.ndarray[Any, Any], expected: float) -> None:
    assert score(logits) == pytest.approx(expected)


def test_the_classifier_has_at_most_100_000_numbers() -> None:
    assert sum(each.numel() for each in OwnClassifier(3, quality.MOST_CLASSES).parameters()) <= 100_000


def test_the_classifier_learns_and_follows_from_its_seed() -> None:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(4, (60, 32), generator=generator)
    images = torch.randn(60, 32, 1, 16, 16, generator=generator) * 0.1 + labels[..., None, None, None] / 2

    def trained() -> OwnClassifier:
        return train_classifier(zip(images, labels, strict=True), 60, 1, 4)

    one, other = trained(), trained()
    assert one.accuracy > 0.9
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


Measure = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def model(epochs: dict[str, Any], tmp_path: Path) -> tuple[str, Path]:
    """The digest and the file of a model of one epoch."""
    (kept,), _ = models_of({**epochs, "epochs": 1, "steps": STEPS, "keep_model": "last"})
    (tmp_path / "model.pt").write_bytes(b64decode(kept["text"]))
    return kept["weights_sha256"], tmp_path / "model.pt"


@pytest.fixture
def measure(epochs: dict[str, Any]) -> Measure:
    """Measures a model against the images that it was trained on; returns the events."""

    def _measure(
        digest: str, file: Path, samples: int = 40, inception: str | None = None, **change: Any
    ) -> list[dict[str, Any]]:
        spec = {**epochs, "epochs": None, "batch": 8, "steps": 30, **change}
        given = json.dumps({"spec": spec, "models": {digest: str(file)}, "samples": samples, "inception": inception})
        argv = [sys.executable, "-m", "worker.quality"]
        done = subprocess.run(argv, input=given, capture_output=True, text=True, cwd=REPOSITORY, check=False)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return lambda *words, **change: [event for event in _measure(*words, **change) if event["event"] != "progress"]


class Code:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("/tmp/virtbench-quality-ran",)


def test_models_are_measured_refused_or_told_apart(measure: Measure, model: tuple[str, Path]) -> None:
    digest, file = model
    found, done = measure(digest, file)
    assert (found["event"], done["event"]) == ("quality", "done")
    assert found["weights_sha256"] == digest
    assert found["numbers"]["own-score"] >= 1
    assert found["numbers"]["own-frechet"] > 0
    assert 0 <= found["numbers"]["accuracy"] <= 1
    whole = file.read_bytes()
    for content, why in (
        (whole[: len(whole) // 2], "cannot be served"),
        (pickle.dumps(Code()), "cannot be served"),
        (b"", "cannot be served"),
    ):
        file.write_bytes(content)
        assert why in measure(digest, file)[-1]["message"]
    assert not Path("/tmp/virtbench-quality-ran").exists(), "no code of a file is run"
    file.write_bytes(whole)
    assert "it was changed" in measure("ab" * 32, file)[-1]["message"]


def test_progress_is_told_of_the_classifier_the_real_images_and_each_model(
    model: tuple[str, Path], epochs: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    spec = {**epochs, "epochs": None, "batch": 8, "steps": 30}
    request = QualitySpec(spec=parse_spec(json.dumps(spec)), models={model[0]: str(model[1])}, samples=40)
    quality.run(request, Events(1))
    shown = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    whats = [event["what"] for event in shown if event["event"] == "progress"]
    assert list(dict.fromkeys(whats)) == ["training the classifier", "real images", "model 1 of 1"]
    assert all(event["done"] < event["of"] for event in shown if event["event"] == "progress")


def test_a_set_with_fewer_images_than_samples_is_refused(measure: Measure) -> None:
    assert "has 42 images of 10 classes" in measure("ab" * 32, Path("model.pt"), samples=43)[-1]["message"]
    assert "--data" in measure("ab" * 32, Path("model.pt"), data=None)[-1]["remedy"]


def test_the_pixels_of_real_and_generated_images_have_one_scale(last: dict[str, Any]) -> None:
    pixels = np.array([[[[0]], [[255]]]], np.uint8)
    assert scaled(pixels, parse_spec(json.dumps(last))).flatten().tolist() == pytest.approx([-1, 1])
