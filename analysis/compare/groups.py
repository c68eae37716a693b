"""Groups: the targets of each job and model, in which circumstances they ran, what was measured, and what it cost.

Costs are those on the host: of everything that serves a target (all-in), and of the job inside it alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import pairing
from analysis.compare.contrasts import TARGET, Failed, Floors, effect, failures_of, valued
from analysis.compare.results import (
    Arm,
    Circumstances,
    ComparedJob,
    Contrast,
    Cost,
    Disturbed,
    Group,
    GroupKey,
    TargetSummary,
)
from analysis.compare.validity import all_named, compact
from analysis.load.metrics import Metric, in_units, metrics_of, with_trait
from analysis.load.plans import Terms
from analysis.statistics.ratios import Location, locate
from suite.job.envelope import GIB
from suite.targets import BASES, base_of

_BLOCK = ["run_id", "block"]
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


def groups(trials: pd.DataFrame, pairs: pd.DataFrame, metrics: Sequence[Metric]) -> list[Group]:
    """Return the targets of each job and model, failed trials too, in the order of the paper, without contrasts."""
    targets: dict[GroupKey, list[TargetSummary]] = defaultdict(list)
    units: dict[GroupKey, object] = {}
    with_base = dict(pairing.grouped(pairs))
    for key, rows in sorted(pairing.grouped(trials), key=lambda group: pairing.papers_order(*group[0])):
        job, model, target = key
        own_pairs, finished = with_base.get(key, pairs[:0]), rows[rows["ok"]]
        named = all_named(own_pairs["named"])
        marks = filter(None, (*rows["changed"].unique(), *own_pairs["marks"].unique()))
        summary = TargetSummary(
            target=target,
            ok=len(finished),
            failed=int(pairing.have_failed(rows).sum()),
            substitutes=pairing.substitutes_of(rows),
            marks=(*marks, *compact(named)),
            differences=tuple(difference.text for difference in named),
            failure=_failure(rows),
            losses=mean_losses(finished["losses"]),
        )
        targets[job, model].append(summary)
        units[job, model] = rows["unit"].iloc[0]
    return [
        Group(
            job=job,
            model=model,
            targets=tuple(targets[job, model]),
            metrics=in_units(metrics_of(metrics, job.scenario, model), units[job, model]),
        )
        # Trainings are the question; the probes after them explain.
        for job, model in sorted(targets, key=lambda key: key[0].traits.probes)
    ]


def _failure(rows: pd.DataFrame) -> str:
    messages = rows.loc[~rows["ok"], "error_message"].dropna().astype(str)
    return str(messages.mode().iloc[0]) if len(messages) else ""


def measured(
    groups: Iterable[Group],
    pairs: pd.DataFrame,
    ok: pd.DataFrame,
    ratios: Iterable[Contrast],
    floors: Floors,
    failed: Failed,
) -> Iterator[Contrast]:
    """Yield every metric of every target over bare metal, also where nothing was measured."""
    failures = failures_of(failed)
    of_target, with_base = dict(pairing.grouped(ok)), dict(pairing.grouped(pairs))
    formed = {(contrast.arm, contrast.metric.column): contrast for contrast in ratios}
    for group, summary in ((one, summary) for one in groups for summary in one.targets):
        arm = Arm(*group.key, summary.target)
        trials = of_target.get(arm[:3], ok[:0])
        for metric in group.metrics:
            compared = metric.compared_in(trials)
            numbers, location = _located(trials, compared)
            contrast = Contrast(kind=TARGET.name, arm=arm, metric=metric)
            if location and summary.target not in BASES:
                contrast = formed.get((arm, metric.column), contrast)
            elif location and (blocks := int(with_base.get(arm[:3], pairs[:0])[metric.column].count())):
                contrast = replace(contrast, ratio=None if metric.by_difference else 1.0, blocks=blocks)
            yield replace(
                contrast,
                metric=compared,
                **valued(location, by_difference=compared.by_difference),
                trials=int(numbers.count()),
                failed=summary.failed,
                failures=failures.get(arm),
                noise=floors.get((arm._replace(target=base_of(arm.target)), metric.name)),
                notes=summary.notes,
            )


def _located(trials: pd.DataFrame, metric: Metric) -> "tuple[pd.Series[float], Location | None]":
    """Return the logarithms of a metric and their trimmed mean over the blocks; of a count the numbers and the mean."""
    if metric.by_difference:
        numbers = trials[metric.column]
        return numbers, locate(pairing.by_block(trials, numbers), trim=0)
    numbers = metric.logs(trials)
    return numbers, locate(pairing.by_block(trials, numbers))


def mean_losses(trials: "pd.Series[Any]") -> dict[str, float]:
    """Return the mean of each loss over the trials that have it."""
    columns: dict[str, list[float]] = defaultdict(list)
    for losses in trials:
        for name, value in losses.items() if isinstance(losses, dict) else ():
            columns[name].append(value)
    return {name: fmean(values) for name, values in columns.items()}


def circumstances(
    trials: pd.DataFrame, disturbed: Mapping[tuple[str, ...], tuple[Disturbed, ...]], terms: Mapping[ComparedJob, Terms]
) -> dict[GroupKey, Circumstances]:
    """Return engine, hosts, what a further block takes, and what disturbed all trials that count, by job and model."""
    block_s, groups = _block_seconds(trials), {}
    for key, rows in pairing.grouped(trials, pairing.GROUP):
        own = [*vars(key[0]).values(), key[1]]
        spans = block_s[block_s.index.get_level_values("run_id").isin(rows["run_id"].unique())]
        groups[key] = Circumstances(
            engine=", ".join(sorted(rows["engine"].dropna().astype(str).unique())),
            hosts=tuple(sorted(rows["hostname"].dropna().astype(str).unique())),
            block_s=float(spans.median()) if len(spans) else None,
            decided=terms[key[0]].looked is not None,
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
    spans: pd.Series[float] = pd.DataFrame({"between": between * count, "seconds": blocks["seconds"].sum()}).max(axis=1)
    return spans[spans > 0]


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


def _typical(amounts: "pd.Series[float]") -> float:
    """Return the geometric mean of the amounts that are known; of amounts that are zero at times, the mean."""
    if (amounts <= 0).any():
        return float(amounts.mean())
    return float(np.exp(np.log(amounts).mean()))


def costs(ok: pd.DataFrame, pairs: pd.DataFrame) -> dict[GroupKey, tuple[Cost, ...]]:
    """Return the costs of each target by job and model, from trials and pairs ``with_costs``; empty if unknown."""
    if ok[[*_MEANS.values(), *_PEAKS.values(), *_BYTES.values()]].isna().all(axis=None):
        return {}
    targets = pairs[~pairs["target"].isin(BASES)]
    normalised = {key: locate(rows[ALL_IN].to_numpy()) for key, rows in pairing.grouped(targets)}
    by_group: dict[GroupKey, tuple[Cost, ...]] = defaultdict(tuple)
    for key, rows in sorted(pairing.grouped(ok), key=lambda group: pairing.papers_order(*group[0])):
        means = rows[[*_MEANS.values()]].apply(_typical)
        parts = (means, rows[[*_PEAKS.values()]].max(), rows[[*_BYTES.values()]].mean())
        numbers = pd.concat(parts).dropna().to_dict()
        job, model, target = key
        if numbers:
            all_in = normalised.get(key)
            cost = Cost(
                target=target,
                unit="trial" if job.traits.probes else f"1,000 {rows['unit'].iloc[0]}",
                normalised=effect(all_in) if all_in else None,
                notes=tuple(dict.fromkeys((*pairing.substitutes_of(rows), *filter(None, rows["changed"].unique())))),
                **{name: numbers.get(column) for name, column in (_MEANS | _PEAKS | _BYTES).items()},
            )
            by_group[job, model] += (cost,)
    return by_group
