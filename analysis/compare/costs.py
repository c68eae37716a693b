"""The costs of a target on the host: everything that serves it (all-in), and the job inside it alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.effects import RATIO, Key, effect, ratios_of
from analysis.compare.pairing import ROW, job_of, papers_order
from analysis.compare.results import Cost
from analysis.load.metrics import Metric, with_trait
from analysis.statistics.ratios import locate
from suite.targets import BASELINE

PER_TRIAL = "trial"
ALL_IN = "cost_all_in"
"""A column that ``with_costs`` adds: CPU seconds of everything that serves the target, per unit."""
_TO_BASELINE = Metric("all-in", ALL_IN, "s")
_MEANS = {"cpu_inside_s": "cost_inside", "cpu_all_in_s": ALL_IN, "all_in_to_inside": "cost_ratio", "energy_j": "cost_j"}
_PEAKS = {"memory_inside_bytes": "worker_peak_memory_bytes", "memory_all_in_bytes": "serving_peak_memory_bytes"}
_BYTES = {
    f"disk_{what}_{side}_bytes": f"{column}_disk_{what}_bytes"
    for what in ("read", "written")
    for side, column in (("inside", "worker"), ("all_in", "serving"))
}


def with_costs(trials: pd.DataFrame) -> pd.DataFrame:
    """Add what each trial cost per 1,000 of the workload's unit, warm-up steps included; a probe costs per trial.

    Of a trial that takes turns only the turns are counted, and its warm-up is none of them. The units of a distributed
    job are those of all ranks, of which the worker that is counted from inside has trained its own share.
    """
    counted = trials["steps"] + trials["warmup_steps"].where(trials["burst_s"].isna(), 0)
    # A record that names no devices is of a job on one.
    rank_batch, probes = trials["batch"] * trials["devices"].fillna(1), with_trait(trials, "probes")
    own, units = ((batch * counted / 1000).mask(probes, 1.0) for batch in (rank_batch, trials["global_batch"]))
    inside, all_in = trials["worker_cpu_s"], trials["serving_cpu_s"]
    return trials.assign(
        cost_inside=inside / own,
        cost_all_in=all_in / units,
        cost_ratio=all_in / inside.where(inside > 0) * (own / units).fillna(1.0),
        cost_j=trials["energy_j"] / units,
    )


def costs(ok: pd.DataFrame, pairs: pd.DataFrame) -> list[Cost]:
    """Return the costs of each target, from trials as they are and their usable pairs with bare metal.

    Both have the columns that ``with_costs`` adds. Empty if nothing is known.
    """
    columns = [*_MEANS.values(), *_PEAKS.values(), *_BYTES.values()]
    if ok[columns].isna().all(axis=None):
        return []
    targets = pairs[pairs["target"] != BASELINE]
    normalised = ratios_of(targets, _TO_BASELINE)
    for probe in targets.loc[with_trait(targets, "probes"), "model"].unique():
        normalised |= ratios_of(targets, replace(_TO_BASELINE, model=str(probe), of_probe=True))
    rows = ok.groupby(ROW)
    positive = ok[list(_MEANS.values())].where(lambda values: values > 0)
    logs = pd.DataFrame(np.log(positive)).groupby([ok[key] for key in ROW])
    parts = (np.exp(logs.mean()), rows[list(_PEAKS.values())].max(), rows[list(_BYTES.values())].mean())
    table = pd.concat([pd.DataFrame(part) for part in parts], axis=1)
    table["substitutes"], table["changed"] = rows["substitutes"].unique(), rows["changed"].unique()
    table["unit"] = rows["unit"].first()
    known = table.dropna(how="all", subset=columns).reset_index().to_dict("records")
    return sorted(
        (_cost(row, normalised) for row in known), key=lambda cost: papers_order(cost.job, cost.model, cost.target)
    )


def _cost(row: Mapping[Any, Any], normalised: Mapping[Key, pd.DataFrame]) -> Cost:
    job = job_of(row)
    key = job, str(row["model"]), str(row["target"])
    place = locate(normalised[key][RATIO].to_numpy()) if key in normalised else None
    lines = (line for text in (*row["substitutes"], *row["changed"]) for line in text.splitlines())
    values: dict[str, Any] = {
        name: None if pd.isna(row[column]) else float(row[column])
        for name, column in (_MEANS | _PEAKS | _BYTES).items()
    }
    return Cost(
        *key,
        unit=PER_TRIAL if job.traits.probes else f"1,000 {row['unit']}",
        normalised=effect(place) if place else None,
        notes=tuple(dict.fromkeys(lines)),
        **values,
    )
