"""Quality by the suite's own classifier and by Inception: against closed forms and torch-fidelity, and what is refused.

No trained weights of Inception are at hand: those of these tests are drawn at random, which changes no formula.
"""

import io
import json
import math
import pickle
import sys
from base64 import b64decode
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.conftest import STEPS, Code, saying
from tests.worker.test_generating import models_of
from worker import quality
from worker.protocol import Events, JobError, guarded
from worker.quality import Inception, OwnClassifier, frechet_distance, run, scaled, score, train_classifier
from worker.spec import QualitySpec, parse_spec, parsed
from worker.training.device import import_torchvision

COUNT = 10
RAN = "/tmp/virtbench-quality-ran"


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
    labels = torch.randint(4, (30, 32), generator=generator)
    images = torch.randn(30, 32, 1, 16, 16, generator=generator) * 0.1 + labels[..., None, None, None] / 2

    def trained() -> OwnClassifier:
        return train_classifier(zip(images, labels, strict=True), 30, 1, 4)

    one, other = trained(), trained()
    assert one.accuracy > 0.9
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


@pytest.fixture
def model(epochs: dict[str, Any], tmp_path: Path) -> tuple[str, Path]:
    """The digest and the file of a model of one epoch."""
    (kept,), _ = models_of({**epochs, "epochs": 1, "steps": STEPS, "keep_model": "last"})
    (tmp_path / "model.pt").write_bytes(b64decode(kept["text"]))
    return kept["weights_sha256"], tmp_path / "model.pt"


@pytest.fixture
def measure(epochs: dict[str, Any]) -> Callable[..., list[dict[str, Any]]]:
    """Measures a model against the images that it was trained on; returns the events."""

    def _measure(
        digest: str, file: Path, samples: int = 40, inception: str | None = None, **change: Any
    ) -> list[dict[str, Any]]:
        spec = {**epochs, "epochs": None, "batch": 8, "steps": 30, **change}
        given = json.dumps({"spec": spec, "models": {digest: str(file)}, "samples": samples, "inception": inception})
        with saying() as (events, said):
            guarded(events, lambda: run(parsed(QualitySpec, given), events))
        return said

    return _measure


def test_models_are_measured_with_their_progress_and_refused_or_told_apart(
    measure: Any, model: tuple[str, Path]
) -> None:
    digest, file = model
    *progress, found, done = measure(digest, file)
    assert (found["event"], done["event"]) == ("quality", "done")
    assert found["weights_sha256"] == digest
    assert found["numbers"]["own-score"] >= 1
    assert found["numbers"]["own-frechet"] > 0
    assert 0 <= found["numbers"]["accuracy"] <= 1
    whats = dict.fromkeys(event["what"] for event in progress)
    assert [*whats] == ["training the classifier", "real images", "model 1 of 1"]
    assert all(event["done"] < event["of"] for event in progress)
    assert "it was changed" in measure("ab" * 32, file)[-1]["message"]


def test_a_set_with_fewer_images_than_samples_is_refused(measure: Any) -> None:
    assert "has 42 images of 10 classes" in measure("ab" * 32, Path("model.pt"), samples=43)[-1]["message"]
    assert "--data" in measure("ab" * 32, Path("model.pt"), data=None)[-1]["remedy"]


def test_the_pixels_of_real_and_generated_images_have_one_scale(last: dict[str, Any]) -> None:
    pixels = np.array([[[[0]], [[255]]]], np.uint8)
    assert scaled(pixels, parse_spec(json.dumps(last))).flatten().tolist() == pytest.approx([-1, 1])


@pytest.fixture(scope="module")
def fidelity() -> Any:
    import_torchvision()
    return import_module("torch_fidelity")


@pytest.fixture(scope="module")
def random_weights(fidelity: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an InceptionV3 whose weights are drawn at random."""

    class Drawn(fidelity.FeatureExtractorInceptionV3):  # type: ignore[misc]
        def load_state_dict(self, _state: object) -> None:
            generator = torch.Generator().manual_seed(1)
            for weights in filter(lambda each: each.ndim > 1, self.parameters()):
                torch.nn.init.kaiming_normal_(weights, generator=generator)

    nothing = io.BytesIO()
    torch.save({}, nothing)
    nothing.seek(0)
    path = tmp_path_factory.mktemp("weights") / "random.pth"
    torch.save(Drawn("random", ["2048"], feature_extractor_weights_path=nothing).state_dict(), path)
    return path


@pytest.fixture
def request_of(epochs: dict[str, Any]) -> Callable[..., QualitySpec]:
    def _request(samples: int, channels: int = 3) -> QualitySpec:
        return parsed(
            QualitySpec, json.dumps({"spec": {**epochs, "channels": channels}, "models": {}, "samples": samples})
        )

    return _request


class Pixels(torch.utils.data.Dataset[torch.Tensor]):
    """Images as torch-fidelity reads them."""

    def __init__(self, pixels: np.ndarray[Any, Any]) -> None:
        self._pixels = torch.from_numpy(pixels).permute(0, 3, 1, 2)

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self._pixels[number]


def interval_of(found: dict[str, float | None]) -> tuple[float, float]:
    """Return the centre and the half width of KID's interval."""
    low, high = found["kid-low"], found["kid-high"]
    assert low is not None
    assert high is not None
    assert low < high
    return (low + high) / 2, (high - low) / 2


def test_the_own_formulas_are_those_of_torch_fidelity(fidelity: Any) -> None:
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(300, 20)), rng.normal(1, 2, size=(400, 20)) @ rng.normal(size=(20, 20))
    sides = (fidelity.metric_fid.fid_features_to_statistics(torch.from_numpy(each)) for each in (one, other))
    by_hand = fidelity.metric_fid.fid_statistics_to_metric(*sides, verbose=False)
    assert frechet_distance(one, other) == pytest.approx(by_hand[fidelity.KEY_METRIC_FID])
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-9)
    logits = rng.normal(size=(300, 10)) * 4
    by_hand = fidelity.metric_isc.isc_features_to_metric(torch.from_numpy(logits), splits=1)
    assert score(logits) == pytest.approx(by_hand[fidelity.KEY_METRIC_ISC_MEAN])


