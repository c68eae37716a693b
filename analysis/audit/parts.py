"""The parts that few records have, held against the job: ranks, aggressors, data, epochs, models, samples."""

import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.audit.findings import Finding, Kind
from analysis.audit.numbers import CLOCKS_S, GAP_S, GAP_SHARE
from analysis.audit.turns import TURNS, turn_limits, turn_sums, turns
from suite.job.datasets import LEAST_WARM, MOST_COLD
from suite.job.job import Job
from suite.records.columns import CLOCKS_SHARE
from suite.records.record import (
    EPOCH_METRICS,
    EXACT,
    Aggression,
    AggressorInstance,
    DataUse,
    Epochs,
    KeptModel,
    MetricValue,
    Rank,
)
from suite.results.store import MODELS

RANKS, AGGRESSORS, DATA, METRICS, EPOCHS, KEPT = map(Kind, ("ranks", "aggressors", "data", "metrics", "epochs", "kept"))
TRAFFIC = Kind(
    "traffic",
    "named",
    "see the ranks' byte counts; a message may have been under way at the end",
)
GONE = Kind(
    "models",
    "named",
    "their quality cannot be measured again: restore models/, or say why they are gone",
)
_NEAR = 0.01
_PHASES = {"data_s": "waited_s", "compute_s": "computed_s", "communicate_s": "communicated_s"}
"""The seconds of a rank, and the columns of the steps of which those of the first worker are the sums."""
_STATISTICS = (statistics.median, statistics.geometric_mean, statistics.fmean, min, max)
"""What a metric may be of its samples: a median, of turns a geometric mean, of a stream the mean."""
_PERCENTILE = re.compile(r"(.+-)(median|p50|p95|p99)(|-.+)")
Check = Callable[..., Iterator[str]]


def parts(trials: pd.DataFrame) -> Iterator[Finding]:
    """Yield the contradictions between parts of records that are ok, and between them and their jobs."""
    for column, checks in _CHECKS.items():
        present = trials[column].notna()
        # Most runs have none of them, and to turn an empty table into rows takes as long as to turn a hundred.
        if present.any():
            for row in trials[present].to_dict("records"):
                yield from _checked(row, column, checks)


def _checked(row: dict[Any, Any], column: str, checks: Sequence[tuple[Kind, Check]]) -> Iterator[Finding]:
    path = row["path"]
    for kind, check in checks:
        try:
            for problem in check(row[column], row["job"].job, row):
                yield kind.at(path, problem)
        except Exception as error:  # noqa: BLE001 (one record of a stranger must not end what judges thousands)
            yield kind.at(path, f"it cannot be checked ({type(error).__name__}: {error})")


def _ranks(ranks: Sequence[Rank], job: Job, row: dict[Any, Any]) -> Iterator[str]:
    planned = []
    if job.distributed:
        planned = list(enumerate(job.distributed.roles))
    if [(rank.rank, rank.role) for rank in ranks] != planned:
        recorded = ", ".join(f"{rank.rank} {rank.role}" for rank in ranks)
        yield f"its ranks are {recorded}, and not those of the job"
        return
    numbers = {rank.rank for rank in ranks}
    for rank in ranks:
        if not rank.links:
            continue
        linked = sorted(link.rank for link in rank.links)
        others = sorted(numbers - {rank.rank})
        if linked != others:
            yield f"rank {rank.rank} has links to other ranks than all others"
    workers = [rank for rank in ranks if rank.role == "worker"]
    yield from _workers(workers, job, row)


def _workers(workers: Sequence[Rank], job: Job, row: dict[Any, Any]) -> Iterator[str]:
    if not workers:
        return
    trained = workers[:1] if job.one_batch else workers
    total = sum(worker.throughput_per_s or 0.0 for worker in trained)
    if not math.isclose(total, row["throughput_per_s"], rel_tol=EXACT):
        yield f"{row['throughput_per_s']:.6g} {job.unit}/s, and its workers make {total:.6g}"
    for worker in workers:
        yield from _worker(worker, job)
    # The steps and the span of the record are those of the first worker.
    for name, column in {**_PHASES, "measured_s": "measured_s"}.items():
        own_s = getattr(workers[0], name) or 0.0
        recorded_s = row[column]
        if not math.isclose(own_s, recorded_s, rel_tol=EXACT, abs_tol=EXACT):
            yield f"its first worker has a {name} of {own_s:.6g}, and its steps one of {recorded_s:.6g}"


