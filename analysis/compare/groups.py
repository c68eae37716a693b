"""Groups: the targets of each job and model, in which circumstances they ran, what was measured, and what it cost.

Costs are those on the host: of everything that serves a target (all-in), and of the job inside it alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import pairing
from analysis.compare.contrast_kinds import TARGET, Failed
from analysis.compare.contrasts import Floors, failures_of
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
from analysis.compare.verdicts import effect, valued
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
_PEAKS = {
    "memory_inside_bytes": "worker_peak_memory_bytes",
    "memory_all_in_bytes": "serving_peak_memory_bytes",
}
_BYTES = {
    "disk_read_inside_bytes": "worker_disk_read_bytes",
    "disk_read_all_in_bytes": "serving_disk_read_bytes",
    "disk_written_inside_bytes": "worker_disk_written_bytes",
    "disk_written_all_in_bytes": "serving_disk_written_bytes",
}


def groups(trials: pd.DataFrame, pairs: pd.DataFrame, metrics: Sequence[Metric]) -> list[Group]:
    """Return the targets of each job and model, failed trials too, in the order of the paper, without contrasts."""
    targets: dict[GroupKey, list[TargetSummary]] = defaultdict(list)
    units: dict[GroupKey, object] = {}
    with_base = dict(pairing.grouped(pairs))
    for key, rows in _in_papers_order(trials):
        job, model, target = key
        of_target = with_base.get(key, pairs[:0])
        finished = rows[rows["ok"]]
        failed = pairing.have_failed(rows)
        named = all_named(of_target["named"])
        changed = filter(None, rows["changed"].unique())
        marks = filter(None, of_target["marks"].unique())
        summary = TargetSummary(
            target=target,
            ok=len(finished),
            failed=int(failed.sum()),
            substitutes=pairing.substitutes_of(rows),
            marks=(*changed, *marks, *compact(named)),
            differences=tuple(difference.text for difference in named),
            failure=_failure(rows),
            losses=mean_losses(finished["losses"]),
        )
        targets[job, model].append(summary)
        units[job, model] = rows["unit"].iloc[0]
    # Trainings are the question; the probes after them explain.
    in_order = sorted(targets, key=lambda key: key[0].traits.probes)
    formed = []
    for job, model in in_order:
        of_model = metrics_of(metrics, job.scenario, model)
        group = Group(
            job=job,
            model=model,
            targets=tuple(targets[job, model]),
            metrics=in_units(of_model, units[job, model]),
        )
        formed.append(group)
    return formed


def _in_papers_order(trials: pd.DataFrame) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Return the trials of each job, model and target."""
    return sorted(pairing.grouped(trials), key=lambda group: pairing.papers_order(*group[0]))


