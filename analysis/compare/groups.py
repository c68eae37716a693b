"""Groups: the summaries of the targets of each job and model, made of trials and effects."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.effects import Key
from analysis.compare.pairing import ROW, job_of
from analysis.compare.results import ComparedJob, Effect, Estimate, Group, TargetSummary, known_first
from analysis.compare.validity import all_named, compact
from analysis.load.metrics import Metric, in_units, metrics_of
from suite.registries import WORKLOADS
from suite.targets import BASELINE, TARGETS

Effects = Mapping[str, Mapping[Key, Effect]]
"""The effects by the metric's column."""


def groups(trials: pd.DataFrame, pairs: pd.DataFrame, metrics: Sequence[Metric], effects: Effects) -> list[Group]:
    """Return the targets of each job and model, in the order of the paper.

    ``trials`` are those of the targets as they are, failed ones too; ``pairs`` are the usable pairs with bare metal.
    """
    targets: dict[tuple[ComparedJob, str], list[TargetSummary]] = {}
    units: dict[tuple[ComparedJob, str], object] = {}
    losses = {key: _mean_losses(found) for key, found in trials[trials["ok"]].groupby(ROW)["losses"]}
    for row in _table(trials, pairs, metrics).to_dict("records"):
        job, model = job_of(row), row["model"]
        own = metrics_of(metrics, job.scenario, model)
        found = {metric.name: effects[metric.column].get((job, model, row["target"])) for metric in own}
        lately = losses.get(tuple(row[name] for name in ROW), {})
        targets.setdefault((job, model), []).append(replace(_summary(row, own, found), losses=lately))
        units[job, model] = row["unit"]
    made = [
        Group(
            job,
            model,
            tuple(sorted(found, key=lambda summary: known_first(TARGETS, summary.target))),
            metrics=in_units(metrics_of(metrics, job.scenario, model), units[job, model]),
        )
        for (job, model), found in targets.items()
    ]
    names = WORKLOADS.names()
    # Trainings are what is asked for; the probes after them explain.
    return sorted(made, key=lambda group: (group.job.traits.probes, group.job, known_first(names, group.model)))


def _table(trials: pd.DataFrame, pairs: pd.DataFrame, metrics: Sequence[Metric]) -> pd.DataFrame:
    """Return a row of counts and means per group and target; a metric that no trial has is missing."""
    rows = trials.groupby(ROW)
    columns = {
        "ok": rows["ok"].sum(),
        "of": rows.size(),
        "unit": rows["unit"].first(),
        "substitutes": rows["substitutes"].unique(),
        "changed": rows["changed"].unique(),
        "marks": pairs["marks"].groupby([pairs[key] for key in ROW]).unique(),
        "named": pairs["named"].groupby([pairs[key] for key in ROW]).agg(all_named),
    }
    ok, base = trials[trials["ok"]], pairs[pairs["target"] == BASELINE]
    for metric in metrics:
        values, own = ok.loc[metric.rows(ok), [*ROW, metric.column]], base.loc[metric.rows(base), [*ROW, metric.column]]
        logs = np.log(values[metric.column].where(values[metric.column] > 0)).groupby([values[key] for key in ROW])
        columns[f"{metric.column} value"], columns[f"{metric.column} trials"] = np.exp(logs.mean()), logs.count()
        columns[f"{metric.column} own"] = own.groupby(ROW)[metric.column].count()
    return pd.DataFrame(columns).rename_axis(ROW).reset_index()


def _mean_losses(found: "pd.Series[Any]") -> dict[str, float]:
    """Return the mean of each loss over the trials that have it."""
    each = [one for one in found if isinstance(one, dict)]
    names = dict.fromkeys(name for one in each for name in one)
    return {name: fmean(one[name] for one in each if name in one) for name in names}


def _summary(
    row: Mapping[Hashable, Any], metrics: Sequence[Metric], effects: Mapping[str, Effect | None]
) -> TargetSummary:
    estimates = {}
    for metric in metrics:
        value, trials, own = (row[f"{metric.column} {part}"] for part in ("value", "trials", "own"))
        if value != value:  # NaN: it was not measured
            continue
        effect = effects[metric.name]
        if row["target"] == BASELINE and own > 0:
            effect = Effect(1.0, int(own), None, None)
        ratio = vars(effect) if effect else {"ratio": None, "blocks": 0}
        estimates[metric.name] = Estimate(value, int(trials), **ratio)
    marks, named = ((), ()) if isinstance(row["marks"], float) else (row["marks"], row["named"])
    return TargetSummary(
        target=row["target"],
        ok=int(row["ok"]),
        failed=int(row["of"] - row["ok"]),
        substitutes=tuple(dict.fromkeys(line for text in row["substitutes"] for line in text.splitlines())),
        marks=(*filter(None, (*row["changed"], *marks)), *compact(named)),
        estimates=estimates,
        differences=tuple(one.text for one in named),
    )
