"""The quality of a run's kept models, as ``bench quality`` has measured it: ``quality.json`` beside the records."""

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from suite.errors import RequestError
from suite.job.job import Digest, Job, Name
from suite.part import Count, Part
from suite.records.record import KeptModel, MetricValue
from suite.results import files
from suite.results.store import ListedFile, Run, read_manifest, write_atomic

FILE = "quality.json"
Features = Literal["own", "inception"]
_LESS = ("own-frechet", "fid", "kid")
_MORE = ("own-score", "inception-score", "precision", "recall")
_BY_DIFFERENCE = ("kid", "precision", "recall")
"""The metrics that can be zero. KID is unbiased, and falls below zero for sets that are alike."""
_GOALS = {"own": ("own-frechet", "time-to-quality"), "inception": ("fid", "time-to-fid")}
"""The metric that ``reach`` bounds, and that of the time until then."""
IMAGE_METRICS = (*_LESS, *_MORE)
"""The metrics of images alone. Those of time are a training's, which other work disturbs."""
QUALITY_METRICS = (*IMAGE_METRICS, *(time for _, time in _GOALS.values()))
Numbers = dict[str, Annotated[float, Field(allow_inf_nan=False)] | None]
"""A model's metrics, with the classifier's ``accuracy`` or the ends of KID's 95 % interval; None for a refused FID."""


class Judge(Part):
    """The network that measured the models of a workload, and the images that it held theirs against."""

    network_sha256: Digest
    """The digest of its weights: other threads, or another torch, train another classifier."""
    data_sha256: Digest
    image_px: Count
    channels: Count


class ModelsQuality(Part):
    """The quality of a run's models by the features of one network."""

    weights_sha256: Digest | None = None
    """The file of Inception's weights; None for the suite's classifier."""
    samples: int
    """The images on each side."""
    reach: float | None = None
    """The ``own-frechet`` or FID to be reached."""
    judges: dict[Name, Judge] = Field(default_factory=dict)
    """Those of each workload, of which models by another judge are not known."""
    models: dict[Digest, Numbers]

    @property
    def way(self) -> tuple[str | None, int]:
        """Return what two numbers by one judge must share to mean the same: the file, and the number of images."""
        return self.weights_sha256, self.samples

    @property
    def features(self) -> Features:
        if self.weights_sha256:
            return "inception"
        return "own"

    def covers(self, workload: str, models: Set[Digest]) -> bool:
        return workload in self.judges and models <= self.models.keys()

    def first_reached(self, kept: Sequence[KeptModel]) -> KeptModel | None:
        """Return the first model of a trial that is at or below ``reach``; None if none is, or none was named."""
        name = _GOALS[self.features][0]
        reach = self.reach or 0
        distances = ((model, self.models.get(model.weights_sha256, {}).get(name)) for model in kept)
        return next((model for model, distance in distances if distance and distance <= reach), None)


class RunQuality(Part):
    """The content of ``quality.json``."""

    schema_version: Literal[1] = 1
    features: dict[Features, ModelsQuality]

    def known(self, asked: ModelsQuality) -> ModelsQuality:
        """Return what is asked for with the models that were measured in the same way."""
        same = self.features.get(asked.features, asked)
        known = {}
        if same.way == asked.way:
            known = {"judges": dict(same.judges), "models": dict(same.models)}
        return asked.model_copy(update=known)

    def metrics_of(self, kept: Sequence[KeptModel], job: Job) -> dict[str, MetricValue]:
        """Return the metrics of a trial: the quality of its last model, and the training until one is good enough.

        One of other images than the job's is left out.
        """
        metrics = {}
        for features, measured in self.features.items():
            judge = measured.judges.get(job.model)
            if judge is None or job.dataset is None or judge.data_sha256 != job.dataset.sha256:
                continue
            distances = measured.models.get(kept[-1].weights_sha256, {})
            for name, value in distances.items():
                metric = _metric(name, value)
                if metric:
                    metrics[name] = metric
            model = measured.first_reached(kept)
            if model:
                metrics[_GOALS[features][1]] = MetricValue(value=model.training_s, unit="s", better="less")
        return metrics


def _metric(name: str, value: float | None) -> MetricValue | None:
    """Return a number as a metric; None for one that is no metric, and for one without a ratio that needs one."""
    if value is None or name not in QUALITY_METRICS:
        return None
    better: Literal["more", "less"] = "less" if name in _LESS else "more"
    if name in _BY_DIFFERENCE:
        return MetricValue(
            value=value,
            unit="",
            better=better,
            compared="difference",
        )
    if value > 0:
        return MetricValue(value=value, unit="", better=better)
    return None


def read_quality(run: Path) -> RunQuality:
    """Return the quality of a run; none for a file that is not listed.

    Raises RequestError for another file, and OSError for want of descriptors or memory.
    """
    try:
        quality = RunQuality.model_validate_json(files.read_small(run / FILE))
        manifest = read_manifest(run)
        trusted = manifest is None or manifest.files.get(FILE) == ListedFile.of(run / FILE)
        if trusted:
            return quality
        return RunQuality(features={})
    except FileNotFoundError:
        return RunQuality(features={})
    except (OSError, ValidationError) as error:
        if files.is_shortage(error):
            raise
        message = f"{run / FILE} is no quality of this suite"
        raise RequestError(message, remedy="remove it, and measure again") from error


def write_quality(run: Path, quality: RunQuality) -> None:
    """Write the quality of a run, and list it in its manifest; a run that was killed has none. Raises StoreError."""
    write_atomic(run / FILE, quality.model_dump_json(indent=1) + "\n", below=run)
    if read_manifest(run):
        Run(run).list_file(FILE)