def _failure(rows: pd.DataFrame) -> str:
    """Return the most frequent error of failed trials; empty without one."""
    messages = rows.loc[~rows["ok"], "error_message"].dropna().astype(str)
    if messages.empty:
        return ""
    most_frequent = messages.mode()
    return str(most_frequent.iloc[0])


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
    of_target = dict(pairing.grouped(ok))
    with_base = dict(pairing.grouped(pairs))
    formed = {(contrast.arm, contrast.metric.column): contrast for contrast in ratios}
    for group in groups:
        for summary, metric in product(group.targets, group.metrics):
            arm = Arm(*group.key, summary.target)
            trials = of_target.get(arm[:3], ok[:0])
            compared = metric.compared_in(trials)
            numbers, location = _located(trials, compared)
            contrast = Contrast(kind=TARGET.name, arm=arm, metric=metric)
            if location and summary.target not in BASES:
                contrast = formed.get((arm, metric.column), contrast)
            elif location:
                of_base = with_base.get(arm[:3], pairs[:0])
                blocks = int(of_base[metric.column].count())
                ratio = 1.0 if blocks and not metric.by_difference else None
                contrast = replace(contrast, ratio=ratio, blocks=blocks)
            base = arm._replace(target=base_of(arm.target))
            yield replace(
                contrast,
                metric=compared,
                **valued(location, by_difference=compared.by_difference),
                trials=int(numbers.count()),
                failed=summary.failed,
                failures=failures.get(arm),
                noise=floors.get((base, metric.name)),
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
        if isinstance(losses, dict):
            for name, value in losses.items():
                columns[name].append(value)
    return {name: fmean(values) for name, values in columns.items()}


def circumstances(
    trials: pd.DataFrame,
    disturbed: Mapping[tuple[str, ...], tuple[Disturbed, ...]],
    terms: Mapping[ComparedJob, Terms],
) -> dict[GroupKey, Circumstances]:
    """Return engine, hosts, what a further block takes, and what disturbed all trials that count, by job and model."""
    block_s = _block_seconds(trials)
    groups = {}
    for key, rows in pairing.grouped(trials, pairing.GROUP):
        job, model = key
        names = [*vars(job).values(), model]
        runs = block_s.index.get_level_values("run_id")
        spans = block_s[runs.isin(rows["run_id"].unique())]
        groups[key] = Circumstances(
            engine=", ".join(_names_in(rows["engine"])),
            hosts=tuple(_names_in(rows["hostname"])),
            block_s=float(spans.median()) if len(spans) else None,
            decided=terms[job].looked is not None,
            disturbed={target: kinds for (*group, target), kinds in disturbed.items() if group == names},
        )
    return groups


def _names_in(column: "pd.Series[Any]") -> list[str]:
    return sorted(column.dropna().astype(str).unique())


def _block_seconds(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the seconds of every block, all models and targets of its run together.

    The times from start to start include what happens between the trials; without them, the trials' own count.
    """
    starts = pd.to_datetime(
        trials["started_at"],
        utc=True,
        errors="coerce",
        format="ISO8601",
    )
    # Trials that take turns are open at once: each has its share of their block.
    in_block = trials.groupby([*_BLOCK, "model", "design"])["block_s"]
    of_turns = trials["block_s"] / in_block.transform("count")
    alone_s = trials[["open_s", "elapsed_s"]].sum(axis=1)
    of_trials = alone_s.mask(of_turns.notna(), of_turns)
    blocks = trials[_BLOCK].assign(start=starts, seconds=of_trials).groupby(_BLOCK)
    count = blocks.size()
    first_to_last = blocks["start"].max() - blocks["start"].min()
    intervals = (count - 1).where(count > 1)
    by_starts = first_to_last.dt.total_seconds() / intervals * count
    both = {"starts": by_starts, "trials": blocks["seconds"].sum()}
    spans: pd.Series[float] = pd.DataFrame(both).max(axis=1)
    return spans[spans > 0]


def with_costs(trials: pd.DataFrame) -> pd.DataFrame:
    """Add the CPU seconds of each trial's measured steps per 1,000 of the workload's unit, and those of the rest.

    The rest is start-up and end: imports, building, warm-up, teardown. Of a trial that takes turns only the turns are
    counted. What processes of the job have used in the steps is known once they have ended: a trial with loader
    processes or several devices is not split. The units of a distributed job are those of all ranks, of which the
    worker that is counted from inside has trained its own share.
    """
    devices = trials["devices"].fillna(1)  # a record that names no devices is of a job on one
    whole = trials["worker_cpu_s"]
    all_in = trials[ALL_IN]
    takes_turns = trials["burst_s"].notna()
    probes = with_trait(trials, "probes")
    loads_apart = trials["loader_workers"] > 0
    alone = ~probes & (devices == 1) & ~loads_apart
    steps = whole.where(takes_turns, trials["steps_cpu_s"]).where(alone)
    peak_bytes = trials["serving_peak_memory_bytes"]
    elapsed_s = trials["elapsed_s"]
    share = (trials["batch"] * devices / trials["global_batch"]).fillna(1.0)
    thousands = trials["batch"] * trials["steps"] / 1000
    cpu_allocated_s = trials["cpus"] * elapsed_s
    memory_allocated = trials["memory_bytes"] * elapsed_s / GIB
    return trials.assign(
        cost_steps=steps / thousands,
        cost_startup=(whole - steps).mask(takes_turns),
        cost_ratio=all_in / whole.where(whole > 0) * share,
        cost_cpu_allocated=cpu_allocated_s.where(all_in.notna()),
        cost_memory_allocated=memory_allocated.where(peak_bytes.notna()),
        cost_memory_used=peak_bytes * elapsed_s / GIB,
    )


def _typical(amounts: "pd.Series[float]") -> float:
    """Return the geometric mean of the amounts that are known; of amounts that are zero at times, the mean."""
    if (amounts <= 0).any():
        return float(amounts.mean())
    logs = np.log(amounts)
    return float(np.exp(logs.mean()))


def costs(ok: pd.DataFrame, pairs: pd.DataFrame) -> dict[GroupKey, tuple[Cost, ...]]:
    """Return the costs of each target by job and model, from trials and pairs ``with_costs``; empty if unknown."""
    columns = _MEANS | _PEAKS | _BYTES
    if ok[[*columns.values()]].isna().all(axis=None):
        return {}
    targets = pairs[~pairs["target"].isin(BASES)]
    normalised = {key: locate(rows[ALL_IN].to_numpy()) for key, rows in pairing.grouped(targets)}
    by_group: dict[GroupKey, tuple[Cost, ...]] = defaultdict(tuple)
    for key, rows in _in_papers_order(ok):
        means = rows[[*_MEANS.values()]].apply(_typical)
        peaks = rows[[*_PEAKS.values()]].max()
        sizes = rows[[*_BYTES.values()]].mean()
        numbers = pd.concat([means, peaks, sizes]).dropna().to_dict()
        if not numbers:
            continue
        job, model, target = key
        all_in = normalised.get(key)
        changed = filter(None, rows["changed"].unique())
        notes = dict.fromkeys((*pairing.substitutes_of(rows), *changed))
        cost = Cost(
            target=target,
            unit="trial" if job.traits.probes else f"1,000 {rows['unit'].iloc[0]}",
            normalised=effect(all_in) if all_in else None,
            notes=tuple(notes),
            **{name: numbers.get(column) for name, column in columns.items()},
        )
        by_group[job, model] += (cost,)
    return by_group
