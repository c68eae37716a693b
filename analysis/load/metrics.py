"""The metrics, as data: the numbers of every training, and what workloads and probes have of their own."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from analysis.warnings.types import AnalysisWarning
from suite.records.record import SCALED_EPOCH, Compared, MetricValue
from suite.request.traits import traits_of
from suite.results.quality import QUALITY_METRICS

Better = Literal["more", "less"]


def with_trait(table: pd.DataFrame, trait: str) -> "pd.Series[bool]":
    """Return the rows of a table whose scenarios declare a trait; see ``suite.request.traits.Traits``."""
    names = [str(name) for name in table["scenario"].unique()]
    return table["scenario"].isin([name for name in names if getattr(traits_of(name), trait)])


@dataclass(frozen=True)
class Metric:
    """A number of a trial. ``column`` is its name in a table of trials."""

    name: str
    column: str
    unit: str
    better: Better = "less"
    model: str | None = None
    """The workload or probe that measures it; None for what every training measures."""
    of_probe: bool = False
    supporting: bool = False
    """Whether it supports the others: it stands in the report, in JSON and CSV, and in tables with room for it, not in
    figures and lines, and no run is failed by it."""
    compared: Compared = "ratio"
    of_target: bool = False
    """Whether the target takes it, and not the training in it: those of layers add, and no gate is failed by it."""
    of_whole_job: bool = False
    """Whether it is the time of a job from its launch to its end: no job has waited longer for a CPU than others had
    it."""

    @property
    def more_is_faster(self) -> bool:
        return self.better == "more"

    @property
    def by_difference(self) -> bool:
        """Return whether it can be zero, so that it has no ratio: see ``statistics.counts``."""
        return self.compared == "difference"

    def logs(self, table: pd.DataFrame) -> "pd.Series[float]":
        """Return the logarithms of a metric that is compared by ratios; none if a number is zero, which has none.

        The others would not be a sample of it: zeros are not missing at random.
        """
        values = table[self.column].to_numpy(dtype=np.float64)
        if self.has_zeros(table):
            values = np.full(len(table), np.nan)
        return pd.Series(np.log(values), table.index)

    def compared_in(self, table: pd.DataFrame) -> "Metric":
        """Return the metric as it is compared among the trials of a table: with a zero by differences."""
        if self.has_zeros(table):
            return replace(self, compared="difference")
        return self

    def has_zeros(self, table: pd.DataFrame) -> bool:
        """Return whether a number in a table is not above zero."""
        return bool((table[self.column] <= 0).any())


def by_ratio(metrics: Iterable[Metric]) -> list[Metric]:
    """Return the metrics that are compared by ratios."""
    return [metric for metric in metrics if not metric.by_difference]


METRICS = (
    Metric("throughput", "throughput_per_s", "1/s", "more"),
    Metric("elapsed", "elapsed_s", "s", of_whole_job=True),
    Metric("opening", "open_s", "s", of_target=True),
    Metric("step-tail", "step_tail", "x", supporting=True),
)
"""The metrics of every training; ``in_units`` gives the throughput its unit."""


def metrics_of(metrics: Sequence[Metric], scenario: str, model: str) -> tuple[Metric, ...]:
    """Return the metrics that trials of this scenario and model measure."""
    probes = traits_of(scenario).probes
    return tuple(metric for metric in metrics if metric.of_probe == probes and metric.model in (None, model))


def in_units(metrics: Sequence[Metric], unit: object) -> tuple[Metric, ...]:
    """Return the metrics, the throughput in what the workload counts: ``images/s``."""
    return tuple(replace(metric, unit=f"{unit}/s") if metric == METRICS[0] else metric for metric in metrics)


def spread(trials: pd.DataFrame) -> tuple[pd.DataFrame, tuple[Metric, ...], tuple[AnalysisWarning, ...]]:
    """Return trials with a column for each own metric of a workload or probe, all metrics, and warnings.

    A metric has the unit and direction of the first record; others are left out with a warning.
    """
    metrics: dict[str, Metric] = {}
    columns: dict[str, dict[object, float]] = {}
    redefined: dict[Metric, int] = {}
    measured = trials.loc[trials["metrics"].notna(), ["scenario", "model", "metrics"]]
    for index, scenario, model, values in measured.itertuples():
        value: MetricValue
        for name, value in values.items():
            of_probe = traits_of(scenario).probes
            column = f"{model}/{name}" if of_probe else f"training/{model}/{name}"
            metric = metrics.get(column)
            if metric is None:
                # The first is the throughput once more; the others were measured after the run, and no target's speed.
                supports = name in (SCALED_EPOCH, *QUALITY_METRICS)
                metric = metrics[column] = Metric(
                    name,
                    column,
                    value.unit,
                    value.better,
                    str(model),
                    of_probe=of_probe,
                    supporting=supports,
                    compared=value.compared,
                )
            if (value.unit, value.better, value.compared) == (metric.unit, metric.better, metric.compared):
                columns.setdefault(metric.column, {})[index] = value.value
            else:
                redefined[metric] = redefined.get(metric, 0) + 1
    added = pd.DataFrame(columns, index=trials.index, dtype="float64")
    warnings = tuple(
        AnalysisWarning(
            "metric-redefined",
            f"{metric.column} is not in {metric.unit}, or has another direction, in {count} records: left out there",
            "records of different versions of the probe or workload: compare the runs one at a time",
        )
        for metric, count in redefined.items()
    )
    return trials.drop(columns="metrics").join(added), (*METRICS, *metrics.values()), warnings
