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

from analysis.compare.contrast_kinds import RATIO, TARGET
from analysis.compare.contrasts import form
from analysis.compare.pairing import ROW, filled, grouped
from analysis.compare.results import Circumstances, Comparison, Effect, GroupKey
from analysis.compare.verdicts import effect, withheld
from analysis.costs.job import course_of
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
ProbeRatios = Mapping[str, tuple[Metric, Effect]]
"""What each metric of a probe lost, by its column."""


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
    first = ok.groupby(ROW).first()
    ranks = records.evidence.set_index("path")["ranks"]
    probes = ok[with_trait(ok, "probes")]
    exchanges = ok[ok["model"] == "collectives"]
    predicting = set(chain(*PREDICTORS.values()))
    metrics = [metric for metric in records.metrics if metric.column in predicting]
    undecided = set()
    for row in comparison.contrasts:
        if row.kind == TARGET.name and row.job.traits.probes and row.verdict and row.verdict.withheld:
            undecided.add(row.target)
    for explanation in explanations:
        target = explanation.target
        training = first.loc[(*vars(explanation.job).values(), explanation.model, target)]
        of_layers = probes[probes["layers"] == training["layers"]]
        ratios: ProbeRatios = {}
        if len(of_layers):
            ratios = _ratios(of_layers, metrics, target, force)
        decides = not explanation.withheld and target not in undecided
        prediction = predict(
            explanation,
            ratios,
            _off_disk(explanation, training),
            decides=decides,
        )
        share = _communicating_share(
            explanation,
            training,
            ranks[training["path"]] or (),
            exchanges,
        )
        yield replace(explanation, prediction=prediction, communicating=share)


def _off_disk(explanation: Explanation, training: "pd.Series[Any]") -> set[str]:
    """Return the parts that do not wait for the disk."""
    parts = set()
    if training["page_cache"] != "cold":
        parts.add("data")
    if explanation.job.data != SYNTHETIC or ("checkpoint", "fsync") not in training["settings"].pairs:
        parts.add("between epochs")
    return parts


def _communicating_share(
    explanation: Explanation,
    training: "pd.Series[Any]",
    ranks: Sequence[Rank],
    exchanges: pd.DataFrame,
) -> CommunicatingShare | None:
    """Return the share of communication in a step; None without bytes or steps in the records."""
    all_steps = training["steps"] + training["warmup_steps"]
    step_bytes, carried = _sent_in_step(ranks, all_steps)
    spent_s = {}
    for part in explanation.parts:
        if part.name in ("data", "copy", "compute", "communicate"):
            spent_s[part.name] = part.target_s / training["steps"]
    step_s = math.fsum(spent_s.values())
    # Records of others hold any number: a step of none, or of no time.
    if step_bytes <= 0 or not math.isfinite(step_s) or "communicate" not in spent_s:
        return None
    communicate_s = spent_s["communicate"]
    share = CommunicatingShare(step_bytes, carried, communicate_s / step_s)
    exchanged = exchanges[exchanges["network"] == training["network"]]
    reduced = ("strategy", "all-reduce") in training["settings"].pairs
    return _predicted_share(share, step_s - communicate_s, exchanged, reduced=reduced)


def _sent_in_step(ranks: Sequence[Rank], steps: int) -> tuple[float, float | None]:
    """Return what the rank that sends most sends in a step, by the shapes and by its interface."""
    most = max(ranks, key=lambda rank: rank.sent_bytes or 0, default=None)
    if most is None or not most.sent_bytes or steps <= 0:
        return 0.0, None
    step_bytes = most.sent_bytes / steps
    if not most.interface_sent_bytes:
        return step_bytes, None
    return step_bytes, most.interface_sent_bytes / steps


def _predicted_share(
    share: CommunicatingShare,
    computing_s: float,
    exchanged: pd.DataFrame,
    *,
    reduced: bool,
) -> CommunicatingShare:
    """Complete a share by the bandwidth between the two nearest sizes, by their logarithms, if there are any."""
    operation = "point-to-point"
    largest_bytes = 2 << 20
    if reduced:
        operation = "all-reduce"
        largest_bytes = 25 << 20
    bandwidths = re.compile(rf"training/collectives/{operation}-([1-9]\d*[KM]iB)-bandwidth")
    rates: dict[float, float] = {}
    for name in map(str, exchanged):
        match = bandwidths.fullmatch(name)
        if not match:
            continue
        rate = float(exchanged[name].median())
        if rate > 0:
            log_size = math.log(parse_bytes(match[1]))
            rates[log_size] = rate
    if not rates:
        return share
    sizes = sorted(rates)
    rates_by_size = [rates[size] for size in sizes]
    log_bytes = math.log(min(share.step_bytes, largest_bytes))
    bandwidth_mb_s = float(np.interp(log_bytes, sizes, rates_by_size))
    predicted_s = share.step_bytes / bandwidth_mb_s / 1e6
    return replace(
        share,
        bandwidth_mb_s=bandwidth_mb_s,
        predicted=predicted_s / (computing_s + predicted_s),
    )


def _places(trials: pd.DataFrame, columns: Sequence[str], settings: Sequence[str]) -> "pd.Series[str]":
    """Host, envelope and layers of each trial as one text: a probe speaks only for trials of the same."""
    texts = []
    rows = trials[list(columns)].itertuples(index=False)
    for key, host in zip(trials["settings"], rows, strict=True):
        layers = (f"{name}={value}" for name, value in key.pairs if name in settings)
        # A missing fact, too, is text then.
        texts.append("\n".join((*map(str, host), *layers)))
    return pd.Series(texts, index=trials.index, dtype=object)