def _worker(rank: Rank, job: Job) -> Iterator[str]:
    span_s = rank.measured_s or 0.0
    speed = rank.throughput_per_s or 0.0
    steps_per_s = 0.0
    if job.sizes and span_s:
        units = job.sizes.batch * job.devices.devices * job.sizes.steps
        steps_per_s = units / span_s
    if not math.isclose(steps_per_s, speed, rel_tol=EXACT):
        yield f"rank {rank.rank} has {speed:.6g} {job.unit}/s, and its steps make {steps_per_s:.6g}"
    phases = [getattr(rank, name) for name in _PHASES]
    if None in phases:
        yield f"rank {rank.rank} has no times of waiting, computing and communicating"
    phases_s = sum(filter(None, phases))
    rest_s = span_s - phases_s
    if not -EXACT * span_s <= rest_s <= GAP_SHARE * span_s + GAP_S:
        yield f"rank {rank.rank} has phases of {phases_s:.6g} s, and measured {span_s:.6g} s"


def _traffic(ranks: Sequence[Rank], _: Job, __: dict[Any, Any]) -> Iterator[str]:
    sent_bytes = 0
    received_bytes = 0
    for rank in ranks:
        if rank.sent_bytes is None or rank.received_bytes is None:
            return
        sent_bytes += rank.sent_bytes
        received_bytes += rank.received_bytes
    difference = abs(sent_bytes - received_bytes)
    if difference > _NEAR * max(sent_bytes, received_bytes):
        yield f"its ranks sent {sent_bytes} bytes and received {received_bytes}"


def _aggressors(aggressors: Sequence[AggressorInstance], job: Job, row: dict[Any, Any]) -> Iterator[str]:
    copies = job.sharing.copies if job.sharing else 0
    if len(aggressors) != copies:
        yield f"{len(aggressors)} instances beside the victim, and the job has {copies}"
    at_work = [instance.aggression for instance in aggressors if instance.aggression]
    due = 0
    planned = "the victim is alone"
    if isinstance(row["aggressor"], str):
        due = len(aggressors)
        planned = f"the trial has {row['aggressor']} beside it"
    if len(at_work) != due:
        yield f"{len(at_work)} of {len(aggressors)} aggressors were at work, and {planned}"
    for aggression in at_work:
        begun_s = aggression.begun_s
        ended_s = aggression.ended_s
        if begun_s >= 0 or ended_s < row["elapsed_s"]:
            yield f"an aggressor was at work from {begun_s:.3g} s to {ended_s:.6g} s, not all the time"
        if not _grows(aggression):
            yield "an aggressor's reports do not only grow, from its begin to its end"


def _grows(aggression: Aggression) -> bool:
    heard_s = aggression.heard_s
    steps = aggression.steps
    if not len(heard_s) == len(steps) == len(aggression.work):
        return False
    if heard_s:
        late_s = abs(heard_s[0] - aggression.begun_s)
        early_s = abs(heard_s[-1] - aggression.ended_s)
        if max(late_s, early_s) > EXACT:
            return False
    work = [amount for amount in aggression.work if amount is not None]
    columns: tuple[Sequence[float], ...] = (heard_s, steps, work)
    return all(map(_ascends, columns))


def _ascends(numbers: Sequence[float]) -> bool:
    return all(earlier <= later for earlier, later in pairwise(numbers))


def _data(use: DataUse, job: Job, _: dict[Any, Any]) -> Iterator[str]:
    planned = job.dataset
    if planned is None:
        yield "it read a data set, and the job has none"
        return
    for name in ("kind", "sha256", "listing_sha256", "images", "size_bytes"):
        used = getattr(use, name)
        wanted = getattr(planned, name)
        if used != wanted:
            yield f"the data set has {name} {used}, and that of the job {wanted}"
    share = use.page_cache_share
    if share is not None:
        if job.page_cache == "cold":
            wrong = share > MOST_COLD
        else:
            wrong = share < LEAST_WARM
        if wrong:
            yield f"the page cache held {share:.1%} of the data, and was to be {job.page_cache}"
    trained = left_over = 0
    if job.sizes:
        step_images = job.sizes.batch * job.devices.devices
        trained = step_images * (job.sizes.steps + job.sizes.warmup_steps)
        # An epoch reads each file at most once, but those left over; of a part of one, each image may be the largest.
        left_over = planned.images % step_images
    if use.images_read < trained:
        yield f"{use.images_read} images were read, and {trained} trained"
    epoch_images = max(1, planned.images - left_over)
    epochs = math.ceil(use.images_read / epoch_images)
    if use.bytes_read > planned.size_bytes * epochs:
        yield f"{use.bytes_read} bytes were read, and {use.images_read} images hold less"


