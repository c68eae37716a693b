"""The rates of requests as a key: the parts of a trial that had one, each as a separate row."""

import re
from dataclasses import replace

import pandas as pd

from analysis.load.metrics import Metric
from analysis.load.records import Records
from suite.errors import RequestError, option
from suite.job.job import ComparisonKey

RATE = "rate"
AT_RATE = re.compile(r"(?P<name>.+)-at-(?P<rate>[0-9.e+-]+)-per-s")
"""The names of metrics that were measured at a rate."""


def at_each_rate(records: Records) -> Records:
    """Return records with a row for each rate of each trial, whose metrics are those measured at this rate.

    The rows of one trial share its block, so ratios between rates are formed inside it. A trial that failed has a row
    for each rate of its job. Raises RequestError if no trial has a rate.
    """
    rates = records.trials["settings"].astype(object).map(_rates_of)  # of categories none would be divided
    trials = records.trials.assign(**{RATE: rates}).explode(RATE)
    trials = trials[trials[RATE].notna()].reset_index(drop=True)
    if trials.empty:
        raise RequestError(
            f"--by {RATE}: no record has requests at a rate", remedy=f"name runs with {option('scenario')} serve"
        )
    columns: dict[str, pd.Series[float]] = {}
    metrics: dict[str, Metric] = {}
    for metric in records.metrics:
        measured_at = AT_RATE.fullmatch(metric.name)
        if not measured_at:
            continue
        name = measured_at["name"]
        column = f"{metric.model}/{name} by {RATE}"
        values = trials[metric.column].where(trials[RATE] == measured_at["rate"])
        if column in columns:
            values = columns[column].fillna(values)
        columns[column] = values
        metrics[column] = replace(metric, name=name, column=column)
    table = trials.join(pd.DataFrame(columns, index=trials.index, dtype="float64"))
    return replace(records, trials=table, metrics=tuple(metrics.values()))


def _rates_of(settings: ComparisonKey) -> list[str]:
    """Return the rates of a job as the names of its metrics spell them; none for a job without requests."""
    written = dict(settings.pairs).get("rates", "")
    return [f"{float(rate):g}" for rate in written.split("+") if rate]