def _ratios(probes: pd.DataFrame, metrics: Sequence[Metric], target: str, force: bool) -> ProbeRatios:
    """Return what each metric lost on the target, by its column; of several jobs the one with most blocks counts."""
    of_ratios = by_ratio(metrics)
    formed = form(TARGET, probes, of_ratios, force=force).ratios
    ratios = {}
    for metric in of_ratios:
        of_target = []
        for arm, rows in formed[metric.column].items():
            if arm.target == target:
                of_target.append(rows[RATIO].to_numpy())
        most_blocks = max(of_target, key=len, default=())
        location = locate(most_blocks)
        if location:
            ratios[metric.column] = (metric, effect(location))
    return ratios


def predict(
    explanation: Explanation,
    ratios: ProbeRatios,
    off_disk: Set[str],
    *,
    decides: bool = True,
) -> Prediction | None:
    """Predict one explanation, except for ``off_disk``, from what the probes lost; None if none applies."""
    of_parts = (_predicted(part, ratios, off_disk, decides=decides) for part in explanation.parts)
    predicted = tuple(filter(None, of_parts))
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
    silent = []
    for part in explanation.parts:
        if part.name not in spoken_for and part.baseline_s > 0:
            silent.append(part.name)
    apart = _apart(interval, explanation.whole.interval, decides=decides)
    return Prediction(predicted, difference_s, interval, apart, tuple(silent))


def _predicted(part: TimeDifference, ratios: ProbeRatios, off_disk: Set[str], *, decides: bool) -> Predicted | None:
    if part.name == OPENING:
        return Predicted(part.name, None, None, part.difference_s, part.interval, False)
    measured = [ratios[name] for name in PREDICTORS.get(part.name, ()) if name in ratios]
    if not measured or part.name in off_disk:
        return None
    metric, ratio = measured[0]

    def cost_s(value: float) -> float:
        slow_down = 1 / value if metric.more_is_faster else value
        return part.baseline_s * (slow_down - 1)

    interval = None
    if ratio.interval:
        low, high = sorted(map(cost_s, ratio.interval))
        interval = (low, high)
    apart = _apart(interval, part.interval, decides=decides)
    return Predicted(
        part.name,
        metric.column,
        ratio,
        cost_s(ratio.ratio or 1.0),
        interval,
        apart,
    )


def _apart(predicted: tuple[float, float] | None, measured: tuple[float, float] | None, *, decides: bool) -> bool:
    if not decides or predicted is None or measured is None:
        return False
    return predicted[1] < measured[0] or measured[1] < predicted[0]


def preempted_jobs(ok: pd.DataFrame, circumstances: Mapping[GroupKey, Circumstances]) -> Iterator[PreemptedJob]:
    """Yield the preempted jobs of every target and ablation; ``ok`` are trials that are ok."""
    for (job, model, target, ablation), trials in grouped(filled(ok), [*ROW, "ablation"]):
        makespan = trials.get(f"training/{model}/{MAKESPAN}")
        if makespan is None:
            continue
        complete = []
        for record in map(read_record, trials["path"][makespan.notna()]):
            if not isinstance(record, AnalysisWarning) and _is_whole(record):
                complete.append(record)
        if complete:
            of_group = circumstances.get((job, model), Circumstances())
            sides = {f"on {target}": of_group.disturbed.get(target, ())}
            reasons = withheld(job.profile, len(complete), sides)
            blocks = np.array([[*_course(record)] for record in complete])
            numbers = []
            for column, name in enumerate(_UNITS):
                measured, predicted = blocks[:, column].T
                numbers.append(_expected(name, measured, predicted, decides=not reasons))
            first: Any = job_of(complete[0].job)
            arm = named_arm(target, ablation)
            yield PreemptedJob(
                job,
                model,
                arm,
                first.preemption.mean_s,
                len(complete),
                tuple(numbers),
                reasons,
            )


def _is_whole(record: Any) -> bool:  # noqa: ANN401 (decoded by the table of columns, as below)
    job = job_of(record.job)
    spans = record.timeline
    return bool(job.preemption and job.sizes and job.sizes.epochs and spans and spans.measured_s)


def _course(record: Any) -> Iterator[tuple[float, float]]:  # noqa: ANN401
    """Yield each number of a preempted job: as it was measured, and as its parts predict it."""
    spans: Any = record.timeline
    job: Any = job_of(record.job)
    before_steps = (record.open_s, spans.launch_s, spans.imports_s, spans.build_s, spans.warmup_s)
    start_s = math.fsum(filter(None, before_steps))
    checkpoints_s = spans.between_epochs_s or 0.0
    work_s = np.asarray(spans.measured_s)
    epochs = job.sizes.epochs
    course = course_of(
        work_s,
        np.asarray(start_s),
        np.asarray(checkpoints_s / epochs),
        job.preemption,
        work_s / epochs,
    )
    lost_steps = course.lost_s * job.sizes.steps / (spans.measured_s + checkpoints_s)
    for name, predicted in zip(_UNITS, (course.makespan_s, course.openings, lost_steps), strict=True):
        yield record.metrics[name].value, float(predicted)


def _expected(name: str, measured: np.ndarray, predicted: np.ndarray, *, decides: bool) -> ExpectedNumber:
    apart = _interval(measured - predicted)
    return ExpectedNumber(
        name,
        _UNITS[name],
        float(measured.mean()),
        float(predicted.mean()),
        _interval(measured),
        _interval(predicted),
        apart,
        bool(decides and apart and apart[0] * apart[1] > 0),
    )


def _interval(values: np.ndarray) -> tuple[float, float] | None:
    location = locate(values, trim=0)
    if not location:
        return None
    return location.interval
