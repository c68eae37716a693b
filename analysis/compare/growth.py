"""Find what instances that were opened together took, by their number, and what each further one adds.

The slope of a block is that of least squares over its numbers of instances; the blocks are the sample.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.compare.contrasts import valued
from analysis.compare.pairing import JOB, grouped
from analysis.compare.results import Arm, Contrast
from analysis.load.metrics import Metric, with_trait
from analysis.statistics.ratios import locate
from suite.trial_names import instances_in

TIMES = (Metric("ready-median", "", "s"), Metric("ready-p95", "", "s"))
EACH = (Metric("memory-per-instance", "", "MB"), Metric("host-cpu-per-instance", "", "s"))
"""The metrics that are a mean over the instances: what they take together grows."""
FAILED = Metric("failed-instances", "", "")


def growth(finished: pd.DataFrame) -> Iterator[Contrast]:
    """Yield what each number of instances took (``together``), and the slopes (``growth``); trials that are ok."""
    trials = finished[with_trait(finished, "multiplied")].fillna({"ablation": ""})
    for (job, target, ablation), rows in grouped(trials, [*JOB, "target", "ablation"]) if len(trials) else ():
        for metric in (*TIMES, *EACH, FAILED):
            values = dict(_by_model(rows, metric))
            for model, of_model in values.items():
                arm, place = Arm(job, model, target, ablation), locate(np.log(of_model.to_numpy()))
                yield Contrast(kind="together", arm=arm, metric=metric, **valued(place), trials=len(of_model))
            by_number = pd.DataFrame({instances_in(model): of_model for model, of_model in values.items()})
            if place := locate(_slopes(by_number, whole=metric in EACH), trim=0):
                arm = Arm(job, "", target, ablation)
                yield Contrast(kind="growth", arm=arm, metric=metric, value=place.centre, value_interval=place.interval)


def _by_model(rows: pd.DataFrame, metric: Metric) -> "Iterator[tuple[str, pd.Series[float]]]":
    """Yield the values of each model that has the metric, by block."""
    for model, of_model in rows.groupby("model"):
        column = of_model.set_index("block").get(f"{model}/{metric.name}")
        if column is not None and column.notna().any():
            yield str(model), column.dropna()


def _slopes(by_number: pd.DataFrame, *, whole: bool) -> list[float]:
    """Return the slope of every block; ``whole``: of the values times the numbers of instances."""
    found = []
    for _, row in by_number.iterrows():
        numbers = row.dropna()
        if len(numbers) > 1:
            counts = np.asarray(numbers.index, dtype=float)
            found.append(float(np.polyfit(counts, numbers.to_numpy() * (counts if whole else 1), 1)[0]))
    return found
