"""Targets beside each other: values of each, and their ratio to bare metal with interval and verdict.

The trial is the sample, the block its frame: a ratio is formed inside a block (same run, close in time), on the log
scale, and the ratios of the blocks are averaged there. A value is the geometric mean of the trials, which belongs to
that scale.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from analysis.conditions import disturbances
from analysis.effects import Key, interactions, judged, overall, ratios_of
from analysis.findings import failures, mixtures, refusals, unnormalised
from analysis.load import Records
from analysis.noise import noise_floors
from analysis.pairs import JOB, ROW, pair, with_variants
from analysis.results import METRICS, Comparison, Effect, Estimate, Group, Job, Overall, TargetSummary, known_first
from analysis.statistics import MARGIN
from analysis.validity import assess
from suite.plan import BASELINE, TARGETS
from suite.profiles import MODELS

_Found = TypeVar("_Found")


def compare(records: Records, *, margin: float = MARGIN, force: bool = False) -> Comparison:
    """Every target of every group, in the order of the paper. Never raises for what the records hold.

    ``margin``: the share (0.02 is 2 %) by which a ratio may differ from 1 and still be called equivalent. ``force``
    forms the ratios that validity refuses, and marks them.
    """
    trials = with_variants(records.trials)
    ok = trials[trials["ok"]]
    pairs = pair(ok)
    validity = assess(pairs)
    refused = validity.refused != ""
    pairs["marks"] = validity.declared.where(~refused, "forced: " + validity.refused)
    usable = pairs if force else pairs[~refused]
    ratios = {metric.name: ratios_of(usable, metric) for metric in METRICS}
    effects = {metric.name: judged(ratios[metric.name], metric, margin) for metric in METRICS}
    layers = {
        metric.name: judged(interactions(ratios[metric.name]), metric, margin)
        for metric in METRICS
        if metric.name != "opening"  # layers are opened one after the other: their times add, they do not multiply
    }
    floors, differing = noise_floors(ok)
    groups = [
        Group(job, model, targets, floors.get((job, model), {}), _of((job, model, ""), layers))
        for (job, model), targets in _targets(_table(trials, usable), effects).items()
    ]
    groups.sort(key=lambda group: (group.job, known_first(MODELS, group.model)))
    refusing = () if force else refusals(pairs[refused], validity.refused[refused])
    found = (*failures(trials), *mixtures(trials), *refusing, *unnormalised(groups), *differing, *disturbances(ok))
    runs = tuple(sorted(trials["run_id"].unique()))
    together = tuple(replace(one, notes=_notes(one, groups)) for one in overall(ratios, margin))
    return Comparison(runs, tuple(groups), (*records.warnings, *found), together, margin)


def _notes(one: Overall, groups: Iterable[Group]) -> tuple[str, ...]:
    summaries = [summary for group in groups if group.job == one.job for summary in group.targets]
    return tuple(dict.fromkeys(note for found in summaries if found.target == one.target for note in found.notes))


def _of(key: Key, by_metric: Mapping[str, Mapping[Key, _Found]]) -> dict[str, _Found]:
    return {name: found[key] for name, found in by_metric.items() if key in found}


def _table(trials: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """One row per group and target with what is counted; a metric that no trial has is missing."""
    rows = trials.groupby(ROW)
    table = rows["ok"].agg(ok="sum", of="size")
    table["substitutes"] = rows["substitutes"].unique()
    marked = pairs[pairs["marks"] != ""]
    table["marks"] = marked["marks"].groupby([marked[key] for key in ROW]).unique()
    ok, base = trials[trials["ok"]], pairs[pairs["target"] == BASELINE]
    for metric in METRICS:
        column = metric.column
        logs = np.log(ok[column].where(ok[column] > 0)).groupby([ok[key] for key in ROW])
        table[f"{metric.name}_value"], table[f"{metric.name}_trials"] = np.exp(logs.mean()), logs.count()
        table[f"{metric.name}_own"] = base[column].groupby([base[key] for key in ROW]).count()
    return table.reset_index()


def _targets(
    table: pd.DataFrame, effects: Mapping[str, Mapping[Key, Effect]]
) -> dict[tuple[Job, str], tuple[TargetSummary, ...]]:
    """The targets of each job and model, in the order of the paper."""
    targets: dict[tuple[Job, str], list[TargetSummary]] = {}
    for row in table.to_dict("records"):
        job, model = Job(*(row[key] for key in JOB)), row["model"]
        targets.setdefault((job, model), []).append(_summary(row, _of((job, model, row["target"]), effects)))
    return {
        key: tuple(sorted(found, key=lambda summary: known_first(TARGETS, summary.target)))
        for key, found in targets.items()
    }


def _summary(row: Mapping[Hashable, Any], effects: Mapping[str, Effect]) -> TargetSummary:
    estimates = {}
    for metric in METRICS:
        value, trials, own = (row[f"{metric.name}_{part}"] for part in ("value", "trials", "own"))
        if value != value:  # NaN: it was not measured
            continue
        effect = effects.get(metric.name)
        if row["target"] == BASELINE and own > 0:
            effect = Effect(1.0, int(own), None, None)
        if effect:
            estimate = Estimate(value, int(trials), effect.ratio, effect.blocks, effect.interval, effect.verdict)
        else:
            estimate = Estimate(value, int(trials), None, 0)
        estimates[metric.name] = estimate
    return TargetSummary(
        target=row["target"],
        ok=int(row["ok"]),
        failed=int(row["of"] - row["ok"]),
        substitutes=_items(row["substitutes"]),
        marks=() if isinstance(row["marks"], float) else tuple(row["marks"]),
        estimates=estimates,
    )


def _items(texts: Iterable[str]) -> tuple[str, ...]:
    """The distinct lines of all texts."""
    return tuple(dict.fromkeys(line for text in texts for line in text.splitlines()))