@pytest.mark.thorough
def test_images_have_the_numbers_that_torch_fidelity_gives_them(
    fidelity: Any, random_weights: Path, request_of: Callable[..., QualitySpec]
) -> None:
    rng = np.random.default_rng(2)
    generated, real = (rng.integers(low, 256, (COUNT, 28, 28, 3), np.uint8) for low in (0, 100))
    asked = request_of(COUNT)
    inception = Inception(str(random_weights), asked)
    found = inception.quality(*(inception.seen(scaled(each, asked.spec)) for each in (generated, real)))
    by_hand = fidelity.calculate_metrics(
        input1=Pixels(generated),
        input2=Pixels(real),
        **dict.fromkeys(("isc", "kid", "prc"), True),
        feature_extractor="inception-v3-compat",
        feature_extractor_weights_path=str(random_weights),
        kid_subset_size=COUNT // 2,
        **dict.fromkeys(("cuda", "cache", "verbose"), False),
        save_cpu_ram=True,
    )
    assert found["inception-score"] == pytest.approx(by_hand[fidelity.KEY_METRIC_ISC_MEAN])
    assert found["kid"] == pytest.approx(by_hand[fidelity.KEY_METRIC_KID_MEAN])
    assert found["precision"] == pytest.approx(by_hand[fidelity.KEY_METRIC_PRECISION])
    assert found["recall"] == pytest.approx(by_hand[fidelity.KEY_METRIC_RECALL])
    assert interval_of(found) == pytest.approx((found["kid"], 1.96 * by_hand[fidelity.KEY_METRIC_KID_STD]))
    assert found["fid"] is None


def test_a_fid_takes_2048_images_of_three_channels(
    fidelity: Any, random_weights: Path, request_of: Callable[..., QualitySpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not request_of(2048, channels=1).measures_fid
    assert not request_of(2047).measures_fid
    monkeypatch.setattr(quality, "_SUBSET", 50)
    rng = np.random.default_rng(3)
    tables = [(rng.normal(mean, 1, (2048, 8)).astype(np.float32), np.zeros((2048, 4), np.float32)) for mean in (0, 1)]
    found = Inception(str(random_weights), request_of(2048)).quality(*tables)
    sides = (fidelity.metric_fid.fid_features_to_statistics(torch.from_numpy(each)) for each, _ in tables)
    by_hand = fidelity.metric_fid.fid_statistics_to_metric(*sides, verbose=False)
    assert found["fid"] == by_hand[fidelity.KEY_METRIC_FID]
    assert found["fid"] == pytest.approx(frechet_distance(tables[0][0], tables[1][0]), rel=1e-3)
    assert interval_of(found)[0] == pytest.approx(found["kid"])


def test_a_file_of_anything_else_is_refused_and_its_code_not_run(
    random_weights: Path, request_of: Callable[..., QualitySpec], tmp_path: Path
) -> None:
    half = random_weights.read_bytes()[:10_000_000]
    state = torch.load(random_weights, weights_only=True)
    file = tmp_path / "file.pth"
    for content, why in (
        ({**state, "Conv2d_1a_3x3.conv.weight": Code(RAN)}, "damaged, or holds more than numbers"),
        ({**state, "Conv2d_1a_3x3.conv.weight": torch.zeros(3)}, "size mismatch for Conv2d_1a_3x3"),
        (OwnClassifier(3, 10).state_dict(), "Missing key"),
        ([1], "Expected state_dict to be dict-like"),
        (half, "archive"),
        (b"", "damaged"),
        (pickle.dumps(Code(RAN), protocol=2), "damaged, or holds more than numbers"),
    ):
        file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
        with pytest.raises(JobError, match="does not hold the weights of InceptionV3: ") as error:
            Inception(str(file), request_of(COUNT))
        assert why in str(error.value)
        assert "\n" not in str(error.value)
    assert not Path(RAN).exists()
    with pytest.raises(JobError, match="No such file"):
        Inception(str(tmp_path / "none"), request_of(COUNT))


def test_without_torch_fidelity_nothing_is_measured(
    epochs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    asked = {"spec": epochs, "models": {"ab" * 32: "/nowhere"}, "samples": 40, "inception": str(tmp_path)}
    with (tmp_path / "events").open("wb") as file, pytest.raises(JobError, match="not installed") as error:
        run(parsed(QualitySpec, json.dumps(asked)), Events(file.fileno()))
    assert error.value.remedy == "pip install 'virtbench[quality]'"


def test_a_kept_model_is_measured_with_the_weights_of_a_file(
    measure: Any, model: tuple[str, Path], random_weights: Path
) -> None:
    *_, found, done = measure(*model, samples=10, inception=str(random_weights))
    assert (found["event"], done["event"]) == ("quality", "done")
    assert found["weights_sha256"] == model[0]
    assert found["numbers"].keys() == {"fid", "kid", "kid-low", "kid-high", "inception-score", "precision", "recall"}