def _samples(metrics: Mapping[str, MetricValue], _: Job, __: dict[Any, Any]) -> Iterator[str]:
    for name, metric in metrics.items():
        if not metric.samples or _PERCENTILE.fullmatch(name):
            continue
        likely = (statistic(metric.samples) for statistic in _STATISTICS)
        if not any(math.isclose(metric.value, value, rel_tol=_NEAR) for value in likely):
            ends = [min(metric.samples), max(metric.samples)]
            yield f"{name} is {metric.value:.6g}, and its samples are {json.dumps(ends)}"


def _percentiles(metrics: Mapping[str, MetricValue], job: Job, _: dict[Any, Any]) -> Iterator[str]:
    """Yield percentiles that do not ascend, or that are not the nearest rank of the samples, which the median has."""
    matches = filter(None, map(_PERCENTILE.fullmatch, metrics))
    in_order = sorted(matches, key=lambda match: match.group(1, 3, 2))
    for (begin, end), group in groupby(in_order, key=lambda match: match.group(1, 3)):
        values = {match[2]: metrics[match[0]].value for match in group}
        if [*values.values()] != sorted(values.values()):
            yield f"the percentiles {begin}*{end} are {json.dumps(values)}: they must ascend"
        samples = []
        if "p50" in values:
            samples = sorted(metrics[f"{begin}p50{end}"].samples or ())
        if job.serving and not samples:
            yield f"the percentiles {begin}*{end} have no samples"
        if samples:
            for name, value in values.items():
                percent = int(name[1:])
                rank = -(-percent * len(samples) // 100)  # rounded up
                nearest_rank = samples[rank - 1]
                if value != nearest_rank:
                    yield f"{begin}{name}{end} is {value:.6g}, and its samples make {nearest_rank:.6g}"


def _outside(metrics: Mapping[str, MetricValue], job: Job, row: dict[Any, Any]) -> Iterator[str]:
    """Yield the metrics that contradict what the record has of epochs, opening, launch and usage."""
    values = {name: metric.value for name, metric in metrics.items()}
    used = {
        "cpu-time": row["worker_cpu_s"],
        "peak-memory": row["worker_peak_memory_bytes"] / 1e6,
    }
    if job.command:
        for name in sorted(used.keys() & values.keys()):
            if not math.isclose(values[name], used[name], rel_tol=EXACT):
                yield f"its {name} is {values[name]:.6g}, and it used {used[name]:.6g}"
    of_epochs = sorted(set(EPOCH_METRICS) & values.keys())
    if row["epochs"] is None and of_epochs:
        yield f"it has {', '.join(of_epochs)}, and no epochs"
    cold_s = values.get("cold-start")
    if cold_s is None:
        return
    opened_s = values["cold-start-with-opening"] - cold_s
    near_s = CLOCKS_SHARE * row["elapsed_s"] + CLOCKS_S
    if not 0 <= opened_s <= row["open_s"] + EXACT:  # other instances are opened, too
        yield f"{opened_s:.6g} s of its cold start are opening, which took {row['open_s']:.6g} s"
    most_s = row["elapsed_s"] - row["measured_s"]
    if not row["ready_s"] - near_s <= cold_s <= most_s + near_s:
        yield f"its cold start took {cold_s:.6g} s: not from {row['ready_s']:.6g} s of building to {most_s:.6g} s"


def _epochs(epochs: Epochs, job: Job, row: dict[Any, Any]) -> Iterator[str]:
    """Yield what is not as the host makes it of the job and of the seconds of epochs and checkpoints."""
    measured_s = row["measured_s"]
    written_s = epochs.checkpoints.seconds if epochs.checkpoints else []
    due = {
        "epochs": (len(epochs.seconds), job.epochs),
        "steps": (epochs.steps, job.epoch_steps),
        "share": (epochs.scaled_share or job.epochs, row["steps"] / epochs.steps),
        "seconds": (math.fsum(epochs.seconds) or measured_s, measured_s),
        "checkpoints": (len(written_s), job.epochs if job.checkpoint else 0),
    }
    metrics = row["metrics"] or {}
    derived = epochs.metrics(measured_s, of_data=job.dataset is not None)
    for name in EPOCH_METRICS:
        first = metrics[name].value if name in metrics else 0.0
        second = derived[name].value if name in derived else 0.0
        due[name] = first, second
    for name, (recorded, expected) in due.items():
        if not math.isclose(recorded, expected, rel_tol=EXACT):
            yield f"{name}: {recorded:.6g}, and its epochs and job make {expected:.6g}"
    checkpoints_s = math.fsum(written_s)
    if checkpoints_s > row["between_s"]:
        yield f"its checkpoints took {checkpoints_s:.6g} s, and {row['between_s']:.6g} s lie between its epochs"


def _kept(kept: Sequence[KeptModel], job: Job, row: dict[Any, Any]) -> Iterator[str]:
    epochs_of = {
        "each": [*range(1, job.epochs + 1)],
        "last": [job.epochs or None],
        None: [],
    }
    wanted = epochs_of[job.keep_model]
    numbers = [model.epoch for model in kept]
    if numbers != wanted:
        yield f"it kept models of the epochs {numbers}, and its job keeps those of {wanted}"
    ends_s: dict[int, float] = {}
    if job.epochs:
        ends = accumulate(row["epochs"].seconds)
        ends_s = dict(enumerate(ends, start=1))
    share = EXACT if ends_s else GAP_SHARE
    most_s = 0.0 if ends_s else GAP_S
    for model in kept:
        if model.epoch in ends_s:
            likely_s = [ends_s[model.epoch]]
        else:
            likely_s = _spans_s(row)
        if not any(math.isclose(model.training_s, end_s, rel_tol=share, abs_tol=most_s) for end_s in likely_s):
            yield f"a model was trained for {model.training_s:.6g} s, and its steps took {likely_s[0]:.6g} s"


def _spans_s(row: dict[Any, Any]) -> list[float]:
    """Return the measured spans of all ranks, of which any may have the network that makes the images."""
    of_ranks = [rank.measured_s or 0.0 for rank in row["ranks"] or ()]
    return [row["measured_s"], *of_ranks]


def _models(kept: Sequence[KeptModel], _: Job, row: dict[Any, Any]) -> Iterator[str]:
    if row["generated_weights"] not in (None, kept[-1].weights_sha256):
        yield "its images were generated by another network than the last that it kept"
    sizes = _files(row)
    for model in kept:
        size_bytes = sizes.get(model.weights_sha256, model.size_bytes)
        if size_bytes != model.size_bytes:
            yield f"{model.weights_sha256}.pt has {size_bytes} bytes, and was kept with {model.size_bytes}"


def _gone(kept: Sequence[KeptModel], _: Job, row: dict[Any, Any]) -> Iterator[str]:
    digests = {model.weights_sha256 for model in kept}
    gone = digests - _files(row).keys()
    if gone:
        yield f"{len(gone)} of its {len(kept)} models are not in {MODELS}/"


def _files(row: dict[Any, Any]) -> dict[str, int]:
    """Return the sizes of the models in the run of a record, by their digests."""
    models = Path(row["path"]).parents[1] / MODELS
    return {path.stem: path.stat().st_size for path in models.glob("*.pt")}


_CHECKS: Mapping[str, tuple[tuple[Kind, Check], ...]] = {
    "ranks": ((RANKS, _ranks), (TRAFFIC, _traffic)),
    "aggressors": ((AGGRESSORS, _aggressors),),
    "data_use": ((DATA, _data),),
    "metrics": ((METRICS, _samples), (METRICS, _percentiles), (METRICS, _outside)),
    "epochs": ((EPOCHS, _epochs),),
    "kept": ((KEPT, _kept), (KEPT, _models), (GONE, _gone)),
    "alternation": ((TURNS, turns), (TURNS, turn_limits), (TURNS, turn_sums)),
}
"""The checks of each column, for the trials that have it."""
