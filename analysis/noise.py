"""The noise floor of each group: what bare metal shows against itself."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.pairs import GROUP
from analysis.results import METRICS, Job
from analysis.statistics import NoiseFloor, locate, noise_floor
from analysis.warnings import BaselineDiffers
from suite.plan import BASELINE

Floors = dict[tuple[Job, str], dict[str, NoiseFloor]]
"""By job and model, then by the metric's name."""


def noise_floors(ok: pd.DataFrame) -> tuple[Floors, list[BaselineDiffers]]:
    """From trials that are ok and have ``variant``; with the groups whose two bare-metal trials differ."""
    base = ok[ok["target"] == BASELINE]
    floors: Floors = {}
    differing: list[BaselineDiffers] = []
    for key, rows in base.groupby(GROUP):
        *parts, model = (str(part) for part in key)
        job = Job(*parts)
        found = floors.setdefault((job, model), {})
        for metric in METRICS:
            logs = _logs(rows, metric.column)
            replicas = _replicas(logs)
            runs = [run[0].dropna().to_numpy() for _, run in logs.groupby("run_id")] if 0 in logs else []
            if floor := noise_floor(replicas, runs):
                found[metric.name] = floor
            differing += _differing(f"{job}, {model}", metric.name, replicas)
    return floors, differing


def _logs(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Of one metric: a row per block, a column per replica."""
    logs = np.log(rows[column].where(rows[column] > 0))
    means: pd.Series[float] = logs.groupby([rows["run_id"].astype(str), rows["block"], rows["replica"]]).mean()
    return pd.DataFrame(means.unstack("replica"))


def _replicas(logs: pd.DataFrame) -> npt.NDArray[np.float64]:
    both = (logs[1] - logs[0]).dropna() if {0, 1} <= set(logs.columns) else ()
    return np.asarray(both, dtype=np.float64)


def _differing(what: str, metric: str, replicas: npt.NDArray[np.float64]) -> Iterator[BaselineDiffers]:
    place = locate(replicas)
    if place and place.interval and not place.interval[0] <= 0 <= place.interval[1]:
        low, high = np.exp(place.interval)
        yield BaselineDiffers(what, metric, float(np.exp(place.centre)), (float(low), float(high)))
