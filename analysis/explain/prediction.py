"""Predictions: what the probes say that a training should cost, to be compared with what was measured.

Each part of a trial has a probe for the one resource that it depends on: the part's seconds on bare metal, times what
the probe lost on the target, are what it should cost there. Where measurement and prediction differ, the part depends
on something else as well, and that is where to look.

A preempted job is held against what ``analysis.costs`` expects of the opening, start, steps and checkpoints of its
undisturbed training, trial by trial; means and intervals are those of Student's t over the blocks.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.contrasts import RATIO, TARGET, effect, form
from analysis.compare.pairing import ROW, filled, grouped
from analysis.compare.results import Circumstances, Comparison, Effect, GroupKey
from analysis.compare.standing import withheld
from analysis.costs.preemption import course_of
from analysis.explain.explanation import (
    OPENING,
    UNEXPLAINED,
    CommunicatingShare,
    ExpectedNumber,
    Explanation,
    Predicted,
    Prediction,
    PreemptedJob,
    TimeDifference,
)
from analysis.load.metrics import Metric, by_ratio, with_trait
from analysis.load.records import Records, read_record
from analysis.statistics.ratios import locate
from analysis.warnings.types import AnalysisWarning
from suite.job.ablations import named_arm
from suite.job.datasets import SYNTHETIC
from suite.job.envelope import parse_bytes
from suite.records.reader import job_of
from suite.records.record import LOST_STEPS, MAKESPAN, OPENINGS, Rank

_CPU = ("cpu/matrix-product-all-threads", "cpu/matrix-product-one-thread")
_DISK = ("disk/sequential-read-throughput", "disk/random-read-depth1-iops")
PREDICTORS: Mapping[str, tuple[str, ...]] = {
    "launch": ("startup/first-instruction",),
    "imports": ("startup/import-torch",),
    "warm-up": _CPU,
    "data": _DISK,
    "copy": ("memory/host-to-device-pinned", "memory/host-to-device-pageable"),
    "compute": _CPU,
    "between epochs": ("disk/sequential-write-throughput",),
}
"""The columns of the metrics that predict each part; the first that was measured counts.

