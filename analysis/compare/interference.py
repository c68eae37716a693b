"""Interference: what a victim loses when an aggressor runs beside it, and which target shields it best.

The trial beside an aggressor is compared with the same target alone in the same block, by the rules that compare a
target with bare metal. The verdicts are a family of their own per job and metric.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.effects import RATIO, effect, effects_of, judged, mean_of, notes_of, ratios_of
from analysis.compare.pairing import ROW, grouped, pair, papers_order
from analysis.compare.results import ComparedJob, Effect, Interference, Isolation, known_first
from analysis.compare.validity import usable
from analysis.load.metrics import METRICS, Metric, with_trait
from analysis.statistics.ratios import NoiseFloor, locate, noise_floor
from analysis.warnings.findings import refusals
from analysis.warnings.types import AnalysisWarning
from suite.job.sharing import aggressor_names

STEP_P99 = Metric("step-p99", "step_p99_s", "s")
CPU_TIME = Metric("cpu-time", "serving_cpu_s", "s")
CACHE_MISSES = Metric("llc-misses", "llc_load_misses", "")
SHARED_METRICS = (METRICS[0], METRICS[1], STEP_P99, CPU_TIME, CACHE_MISSES)

Key = tuple[ComparedJob, str, str, str, str]
"""Job, victim, target, ablation (or nothing), aggressor."""


@dataclass(frozen=True)
class SharedFindings:
    """The interference, and the log ratios of the throughput by block that it was made of."""

    found: tuple[Interference, ...]
    warnings: tuple[AnalysisWarning, ...]
    throughput: Mapping[Key, pd.DataFrame]


def interference(ok: pd.DataFrame, margin: float, *, force: bool = False) -> SharedFindings:
    """Return the interference of trials that are ok and have ``variant``; empty if no victim had an aggressor."""
    victims = ok[~with_trait(ok, "normalised")]
    if victims["aggressor"].isna().all():
        return SharedFindings((), (), {})
    trials = victims.assign(ablation=victims["ablation"].fillna(""))
    ratios: dict[str, dict[Key, pd.DataFrame]] = {metric.column: {} for metric in SHARED_METRICS}
    warnings: list[AnalysisWarning] = []
    notes: dict[Key, tuple[str, ...]] = {}
    for (ablation, aggressor), disturbed in trials.groupby(["ablation", "aggressor"]):
        alone = trials[trials["aggressor"].isna() & (trials["ablation"] == ablation)]
        formed = usable(pair(disturbed, alone, list(ratios), same=["target"]), force=force)
        warnings += refusals(formed.refused, "the same target alone", str(ablation))
        arm = str(ablation), str(aggressor)
        for metric in SHARED_METRICS:
            ratios[metric.column] |= {(*key, *arm): values for key, values in ratios_of(formed.pairs, metric).items()}
        notes |= {(*key, *arm): texts for key, texts in notes_of(disturbed, formed.pairs).items()}
    effects = effects_of(ratios, SHARED_METRICS, margin)
    kept, steal, floors = _kept(trials), _steal(trials), _floors(trials)
    ordered = tuple(
        Interference(
            *key,
            effects=effects[key],
            noise_floors=floors.get(key[:4], {}),
            kept=kept.get(key),
            steal_shares=(steal.get((*key[:4], "")), steal.get(key)),
            notes=notes.get(key, ()),
        )
        for key in sorted(effects, key=_order)
    )
    return SharedFindings(ordered, tuple(warnings), ratios[METRICS[0].column])


def isolation(shared: SharedFindings, margin: float) -> tuple[Isolation, ...]:
    """Rank the targets of each job, as they are, best first.

    Cells that a target of the job lacks are left out, and blocks that lack a cell.
    """
    cells: dict[tuple[ComparedJob, str], dict[tuple[str, str], pd.DataFrame]] = defaultdict(dict)
    for (job, model, target, ablation, aggressor), values in shared.throughput.items():
        if not ablation:
            cells[job, target][model, aggressor] = values
    common = {
        job: reduce(set.intersection, (set(frames) for (of_job, _), frames in cells.items() if of_job == job))
        for job, _ in cells
    }
    means = {
        (job, target): mean_of([frames[cell][[RATIO]] for cell in sorted(common[job])])
        for (job, target), frames in cells.items()
        if common[job]
    }
    notes: dict[tuple[ComparedJob, str], dict[str, None]] = defaultdict(dict)
    for pairing in shared.found:
        notes[pairing.job, pairing.target] |= dict.fromkeys(pairing.notes)
    ranked = [
        Isolation(*key, len(common[key[0]]), effect, tuple(notes[key]))
        for key, effect in judged({METRICS[0].column: means}, METRICS[:1], margin)[METRICS[0].column].items()
    ]
    return tuple(sorted(ranked, key=lambda row: (row.job, -row.effect.ratio)))


def _order(key: Key) -> tuple[Any, ...]:
    return (*papers_order(*key[:3]), key[3], known_first(aggressor_names(), key[4]))


def _rows(trials: pd.DataFrame) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Group the trials by ``Key``; the aggressor of a victim alone is empty."""
    return grouped(trials.fillna({"aggressor": ""}), [*ROW, "ablation", "aggressor"])


def _kept(trials: pd.DataFrame) -> dict[Key, Effect]:
    effects = {}
    for key, rows in _rows(trials[trials["aggressor"].notna()]):
        before, during = rows["aggressor_before_per_s"], rows["aggressor_beside_per_s"]
        measured = (before > 0) & (during > 0)
        if place := locate(np.log(during[measured] / before[measured])):
            effects[key] = effect(place)
    return effects


def _steal(trials: pd.DataFrame) -> dict[Key, float]:
    shares = trials.assign(share=trials["steal_s"] / (trials["interval_s"] * trials["cpus"]))
    means = {key: float(rows["share"].mean()) for key, rows in _rows(shares)}
    return {key: mean for key, mean in means.items() if mean == mean}  # not NaN


def _floors(trials: pd.DataFrame) -> dict[tuple[ComparedJob, str, str, str], dict[str, NoiseFloor]]:
    """Return the noise floor of each victim alone: by second trials in its blocks (A/A), or else across blocks."""
    floors: dict[tuple[ComparedJob, str, str, str], dict[str, NoiseFloor]] = {}
    for key, rows in _rows(trials[trials["aggressor"].isna()]):
        for metric in SHARED_METRICS:
            logs = metric.logs(rows)
            table = logs.groupby([rows["run_id"].astype(str), rows["block"], rows["replica"]]).mean().unstack()
            first = table[0] if 0 in table else pd.Series(dtype=float)
            twice = (table[1] - first).dropna() if 1 in table else pd.Series(dtype=float)
            runs = [run.dropna().to_numpy() for _, run in first.groupby(level=0)] if len(first) else []
            if floor := noise_floor(list(twice), runs):
                floors.setdefault(key[:4], {})[metric.name] = floor
    return floors
