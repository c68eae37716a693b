"""What is measured, as data: the three numbers of a training, and whatever a probe calls its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from analysis.load.fields import Probed
from analysis.warnings.types import AnalysisWarning, MetricRedefined

PROBE = "probe"
SHARED = "shared"
"""The scenario whose model is the name of a probe, and which has metrics in place of a throughput."""
Better = Literal["more", "less"]


@dataclass(frozen=True)
class Metric:
    """A number of a trial. ``column`` is its name in a table of trials; ``probe`` measures it, or a training does."""

    name: str
    column: str
    unit: str
    better: Better = "less"
    probe: str | None = None

    @property
    def more_is_faster(self) -> bool:
        return self.better == "more"

    def of(self, scenario: str, model: str) -> bool:
        """Whether trials of this scenario and model are there to measure it."""
        return scenario != PROBE if self.probe is None else (scenario, model) == (PROBE, self.probe)

    def rows(self, table: pd.DataFrame) -> "pd.Series[bool]":
        """The rows of a table with ``scenario`` and ``model`` for which ``of`` holds."""
        probes = (table["scenario"] == PROBE).astype(bool)
        return ~probes if self.probe is None else probes & (table["model"] == self.probe)


METRICS = (
    Metric("throughput", "throughput_images_per_s", "images/s", "more"),
    Metric("elapsed", "elapsed_s", "s"),
    Metric("opening", "open_s", "s"),
)
"""Of a training."""


def metrics_of(metrics: Sequence[Metric], scenario: str, model: str) -> tuple[Metric, ...]:
    """Those that trials of this scenario and model are there to measure."""
    return tuple(metric for metric in metrics if metric.of(scenario, model))


@dataclass(frozen=True)
class Spread:
    """A table of trials whose probes have a column per metric, in place of ``metrics``."""

    trials: pd.DataFrame
    metrics: tuple[Metric, ...]
    warnings: tuple[AnalysisWarning, ...]


def spread(trials: pd.DataFrame) -> Spread:
    """A metric is what the first record says it is: a value in another unit or direction is left out and named."""
    known: dict[tuple[str, str], Metric] = {}
    columns: dict[str, dict[object, float]] = {}
    other: dict[Metric, int] = {}
    for index, probe, found in _measured(trials).itertuples():
        one: Probed
        for name, one in found.items():
            metric = known.setdefault((probe, name), Metric(name, f"{probe}/{name}", one.unit, one.better, probe))
            if (one.unit, one.better) == (metric.unit, metric.better):
                columns.setdefault(metric.column, {})[index] = one.value
            else:
                other[metric] = other.get(metric, 0) + 1
    added = {name: pd.Series(values, dtype="float64").reindex(trials.index) for name, values in columns.items()}
    warnings = tuple(MetricRedefined(metric.column, metric.unit, count) for metric, count in other.items())
    return Spread(trials.drop(columns="metrics").assign(**added), (*METRICS, *known.values()), warnings)


def _measured(trials: pd.DataFrame) -> pd.DataFrame:
    probes = (trials["scenario"] == PROBE) & trials["metrics"].notna()
    return trials.loc[probes, ["model", "metrics"]]
