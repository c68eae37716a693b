"""Scaling: what more workers bring to a distributed job, from jobs that agree in everything but their number.

*Strong* scaling keeps the global batch, *weak* scaling that of a rank, whose speed-up is the scaled one of Gustafson,
Comm. ACM 31 (1988) 532. Jobs that keep neither are not put together. The smallest number of workers stands for one
processor. Jobs share no block, so their blocks are independent samples, of one run or of several; see
``statistics.two_samples``. The cells of a sweep are of one run.

The quality of the images is compared at an equal number of images seen, of jobs that differ in how they divided the
work. More workers with the same batch each see more images in as many steps, and take fewer updates to see as many:
hence neither steps nor updates are equal there. A block is then a seed, whichever run it is of.

Instances that are opened together grow: what they take by their number, and the slope of each block, by least squares.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import truediv
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.contrast_kinds import DIVISION, STRONG, WEAK, ContrastKind
from analysis.compare.groups import mean_losses
from analysis.compare.pairing import (
    JOB,
    ROW,
    by_block,
    grouped,
    job_of,
    order,
    substitutes_of,
)
from analysis.compare.results import Arm, Contrast, Division
from analysis.compare.verdicts import (
    Sides,
    TermsByJob,
    Unjudged,
    judged,
    judged_counts,
    unlooked,
    valued,
    withheld,
)
from analysis.load.metrics import METRICS, Metric, by_ratio, with_trait
from analysis.load.records import of_jobs
from analysis.statistics.counts import between_runs
from analysis.statistics.ratios import Location, exp, locate
from analysis.statistics.two_samples import difference, levels
from analysis.warnings.conditions import disturbed
from suite.job.distributed import SHARED_CPUS
from suite.job.job import Job, settings
from suite.records.record import Rank
from suite.results.quality import IMAGE_METRICS
from suite.trial_names import instances_in

SCALED = {
    METRICS[0].name: METRICS[0],
    "speed-up": Metric("speed-up", METRICS[0].column, "x", "more"),
    "efficiency": Metric("efficiency", "", ""),
    "serial share": Metric("serial share", "", ""),
    "fitted serial share": Metric("fitted serial share", "", ""),
    "communicating": Metric("communicating", "", ""),
}
"""What scaling is described by. Strong scaling alone has a serial share, and the largest of three numbers or more
that of the fit to all. Communicating is the share of the workers' time in which they wait for other ranks."""
SAME = (
    *(name for name in ROW if name != "variant"),
    *("hostname", "host_kernel", "host_cpu_model", "userland_sha256", "torch", "torch_cpu_capability"),
)
"""The columns in which jobs agree, beside one of the keys of a job."""
_DIVISION = ("strategy", "steps", "warmup_steps")
"""The settings by which jobs can divide the same work in different ways."""
_GROWING = ("workers", "batch", "lab.nodes", "machines.name", "machines.interface", "machines.cpus")
"""The settings that grow with the number of workers."""
TIMES = (Metric("ready-median", "", "s"), Metric("ready-p95", "", "s"))
EACH = (Metric("memory-per-instance", "", "MB"), Metric("host-cpu-per-instance", "", "s"))
"""The metrics that are a mean over the instances: what they take together grows."""
FAILED = Metric("failed-instances", "", "", compared="difference")
_BLOCK = ["run_id", "block"]
"""A block: those of two runs have the same numbers."""
Uncertain = tuple[float, ...]
"""A value, and the ends of its 95 % interval, which takes two blocks or more."""


def karp_flatt(speed_up: float, factor: float) -> float:
    """Return the serial share of a job of one size on ``factor`` processors: Karp and Flatt, Comm. ACM 33 (1990) 539.

    If it grows with the processors, so does the cost of running in parallel.
    """
    parallel = 1 - 1 / factor
    return (1 / speed_up - 1 / factor) / parallel


def amdahl(speed_ups: Sequence[float], factors: Sequence[float]) -> float:
    """Return s of the least squares fit of 1 / speed-up = s + (1 - s) / factor (Amdahl, AFIPS 30 (1967) 483)."""
    parallel = [1 - 1 / factor for factor in factors]
    squares = [part * part for part in parallel]
    measured = []
    for speed_up, part in zip(speed_ups, parallel, strict=True):
        serial_time = 1 / speed_up - 1 + part
        measured.append(serial_time * part)
    return math.fsum(measured) / math.fsum(squares)


