"""The quality of a run's kept models, as ``bench quality`` has measured it: ``quality.json`` beside the records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from suite.errors import RequestError
from suite.job.job import Digest
from suite.part import Part
from suite.records.record import KeptModel, MetricValue
from suite.results import files
from suite.results.store import write_atomic

FILE = "quality.json"
OWN_SCORE, OWN_FRECHET, TIME_TO_QUALITY = "own-score", "own-frechet", "time-to-quality"
QUALITY_METRICS = (OWN_SCORE, OWN_FRECHET, TIME_TO_QUALITY)
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ModelQuality(Part):
    """The quality of one model's images."""

    own_score: _Positive
    own_frechet: _Positive
    accuracy: float
    """The accuracy, a share, of the classifier that gave both, on images before it learned from them."""


class RunQuality(Part):
    """The content of ``quality.json``."""

    schema_version: Literal[1] = 1
    features: Literal["own"] = "own"
    samples: int
    """The images on each side."""
    reach: float | None = None
    """The ``own-frechet`` to be reached."""
    models: dict[Digest, ModelQuality]

    def metrics_of(self, kept: Sequence[KeptModel]) -> dict[str, MetricValue]:
        """Return the metrics of a trial: the quality of its last model, and the training until one is good enough."""
        measured = [(model, self.models[model.weights_sha256]) for model in kept if model.weights_sha256 in self.models]
        metrics = {}
        for _, quality in measured[-1:]:
            metrics[OWN_SCORE] = MetricValue(value=quality.own_score, unit="", better="more")
            metrics[OWN_FRECHET] = MetricValue(value=quality.own_frechet, unit="", better="less")
        if model := self.first_reached(kept):
            metrics[TIME_TO_QUALITY] = MetricValue(value=model.training_s, unit="s", better="less")
        return metrics

    def first_reached(self, kept: Sequence[KeptModel]) -> KeptModel | None:
        """Return the first model of a trial that is at or below ``reach``; None if none is, or none was named."""
        measured = ((model, self.models.get(model.weights_sha256)) for model in kept)
        return next(
            (model for model, quality in measured if quality and quality.own_frechet <= (self.reach or 0)), None
        )


def read_quality(run: Path) -> RunQuality | None:
    """Return the quality of a run; None if it was not measured. Raises RequestError for a file that is not one."""
    try:
        return RunQuality.model_validate_json(files.read_small(run / FILE))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise RequestError(
            f"{run / FILE} is no quality of this suite", remedy="remove it, and measure again"
        ) from error


def write_quality(run: Path, quality: RunQuality) -> None:
    """Write the quality of a run. Raises StoreError."""
    write_atomic(run / FILE, quality.model_dump_json(indent=1) + "\n", below=run)
