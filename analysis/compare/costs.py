"""The costs of a target on the host: everything that serves it (all-in), and the job inside it alone."""

from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.contrasts import effect
from analysis.compare.pairing import ROW, grouped, job_of, papers_order
from analysis.compare.results import Arm, Cost, GroupKey
from analysis.load.metrics import with_trait
from analysis.statistics.ratios import locate
from suite.job.envelope import GIB
from suite.targets import BASELINE

ALL_IN = "serving_cpu_s"
"""The column of the CPU seconds of everything that serves the target, per trial."""
_MEANS = {
    "cpu_steps_s": "cost_steps",
    "cpu_startup_s": "cost_startup",
    "cpu_inside_s": "worker_cpu_s",
    "cpu_all_in_s": ALL_IN,
    "all_in_to_inside": "cost_ratio",
    "energy_j": "energy_j",
    "cpu_allocated_s": "cost_cpu_allocated",
    "memory_allocated_gib_s": "cost_memory_allocated",
    "memory_used_gib_s": "cost_memory_used",
}
_PEAKS = {"memory_inside_bytes": "worker_peak_memory_bytes", "memory_all_in_bytes": "serving_peak_memory_bytes"}
_BYTES = {
    f"disk_{what}_{side}_bytes": f"{column}_disk_{what}_bytes"
    for what in ("read", "written")
    for side, column in (("inside", "worker"), ("all_in", "serving"))
}


def with_costs(trials: pd.DataFrame) -> pd.DataFrame:
    """Add the CPU seconds of each trial's measured steps per 1,000 of the workload's unit, and those of the rest.

    The rest is start-up and end: imports, building, warm-up, teardown. Of a trial that takes turns only the turns are
    counted. What processes of the job have used in the steps is known once they have ended: a trial with loader
    processes or several devices is not split. The units of a distributed job are those of all ranks, of which the
    worker that is counted from inside has trained its own share.
    """
    devices = trials["devices"].fillna(1)  # a record that names no devices is of a job on one
    whole, all_in, takes_turns = trials["worker_cpu_s"], trials[ALL_IN], trials["burst_s"].notna()
    alone = ~with_trait(trials, "probes") & (devices == 1) & ~(trials["loader_workers"] > 0)
    steps = whole.where(takes_turns, trials["steps_cpu_s"]).where(alone)
    peak_bytes, elapsed_s = trials["serving_peak_memory_bytes"], trials["elapsed_s"]
    share = (trials["batch"] * devices / trials["global_batch"]).fillna(1.0)
    return trials.assign(
        cost_steps=steps / (trials["batch"] * trials["steps"] / 1000),
        cost_startup=(whole - steps).mask(takes_turns),
        cost_ratio=all_in / whole.where(whole > 0) * share,
        cost_cpu_allocated=(trials["cpus"] * elapsed_s).where(all_in.notna()),
        cost_memory_allocated=(trials["memory_bytes"] * elapsed_s / GIB).where(peak_bytes.notna()),
        cost_memory_used=peak_bytes * elapsed_s / GIB,
    )


def costs(ok: pd.DataFrame, pairs: pd.DataFrame) -> dict[GroupKey, tuple[Cost, ...]]:
    """Return the costs of each target by job and model, from trials and pairs ``with_costs``; empty if unknown."""
    columns = [*_MEANS.values(), *_PEAKS.values(), *_BYTES.values()]
    if ok[columns].isna().all(axis=None):
        return {}
    targets = pairs[pairs["target"] != BASELINE]
    normalised = {Arm(*key): locate(rows[ALL_IN].to_numpy()) for key, rows in grouped(targets)}
    rows = ok.groupby(ROW)
    positive = ok[list(_MEANS.values())].where(lambda values: values > 0)
    logs = pd.DataFrame(np.log(positive)).groupby([ok[key] for key in ROW])
    parts = (np.exp(logs.mean()), rows[list(_PEAKS.values())].max(), rows[list(_BYTES.values())].mean())
    table = pd.concat([pd.DataFrame(part) for part in parts], axis=1)
    table["substitutes"], table["changed"] = rows["substitutes"].unique(), rows["changed"].unique()
    table["unit"] = rows["unit"].first()
    known = table.dropna(how="all", subset=columns).reset_index().to_dict("records")
    by_group: dict[GroupKey, tuple[Cost, ...]] = defaultdict(tuple)
    arms = [(Arm(job_of(row), str(row["model"]), str(row["target"])), row) for row in known]
    for arm, row in sorted(arms, key=lambda pair: papers_order(*pair[0][:3])):
        lines = "\n".join(filter(None, (*row["substitutes"], *row["changed"]))).splitlines()
        numbers = ((name, row[column]) for name, column in (_MEANS | _PEAKS | _BYTES).items())
        values: dict[str, Any] = {name: None if pd.isna(number) else float(number) for name, number in numbers}
        cost = Cost(
            target=arm.target,
            unit="trial" if arm.job.traits.probes else f"1,000 {row['unit']}",
            normalised=effect(all_in) if (all_in := normalised.get(arm)) else None,
            notes=tuple(dict.fromkeys(lines)),
            **values,
        )
        by_group[arm.job, arm.model] += (cost,)
    return by_group