Warm-up steps count as computing. What does not wait for the disk that the probe measures has no prediction: data of a
warm trial, and checkpoints but for those of drawn data with fsync.
"""
_UNITS = {MAKESPAN: "s", OPENINGS: "", LOST_STEPS: "steps"}
_HOST = ["host_cpu_model", "cpus", "memory_bytes", "threads"]
_LAYERS = ("engine", "provider", "accelerator", "image", "isa")
_NETWORK = (*_LAYERS, "device", "network", "workers", "lab.rate", "lab.delay", "machines.name")
Found = Mapping[str, tuple[Metric, Effect]]


def with_predictions(
    explanations: Iterable[Explanation],
    comparison: Comparison,
    trials: pd.DataFrame,
    records: Records,
    *,
    force: bool = False,
) -> Iterator[Explanation]:
    """Yield each explanation with its prediction, and with the share of communication in a step.

    ``trials`` are those of the targets as they are, with ``variant``. Measurement and prediction are shown to differ
    only where the trials of both carry a verdict.
    """
    ok = trials[trials["ok"]]
    network = _places(ok, _HOST[:2], _NETWORK) + "\n" + ok["target"].astype(str)
    ok = ok.assign(layers=_places(ok, _HOST, _LAYERS), network=network)
    first, ranks = ok.groupby(ROW).first(), records.evidence.set_index("path")["ranks"]
    probes, exchanges = ok[with_trait(ok, "probes")], ok[ok["model"] == "collectives"]
    metrics = [metric for metric in records.metrics if metric.column in chain(*PREDICTORS.values())]
    undecided = {
        row.target
        for row in comparison.contrasts
        if row.kind == TARGET.name and row.job.traits.probes and row.verdict and row.verdict.withheld
    }
    for one in explanations:
        training = first.loc[(*vars(one.job).values(), one.model, one.target)]
        same = probes[probes["layers"] == training["layers"]]
        ratios = _ratios(same, metrics, one.target, force) if len(same) else {}
        decides = not (one.withheld or one.target in undecided)
        prediction = predict(one, ratios, _off_disk(one, training), decides=decides)
        share = _communicating_share(one, training, ranks[training["path"]] or (), exchanges)
        yield replace(one, prediction=prediction, communicating=share)


def _off_disk(one: Explanation, training: "pd.Series[Any]") -> set[str]:
    synced = one.job.data == SYNTHETIC and ("checkpoint", "fsync") in training["settings"].pairs
    waits = {"data": training["page_cache"] == "cold", "between epochs": synced}
    return {name for name, holds in waits.items() if not holds}


def _communicating_share(
    one: Explanation, training: "pd.Series[Any]", ranks: Sequence[Rank], exchanges: pd.DataFrame
) -> CommunicatingShare | None:
    """Return the share of communication in a step; None without bytes or steps in the records."""
    step_bytes, carried = _sent_in_step(ranks, training["steps"] + training["warmup_steps"])
    phases = ("data", "copy", "compute", "communicate")
    spent_s = {part.name: part.target_s / training["steps"] for part in one.parts if part.name in phases}
    step_s = math.fsum(spent_s.values())
    # Records of others hold any number: a step of none, or of no time.
    if not (step_bytes > 0 and math.isfinite(step_s) and "communicate" in spent_s):
        return None
    share = CommunicatingShare(step_bytes, carried, spent_s["communicate"] / step_s)
    exchanged = exchanges[exchanges["network"] == training["network"]]
    reduced = ("strategy", "all-reduce") in training["settings"].pairs
    return _predicted_share(share, step_s - spent_s["communicate"], exchanged, reduced=reduced)


def _sent_in_step(ranks: Sequence[Rank], steps: int) -> tuple[float, float | None]:
    """Return what the rank that sends most sends in a step, by the shapes and by its interface."""
    most = max(ranks, key=lambda rank: rank.sent_bytes or 0, default=None)
    if most is None or not most.sent_bytes or steps <= 0:
        return 0.0, None
    return most.sent_bytes / steps, most.interface_sent_bytes / steps if most.interface_sent_bytes else None


def _predicted_share(
    share: CommunicatingShare, rest_s: float, exchanged: pd.DataFrame, *, reduced: bool
) -> CommunicatingShare:
    """Complete a share by the bandwidth between the two nearest sizes, by their logarithms, if there are any."""
    operation, largest_bytes = ("all-reduce", 25 << 20) if reduced else ("point-to-point", 2 << 20)
    named = re.compile(rf"training/collectives/{operation}-([1-9]\d*[KM]iB)-bandwidth")
    columns = [named.fullmatch(name) for name in map(str, exchanged)]
    rates = {math.log(parse_bytes(match[1])): float(exchanged[match[0]].median()) for match in columns if match}
    rates = {size: rate for size, rate in rates.items() if rate > 0}
    if not rates:
        return share
    sizes, at = sorted(rates), math.log(min(share.step_bytes, largest_bytes))
    bandwidth_mb_s = float(np.interp(at, sizes, [rates[size] for size in sizes]))
    predicted_s = share.step_bytes / bandwidth_mb_s / 1e6
    return replace(share, bandwidth_mb_s=bandwidth_mb_s, predicted=predicted_s / (rest_s + predicted_s))


def _places(trials: pd.DataFrame, columns: Sequence[str], settings: Sequence[str]) -> "pd.Series[str]":
    """Host, envelope and layers of each trial as one text: a probe speaks only for trials of the same."""
    keys = trials["settings"].astype(object)
    layers = keys.map(lambda key: "\n".join(f"{name}={value}" for name, value in key.pairs if name in settings))
    # A missing fact, too, is text then. Of no trials, ``agg`` would make a table.
    rows = trials[list(columns)].itertuples(index=False)
    host = pd.Series(["\n".join(map(str, row)) for row in rows], index=trials.index, dtype=object)
    return host + "\n" + layers


def _ratios(probes: pd.DataFrame, metrics: Sequence[Metric], target: str, force: bool) -> Found:
    """Return what each metric lost on the target, by its column; of several jobs the one with most blocks counts."""
    of_ratios = by_ratio(metrics)
    every = form(TARGET, probes, of_ratios, force=force).ratios
    ratios = {}
    for metric in of_ratios:
        of_target = (rows[RATIO].to_numpy() for arm, rows in every[metric.column].items() if arm.target == target)
        if place := locate(max(of_target, key=len, default=())):
            ratios[metric.column] = (metric, effect(place))
    return ratios


def predict(one: Explanation, ratios: Found, off_disk: Set[str], *, decides: bool = True) -> Prediction | None:
    """Predict one explanation, except for ``off_disk``, from what the probes lost; None if none applies."""
    predicted = tuple(filter(None, (_predicted(part, ratios, off_disk, decides=decides) for part in one.parts)))
    if all(of_part.by is None for of_part in predicted):
        return None
    difference_s = math.fsum(of_part.difference_s for of_part in predicted)
    # Parts of one probe err together, parts of different probes independently.
    widths: dict[str | None, float] = defaultdict(float)
    for of_part in predicted:
        low, high = of_part.interval or (math.nan, math.nan)
        widths[of_part.by] += (high - low) / 2
    half = math.hypot(*widths.values())
    interval = None if math.isnan(half) else (difference_s - half, difference_s + half)
    spoken_for = {UNEXPLAINED, *(of_part.part for of_part in predicted)}
    silent = tuple(part.name for part in one.parts if part.name not in spoken_for and part.baseline_s > 0)
    return Prediction(predicted, difference_s, interval, _apart(interval, one.whole.interval, decides=decides), silent)


def _predicted(part: TimeDifference, ratios: Found, off_disk: Set[str], *, decides: bool) -> Predicted | None:
    if part.name == OPENING:
        return Predicted(part.name, None, None, part.difference_s, part.interval, False)
    names = () if part.name in off_disk else PREDICTORS.get(part.name, ())
    if (name := next((name for name in names if name in ratios), None)) is None:
        return None
    metric, ratio = ratios[name]

    def cost_s(value: float) -> float:
        return part.baseline_s * ((1 / value if metric.more_is_faster else value) - 1)

    ends = sorted(map(cost_s, ratio.interval or ()))
    interval = (ends[0], ends[1]) if ends else None
    apart = _apart(interval, part.interval, decides=decides)
    return Predicted(part.name, metric.column, ratio, cost_s(ratio.ratio or 1.0), interval, apart)


def _apart(predicted: tuple[float, float] | None, measured: tuple[float, float] | None, *, decides: bool) -> bool:
    if not decides or predicted is None or measured is None:
        return False
    return predicted[1] < measured[0] or measured[1] < predicted[0]


def preempted_jobs(ok: pd.DataFrame, circumstances: Mapping[GroupKey, Circumstances]) -> Iterator[PreemptedJob]:
    """Yield the preempted jobs of every target and ablation; ``ok`` are trials that are ok."""
    for (job, model, target, ablation), trials in grouped(filled(ok), [*ROW, "ablation"]):
        course = trials.get(f"training/{model}/{MAKESPAN}")
        records = map(read_record, trials["path"][course.notna()]) if course is not None else ()
        whole = [record for record in records if not isinstance(record, AnalysisWarning) and _is_whole(record)]
        if not whole:
            continue
        around = circumstances.get((job, model), Circumstances())
        reasons = withheld(job.profile, len(whole), {f"on {target}": around.disturbed.get(target, ())})
        blocks = np.array([[*_course(record)] for record in whole])
        numbers = tuple(_expected(name, *blocks[:, at].T, decides=not reasons) for at, name in enumerate(_UNITS))
        first: Any = job_of(whole[0].job)
        arm = named_arm(target, ablation)
        yield PreemptedJob(job, model, arm, first.preemption.mean_s, len(whole), numbers, reasons)


def _is_whole(record: Any) -> bool:  # noqa: ANN401 (decoded by the table of columns, as below)
    job, spans = job_of(record.job), record.timeline
    return bool(job.preemption and job.sizes and job.sizes.epochs and spans and spans.measured_s)


def _course(record: Any) -> Iterator[tuple[float, float]]:  # noqa: ANN401
    """Yield each number of a preempted job: as it was measured, and as its parts predict it."""
    spans: Any = record.timeline
    job: Any = job_of(record.job)
    begun = (record.open_s, spans.launch_s, spans.imports_s, spans.build_s, spans.warmup_s)
    start_s, checkpoints_s = math.fsum(filter(None, begun)), spans.between_epochs_s or 0.0
    work_s, epochs = np.asarray(spans.measured_s), job.sizes.epochs
    course = course_of(work_s, np.asarray(start_s), np.asarray(checkpoints_s / epochs), job.preemption, work_s / epochs)
    lost_steps = course.lost_s * job.sizes.steps / (spans.measured_s + checkpoints_s)
    for name, predicted in zip(_UNITS, (course.makespan_s, course.openings, lost_steps), strict=True):
        yield record.metrics[name].value, float(predicted)


def _expected(name: str, measured: np.ndarray, predicted: np.ndarray, *, decides: bool) -> ExpectedNumber:
    places = (locate(values, trim=0) for values in (measured, predicted, measured - predicted))
    own, other, apart = (place.interval if place else None for place in places)
    differs = bool(decides and apart and apart[0] * apart[1] > 0)
    return ExpectedNumber(
        name, _UNITS[name], float(measured.mean()), float(predicted.mean()), own, other, apart, differs
    )