def trials_with_workers(ok: pd.DataFrame, evidence: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of distributed jobs, with what tells which of them agree.

    ``share`` is the key of a job for one worker, ``task`` that for one worker and any division of the work. ``ok`` are
    the trials that are ok, of targets as they are, with ``variant``; ``evidence`` is that of the records.
    """
    spread = ok[with_trait(ok, "spread")]
    if spread.empty:
        return spread
    by_path = evidence.drop_duplicates("path").set_index("path")
    parts = by_path.loc[spread["path"], ["job", "ranks", "seed"]]
    parts = parts.set_axis(spread.index)
    steps_taken = of_jobs(parts, lambda job: job.sizes and job.sizes.warmup_steps + job.sizes.steps)
    # The copy is of one part, to which pandas adds columns quietly; of over a hundred it warns.
    trials = spread.copy().assign(
        workers=of_jobs(parts, lambda job: job.distributed and job.distributed.workers),
        strategy=of_jobs(parts, lambda job: job.distributed and job.distributed.strategy),
        share=of_jobs(parts, _key_of_share),
        task=of_jobs(parts, lambda job: _key_of_share(job, _DIVISION)),
        images_seen=steps_taken.astype(float) * spread["global_batch"],
        communicating=parts["ranks"].map(_communicating),
        seed=parts["seed"],
    )
    return trials.dropna(subset=["workers", "communicating"]).astype({"workers": int})


def _uncertain(location: Location) -> Uncertain:
    return (location.centre, *(location.interval or ()))


def _mapped(numbers: Uncertain, function: Callable[..., float], *more: float) -> Uncertain:
    """Return a monotone function of the value and of the ends of its interval."""
    value, *ends = (function(number, *more) for number in numbers)
    return (value, *sorted(ends))


def scaling(trials: pd.DataFrame) -> Iterator[Contrast]:
    """Yield the numbers of workers of jobs of ``trials_with_workers`` with several, in the order of the paper."""
    if trials.empty:
        return
    for kind, batch in ((STRONG, "global_batch"), (WEAK, "batch")):
        jobs = trials.groupby([*SAME, "share", batch], dropna=False, observed=True)
        contrasts = chain.from_iterable(_scaling(kind, alike) for _, alike in jobs)
        yield from sorted(contrasts, key=lambda contrast: order(contrast.arm))


def _key_of_share(job: Job, without: Sequence[str] = ()) -> str:
    """Return the comparison key of a job, with the share of one worker in place of what grows with their number."""
    if not job.distributed:
        return ""
    machines = job.distributed.machines
    envelope = job.envelope
    shares = 1 if machines else len(job.distributed.roles)
    share = {
        "cpus": max(1, len(envelope.cpus) // shares),
        "memory": envelope.memory_bytes // shares,
        "threads": max(1, envelope.threads // shares),
        "machines": machines[0].name if machines else None,
    }
    left_out = (*_GROWING, *without)
    of_job = settings(job)
    agreeing = {name: value for name, value in of_job.items() if name not in left_out}
    return str(agreeing | share)


def _communicating(ranks: Sequence[Rank] | None) -> float | None:
    """Return the share of the workers' time in which they wait for others; None if no training exchanges anything."""
    exchanging = [rank for rank in ranks or () if rank.sent_bytes is not None]
    workers = [rank for rank in exchanging if rank.role == "worker"]
    spent_s = math.fsum(rank.measured_s or 0.0 for rank in workers)
    if not spent_s:
        return None
    waited_s = math.fsum(rank.communicate_s or 0.0 for rank in workers)
    return waited_s / spent_s


def _scaling(kind: ContrastKind, alike: pd.DataFrame) -> Iterator[Contrast]:
    """Yield the numbers of workers of jobs that agree in a batch; none if there is one number."""
    rows = {int(trials["workers"].iloc[0]): trials for _, trials in alike.groupby("workers")}
    throughputs = _throughputs(rows)
    if len(throughputs) < 2:
        return
    smallest = min(throughputs)
    first = rows[smallest]
    speed_ups: dict[float, Uncertain] = {}
    for n, throughput in throughputs.items():
        trials = rows[n]
        arm, substitutes = division(first, trials)
        notes = list(substitutes)
        values = {"throughput": _mapped(_uncertain(throughput), exp)}
        if n > smallest:
            gain = difference(throughputs[smallest], throughput)
            values["speed-up"] = _mapped(_uncertain(gain), exp)
        if SHARED_CPUS in (*substitutes_of(first), *substitutes):
            notes.append("efficiency withheld: instances share CPUs")
        elif n > smallest:
            speed_ups[n / smallest] = values["speed-up"]
            values["efficiency"] = _mapped(values["speed-up"], truediv, n / smallest)
            if kind is STRONG:
                values |= _serial_shares(speed_ups, last=n == max(throughputs))
        (waited,) = levels([_by_run(trials, trials["communicating"])])
        if waited:
            values["communicating"] = _uncertain(waited)
        profile = str(trials["profile"].iloc[0])
        blocks = min(throughputs[smallest].n, throughput.n)
        notes += withheld(profile, blocks, _sides(alike, smallest, n))
        compared = _compared(first, trials, throughput)
        for name, (value, *ends) in values.items():
            of_metric: dict[str, Any] = {"interval": tuple(ends) or None}
            of_metric["ratio" if name == "speed-up" else "value"] = value
            yield Contrast(
                kind=kind.name,
                arm=arm,
                metric=SCALED[name],
                blocks=throughput.n,
                notes=tuple(notes),
                **compared,
                **of_metric,
            )


def _throughputs(rows: Mapping[int, pd.DataFrame]) -> dict[int, Location]:
    """Return the level of the throughput by the number of workers."""
    runs = [_by_run(trials, METRICS[0].logs(trials)) for trials in rows.values()]
    by_number = zip(rows, levels(runs), strict=True)
    return {n: level for n, level in by_number if level}


def _by_run(trials: pd.DataFrame, values: "pd.Series[float]") -> list[list[float]]:
    """Return the values of each run, or sweep, by block."""
    runs = trials.groupby("sweep", observed=True)
    return [by_block(of_run, values[of_run.index]) for _, of_run in runs]


def _compared(first: pd.DataFrame, trials: pd.DataFrame, level: Location) -> dict[str, Any]:
    """Return the runs of two sides and the spread between them; nothing for sides of one run, or sweep."""
    before = set(first["sweep"])
    after = set(trials["sweep"])
    if before == after and len(after) == 1:
        return {}
    return {"runs": (len(before), len(after)), "spread": level.spread_share}


def division(first: pd.DataFrame, trials: pd.DataFrame) -> tuple[Arm, tuple[str, ...]]:
    """Return the arm of these trials beside those of the first way, and their substitutes."""
    row = trials.iloc[0]
    images_seen = row["images_seen"]
    losses = mean_losses(trials["losses"])
    way = Division(
        int(row["workers"]),
        int(row["batch"]),
        int(row["global_batch"]),
        str(row["strategy"]),
        None if pd.isna(images_seen) else int(images_seen),
        tuple(losses.items()),
    )
    arm = Arm(
        job_of(first.iloc[0]),
        str(row["model"]),
        str(row["target"]),
        division=way,
    )
    return arm, substitutes_of(trials)


def _sides(alike: pd.DataFrame, *numbers: int) -> Sides:
    """Return what has disturbed the trials with these numbers of workers, on one target."""
    sides = {}
    for (_, workers), causes in disturbed(alike, ["target", "workers"]).items():
        if int(workers) in numbers:
            sides[f"with {workers} workers"] = causes
    return sides


def _serial_shares(speed_ups: Mapping[float, Uncertain], *, last: bool) -> Iterator[tuple[str, Uncertain]]:
    """Yield the serial share by the last speed-up, and that of the fit to all, with cautious ends: of all at once."""
    factors, gains = zip(*speed_ups.items(), strict=True)
    yield "serial share", _mapped(gains[-1], karp_flatt, factors[-1])
    if last and len(gains) > 1:
        values_and_ends = zip(*gains, strict=False)
        value, *ends = (amdahl(numbers, factors) for numbers in values_and_ends)
        yield "fitted serial share", (value, *sorted(ends))


def quality(trials: pd.DataFrame, metrics: Sequence[Metric], terms: TermsByJob) -> list[Contrast]:
    """Return each way to divide the work of ``trials_with_workers``, over that with the fewest workers."""
    of_images = [metric for metric in metrics if metric.name in IMAGE_METRICS]
    if trials.empty or not of_images:
        return []
    # What two runs trained from one seed is one model, and no second sample.
    trials = trials.assign(run_id="", block=trials["seed"])
    jobs = trials.groupby([*SAME, "task", "images_seen"], dropna=False, observed=True)
    contrasts: list[Contrast] = []
    for _, alike in jobs:
        contrasts += _quality(alike, by_ratio(of_images), terms)
        for metric in of_images:
            if metric.by_difference:
                contrasts += _amount(alike, metric)
    return sorted(contrasts, key=_order_of_division)


def _order_of_division(contrast: Contrast) -> tuple[object, ...]:
    way = contrast.arm.division
    return (*order(contrast.arm), way and way.images_seen)


def _quality(alike: pd.DataFrame, metrics: Sequence[Metric], terms: TermsByJob) -> Iterator[Contrast]:
    """Yield the ways of jobs that have seen as many images; none if there is one."""
    ways = [trials for _, trials in alike.groupby(["workers", "strategy", "batch"])]
    compared: dict[Metric, dict[int, Location]] = {}
    for metric in metrics:
        of_metric = {}
        for number, trials in enumerate(ways):
            logs = by_block(trials, metric.logs(trials))
            location = locate(logs)
            if location:
                of_metric[number] = location
        if len(of_metric) > 1:
            compared[metric] = of_metric
    first = min(chain.from_iterable(compared.values()), default=0)
    unjudged = []
    for metric, of_metric in compared.items():
        base = next(iter(of_metric.values()))
        for number, location in of_metric.items():
            trials = ways[number]
            arm, notes = division(ways[first], trials)
            contrast = Contrast(
                kind=DIVISION.name,
                arm=arm,
                metric=metric,
                value=location.ratio,
                trials=int(metric.logs(trials).count()),
                notes=notes,
            )
            ratio = None
            if location is not base:
                ratio = difference(base, location)
            unjudged.append(Unjudged(contrast, ratio, metric))
    yield from judged(unjudged, unlooked(terms))


def _amount(alike: pd.DataFrame, metric: Metric) -> Iterator[Contrast]:
    """Yield a metric that can be zero, of each way less that of the first way that has it; none if there is one."""
    ways = [trials for _, trials in alike.groupby(["workers", "strategy", "batch"])]
    measured = [trials for trials in ways if trials[metric.column].notna().any()]
    if len(measured) < 2:
        return
    columns = [by_block(trials, trials[metric.column]) for trials in measured]
    base = columns[0]
    contrasts = []
    for trials, numbers in zip(measured, columns, strict=True):
        arm, notes = division(measured[0], trials)
        over_base = None
        if numbers is not base:
            over_base = between_runs([base], [numbers])
        contrast = Contrast(
            kind=DIVISION.name,
            arm=arm,
            metric=metric,
            value=fmean(numbers),
            trials=len(numbers),
            difference=over_base,
            notes=notes,
        )
        contrasts.append(contrast)
    yield from judged_counts(contrasts, lambda contrast: contrast.metric)


def growth(finished: pd.DataFrame) -> Iterator[Contrast]:
    """Yield what each number of instances took (``together``), and the slopes (``growth``); trials that are ok."""
    trials = finished[with_trait(finished, "multiplied")].fillna({"ablation": ""})
    if trials.empty:
        return
    for (job, target, ablation), rows in grouped(trials, [*JOB, "target", "ablation"]):
        for metric in (*TIMES, *EACH, FAILED):
            by_number: dict[int, pd.Series[float]] = {}
            for model, of_model in rows.groupby("model"):
                column = of_model.set_index(_BLOCK).get(f"{model}/{metric.name}")
                if column is not None and column.notna().any():
                    values = column.dropna()
                    by_number[instances_in(str(model))] = values
                    arm = Arm(job, str(model), target, ablation)
                    yield _together(arm, metric, values)
            slopes = _slopes(pd.DataFrame(by_number), whole=metric in EACH)
            slope = locate(slopes, trim=0)
            if slope:
                yield Contrast(
                    kind="growth",
                    arm=Arm(job, "", target, ablation),
                    metric=metric,
                    value=slope.centre,
                    value_interval=slope.interval,
                )


def _together(arm: Arm, metric: Metric, values: "pd.Series[Any]") -> Contrast:
    """Return what one number of instances took."""
    counted = metric is FAILED
    numbers = values.to_numpy()
    if counted:
        level = locate(numbers, trim=0)
    else:
        level = locate(np.log(numbers))
    return Contrast(
        kind="together",
        arm=arm,
        metric=metric,
        trials=len(values),
        **valued(level, by_difference=counted),
    )


def _slopes(by_number: pd.DataFrame, *, whole: bool) -> list[float]:
    """Return the slope of every block; ``whole``: of the values times the numbers of instances."""
    values = by_number
    if whole:
        values = by_number.mul(by_number.columns, axis=1)
    slopes = []
    for _, row in values.iterrows():
        measured = row.dropna()
        if len(measured) > 1:
            slope, _ = np.polyfit(measured.index.to_numpy(float), measured, 1)
            slopes.append(float(slope))
    return slopes
