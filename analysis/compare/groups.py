"""Groups: the targets of each job and model, in which circumstances they ran, and what was measured."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import pandas as pd

from analysis.compare import pairing
from analysis.compare.contrasts import TARGET, Floors, valued
from analysis.compare.results import (
    Arm,
    Circumstances,
    Contrast,
    Disturbed,
    Group,
    GroupKey,
    TargetSummary,
    known_first,
)
from analysis.compare.validity import all_named, compact
from analysis.load.metrics import Metric, in_units, metrics_of
from analysis.statistics.ratios import locate
from suite.registries import WORKLOADS
from suite.targets import BASELINE, TARGETS

_BLOCK = ["run_id", "block"]


def groups(trials: pd.DataFrame, pairs: pd.DataFrame, metrics: Sequence[Metric]) -> list[Group]:
    """Return the targets of each job and model, failed trials too, in the order of the paper, without contrasts."""
    targets: dict[GroupKey, list[TargetSummary]] = defaultdict(list)
    units: dict[GroupKey, object] = {}
    with_base = dict(pairing.grouped(pairs))
    for key, rows in pairing.grouped(trials):
        job, model, target = key
        own_pairs, finished = with_base.get(key, pairs[:0]), rows[rows["ok"]]
        named = all_named(own_pairs["named"])
        marks = filter(None, (*rows["changed"].unique(), *own_pairs["marks"].unique()))
        summary = TargetSummary(
            target=target,
            ok=len(finished),
            failed=len(rows) - len(finished),
            substitutes=pairing.substitutes_of(rows),
            marks=(*marks, *compact(named)),
            differences=tuple(difference.text for difference in named),
            losses=mean_losses(finished["losses"]),
        )
        targets[job, model].append(summary)
        units[job, model] = rows["unit"].iloc[0]
    names = WORKLOADS.names()
    # Trainings are the question; the probes after them explain.
    order = sorted(targets, key=lambda key: (key[0].traits.probes, key[0], known_first(names, key[1])))
    return [
        Group(
            job=job,
            model=model,
            targets=tuple(sorted(targets[job, model], key=lambda summary: known_first(TARGETS, summary.target))),
            metrics=in_units(metrics_of(metrics, job.scenario, model), units[job, model]),
        )
        for job, model in order
    ]


def measured(
    groups: Iterable[Group], pairs: pd.DataFrame, ok: pd.DataFrame, ratios: Iterable[Contrast], floors: Floors
) -> Iterator[Contrast]:
    """Yield every metric of every target over bare metal, also where nothing was measured."""
    of_target, with_base = dict(pairing.grouped(ok)), dict(pairing.grouped(pairs))
    formed = {(contrast.arm, contrast.metric.column): contrast for contrast in ratios}
    for group, summary in ((one, summary) for one in groups for summary in one.targets):
        arm = Arm(*group.key, summary.target)
        trials = of_target.get(arm[:3], ok[:0])
        for metric in group.metrics:
            logs = metric.logs(trials)
            location = locate(pairing.by_block(trials, logs))
            contrast = Contrast(kind=TARGET.name, arm=arm, metric=metric)
            if location and summary.target != BASELINE:
                contrast = formed.get((arm, metric.column), contrast)
            elif location and (blocks := int(with_base.get(arm[:3], pairs[:0])[metric.column].count())):
                contrast = replace(contrast, ratio=1.0, blocks=blocks)
            yield replace(
                contrast,
                metric=metric,
                **valued(location),
                trials=int(logs.count()),
                failed=summary.failed,
                noise=floors.get((arm._replace(target=BASELINE), metric.name)),
                notes=summary.notes,
            )


def mean_losses(trials: "pd.Series[Any]") -> dict[str, float]:
    """Return the mean of each loss over the trials that have it."""
    columns: dict[str, list[float]] = defaultdict(list)
    for losses in trials:
        for name, value in losses.items() if isinstance(losses, dict) else ():
            columns[name].append(value)
    return {name: fmean(values) for name, values in columns.items()}


def circumstances(
    trials: pd.DataFrame, disturbed: Mapping[tuple[str, ...], tuple[Disturbed, ...]], *, decided: bool = False
) -> dict[GroupKey, Circumstances]:
    """Return engine, hosts, what a further block takes, and what disturbed all trials that count, by job and model."""
    block_s = _block_seconds(trials)
    groups = {}
    for key, rows in pairing.grouped(trials, pairing.GROUP):
        own = [*vars(key[0]).values(), key[1]]
        spans = block_s[block_s.index.get_level_values("run_id").isin(rows["run_id"].unique())]
        groups[key] = Circumstances(
            engine=", ".join(sorted(rows["engine"].dropna().astype(str).unique())),
            hosts=tuple(sorted(rows["hostname"].dropna().astype(str).unique())),
            block_s=float(spans.median()) if len(spans) else None,
            decided=decided,
            disturbed={target: kinds for (*group, target), kinds in disturbed.items() if group == own},
        )
    return groups


def _block_seconds(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the seconds of every block, all models and targets of its run together.

    The times from start to start include what happens between the trials; without them, the trials' own count.
    """
    starts = pd.to_datetime(trials["started_at"], utc=True, errors="coerce", format="ISO8601")
    # Trials that take turns are open at once: each has its share of their block.
    of_turns = trials["block_s"] / trials.groupby([*_BLOCK, "model", "design"])["block_s"].transform("count")
    of_trials = trials[["open_s", "elapsed_s"]].sum(axis=1).mask(of_turns.notna(), of_turns)
    table = pd.DataFrame({**{name: trials[name] for name in _BLOCK}, "start": starts, "seconds": of_trials})
    blocks = table.groupby(_BLOCK)
    count = blocks.size()
    between = (blocks["start"].max() - blocks["start"].min()).dt.total_seconds() / (count - 1).where(count > 1)
    both = pd.DataFrame({"between": between * count, "seconds": blocks["seconds"].sum()})
    spans: pd.Series[float] = both.max(axis=1)
    return spans[spans > 0]
