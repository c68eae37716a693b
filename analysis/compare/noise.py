"""The noise floor of each group: what bare metal shows against itself."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from analysis.compare.effects import RATIO, Key, Ratios, ratios_of
from analysis.compare.pairing import GROUP, baseline, pair
from analysis.compare.results import ComparedJob
from analysis.compare.validity import usable
from analysis.load.metrics import Metric
from analysis.statistics.ratios import NoiseFloor, locate, noise_floor
from analysis.warnings.types import AnalysisWarning, Touched
from suite.targets import BASELINE

Group = tuple[ComparedJob, str]
Floors = dict[Group, dict[str, NoiseFloor]]
"""The noise floors by job and model, then by the metric's name."""


def replicas(ok: pd.DataFrame, metrics: Sequence[Metric]) -> dict[str, dict[Key, pd.DataFrame]]:
    """Return, by the metric's column, log(second / first bare-metal trial) of the blocks that hold both."""
    base = baseline(ok)
    again = base[base["replica"] == 1]
    if again.empty:
        return {metric.column: {} for metric in metrics}
    pairs = pair(again, base[base["replica"] == 0], [metric.column for metric in metrics])
    return {metric.column: ratios_of(usable(pairs).pairs, metric) for metric in metrics}


def noise_floors(ok: pd.DataFrame, ratios: Mapping[str, Ratios], metrics: Sequence[Metric]) -> Floors:
    """Return the noise floors, from trials that are ok and have ``variant``, and from their ``replicas``."""
    floors: Floors = {}
    for key, rows in baseline(ok).groupby(GROUP):
        *parts, model = (str(part) for part in key)
        job = ComparedJob(*parts)
        found = floors.setdefault((job, model), {})
        for metric in metrics:
            if metric.of(job.scenario, model):
                both = ratios[metric.column].get((job, model, BASELINE))
                again = () if both is None else list(both[RATIO])
                if floor := noise_floor(again, _runs(rows[rows["replica"] == 0], metric.column)):
                    found[metric.name] = floor
    return floors


def _runs(rows: pd.DataFrame, column: str) -> list[np.ndarray]:
    """Return the logarithms of each run, in the order of its blocks."""
    logs = np.log(rows[column].where(rows[column] > 0))
    means: pd.Series[float] = logs.groupby([rows["run_id"].astype(str), rows["block"]]).mean()
    return [run.dropna().to_numpy() for _, run in means.groupby("run_id")]


def differing(ratios: Mapping[str, Ratios], metrics: Sequence[Metric]) -> Iterator[AnalysisWarning]:
    """Yield the groups whose two bare-metal trials differ: their interval excludes 1, whatever the margin."""
    for metric in metrics:
        for (job, model, _), found in ratios[metric.column].items():
            place = locate(found[RATIO].to_numpy())
            if place and place.interval and not place.interval[0] <= 0 <= place.interval[1]:
                low, high = np.exp(place.interval)
                yield AnalysisWarning(
                    "a-a-differs",
                    f"{job}, {model}: the second {BASELINE} trial of a block has {np.exp(place.centre):.3f} times the "
                    f"{metric.name} of the first (95 % interval {low:.3f} to {high:.3f}); no smaller difference "
                    "between targets means anything",
                    "look for what changes inside a block: other load, temperature, a cache that the first trial fills",
                    touches=(Touched(job, BASELINE, model),),
                )
