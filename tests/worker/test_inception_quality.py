"""Quality by Inception, and the formulas of the suite's own: against torch-fidelity, called by hand on the same arrays.

No trained weights of Inception are at hand: those of these tests are drawn at random, which changes no formula.
"""

import io
import json
import os
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.test_epochs import directory, epochs
from tests.worker.test_quality import Measure, measure, model
from worker import quality
from worker.protocol import Events, JobError
from worker.quality import Inception, OwnClassifier, frechet_distance, run, scaled, score
from worker.spec import QualitySpec, parsed
from worker.training.device import import_torchvision

__all__ = ["directory", "epochs", "measure", "model"]
COUNT = 10


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
    wanted = dict.fromkeys(("isc", "kid", "prc"), True)
    by_hand = fidelity.calculate_metrics(
        input1=Pixels(generated),
        input2=Pixels(real),
        **wanted,
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


class Code:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("/tmp/virtbench-inception-ran",)


def test_a_file_of_anything_else_is_refused_and_its_code_not_run(
    random_weights: Path, request_of: Callable[..., QualitySpec], tmp_path: Path
) -> None:
    half = random_weights.read_bytes()[:10_000_000]
    state = torch.load(random_weights, weights_only=True)
    file = tmp_path / "file.pth"
    for content, why in (
        ({**state, "Conv2d_1a_3x3.conv.weight": Code()}, "damaged, or holds more than numbers"),
        ({**state, "Conv2d_1a_3x3.conv.weight": torch.zeros(3)}, "size mismatch for Conv2d_1a_3x3"),
        (OwnClassifier(3, 10).state_dict(), "Missing key"),
        ([1], "Expected state_dict to be dict-like"),
        (half, "archive"),
        (b"", "damaged"),
        (pickle.dumps(Code(), protocol=2), "damaged, or holds more than numbers"),
    ):
        file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
        with pytest.raises(JobError, match="does not hold the weights of InceptionV3: ") as error:
            Inception(str(file), request_of(COUNT))
        assert why in str(error.value)
        assert "\n" not in str(error.value)
    assert not Path("/tmp/virtbench-inception-ran").exists()
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
    measure: Measure, model: tuple[str, Path], random_weights: Path
) -> None:
    found, done = measure(*model, samples=10, inception=str(random_weights))
    assert (found["event"], done["event"]) == ("quality", "done")
    assert found["weights_sha256"] == model[0]
    assert found["numbers"].keys() == {"fid", "kid", "kid-low", "kid-high", "inception-score", "precision", "recall"}
