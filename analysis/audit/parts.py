"""The parts that few records have, held against the job: ranks, aggressors, data, samples of metrics."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from analysis.audit.findings import AGAIN, Finding, Kind
from analysis.audit.numbers import EXACT, GAP_S, GAP_SHARE
from analysis.audit.turns import TURNS, turn_limits, turn_sums, turns
from analysis.load.records import Text
from suite.job.datasets import LEAST_WARM, MOST_COLD
from suite.job.job import Job
from suite.records.record import Aggression, AggressorInstance, DataUse, Rank

RANKS = Kind("ranks", "refused", AGAIN)
TRAFFIC = Kind("traffic", "named", "see the ranks' byte counts; a message may have been under way at the end")
AGGRESSORS = Kind("aggressors", "refused", AGAIN)
DATA = Kind("data", "refused", AGAIN)
SAMPLES = Kind("samples", "refused", AGAIN)
_NEAR = 0.01
_PHASES = ("data_s", "compute_s", "communicate_s")
Check = Callable[..., Iterator[str]]


def parts(trials: pd.DataFrame, jobs: Mapping[Text, Job]) -> Iterator[Finding]:
    """Yield the contradictions between parts of records that are ok, and between them and their jobs.

    ``jobs``: the job of each text in the column of that name; many records share one.
    """
    checks: tuple[tuple[str, Kind, Check], ...] = (
        ("ranks", RANKS, _ranks),
        ("ranks", TRAFFIC, _traffic),
        ("aggressors", AGGRESSORS, _aggressors),
        ("data_use", DATA, _data),
        ("samples", SAMPLES, _samples),
        ("alternation", TURNS, turns),
        ("alternation", TURNS, turn_limits),
        ("alternation", TURNS, turn_sums),
    )
    for column, kind, check in checks:
        present = trials[column].notna()
        # Most runs have none of them, and to turn an empty table into rows takes as long as to turn a hundred.
        for row in trials[present].to_dict("records") if present.any() else ():
            try:
                yield from (kind.at(row["path"], problem) for problem in check(row[column], jobs[row["job"]], row))
            except Exception as error:  # noqa: BLE001 (one record of a stranger must not end what judges thousands)
                yield kind.at(row["path"], f"it cannot be checked ({type(error).__name__}: {error})")


def _ranks(ranks: Sequence[Rank], job: Job, row: dict[Any, Any]) -> Iterator[str]:
    planned = list(enumerate(job.distributed.roles)) if job.distributed else []
    if [(rank.rank, rank.role) for rank in ranks] != planned:
        yield f"its ranks are {', '.join(f'{rank.rank} {rank.role}' for rank in ranks)}, and not those of the job"
        return
    numbers = {rank.rank for rank in ranks}
    for rank in ranks:
        if rank.links and sorted(link.rank for link in rank.links) != sorted(numbers - {rank.rank}):
            yield f"rank {rank.rank} has links to other ranks than all others"
    yield from _workers([rank for rank in ranks if rank.role == "worker"], job, row)


def _workers(workers: Sequence[Rank], job: Job, row: dict[Any, Any]) -> Iterator[str]:
    """Yield what contradicts itself in the workers, and between them and the record."""
    if not workers:
        return
    trained = workers[:1] if job.one_batch else workers
    total = sum(worker.throughput_per_s or 0.0 for worker in trained)
    if not math.isclose(total, row["throughput_per_s"], rel_tol=EXACT):
        yield f"{row['throughput_per_s']:.6g} {job.unit}/s, and its workers make {total:.6g}"
    for worker in workers:
        yield from _worker(worker, job)
    # The steps of the record are those of the first worker.
    if not math.isclose(workers[0].data_s or 0.0, row["waited_s"], rel_tol=EXACT, abs_tol=EXACT):
        yield f"its first worker waited {workers[0].data_s or 0:.6g} s for data, its steps {row['waited_s']:.6g} s"


def _worker(rank: Rank, job: Job) -> Iterator[str]:
    span_s, speed = rank.measured_s or 0.0, rank.throughput_per_s or 0.0
    made = job.sizes.batch * job.sizes.steps / span_s if job.sizes and span_s else 0.0
    if not math.isclose(made, speed, rel_tol=EXACT):
        yield f"rank {rank.rank} has {speed:.6g} {job.unit}/s, and its steps make {made:.6g}"
    phases = [getattr(rank, name) for name in _PHASES]
    if None in phases:
        yield f"rank {rank.rank} has no times of waiting, computing and communicating"
    phases_s = sum(filter(None, phases))
    if not -EXACT * span_s <= span_s - phases_s <= GAP_SHARE * span_s + GAP_S:
        yield f"rank {rank.rank} has phases of {phases_s:.6g} s, and measured {span_s:.6g} s"


def _traffic(ranks: Sequence[Rank], _: Job, __: dict[Any, Any]) -> Iterator[str]:
    sent, received = ([getattr(rank, f"{way}_bytes") for rank in ranks] for way in ("sent", "received"))
    if None not in (*sent, *received) and abs(sum(sent) - sum(received)) > _NEAR * max(sum(sent), sum(received)):
        yield f"its ranks sent {sum(sent)} bytes and received {sum(received)}"


def _aggressors(aggressors: Sequence[AggressorInstance], job: Job, row: dict[Any, Any]) -> Iterator[str]:
    copies = job.sharing.copies if job.sharing else 0
    if len(aggressors) != copies:
        yield f"{len(aggressors)} instances beside the victim, and the job has {copies}"
    at_work = [instance.aggression for instance in aggressors if instance.aggression]
    alone = not isinstance(row["aggressor"], str)
    if len(at_work) != (0 if alone else len(aggressors)):
        planned = "the victim is alone" if alone else f"the trial has {row['aggressor']} beside it"
        yield f"{len(at_work)} of {len(aggressors)} aggressors were at work, and {planned}"
    for aggression in at_work:
        begun_s, ended_s = aggression.begun_s, aggression.ended_s
        if begun_s >= 0 or ended_s < row["elapsed_s"]:
            yield f"an aggressor was at work from {begun_s:.3g} s to {ended_s:.6g} s, not all the time"
        if not _grows(aggression):
            yield "an aggressor's reports do not only grow, from its begin to its end"


def _grows(aggression: Aggression) -> bool:
    heard_s, steps = aggression.heard_s, aggression.steps
    if not len(heard_s) == len(steps) == len(aggression.work):
        return False
    if heard_s and max(abs(heard_s[0] - aggression.begun_s), abs(heard_s[-1] - aggression.ended_s)) > EXACT:
        return False
    work = [amount for amount in aggression.work if amount is not None]
    return all(earlier <= later for column in (heard_s, steps, work) for earlier, later in pairwise(column))


def _data(use: DataUse, job: Job, _: dict[Any, Any]) -> Iterator[str]:
    if (planned := job.dataset) is None:
        yield "it read a data set, and the job has none"
        return
    for name in ("kind", "sha256", "listing_sha256", "images", "size_bytes"):
        used, wanted = getattr(use, name), getattr(planned, name)
        # Older suites did not record the number and kind of images.
        if used != wanted and (used or name in ("sha256", "listing_sha256")):
            yield f"the data set has {name} {used}, and that of the job {wanted}"
    share = use.page_cache_share
    low, high = (0.0, MOST_COLD) if job.page_cache == "cold" else (LEAST_WARM, math.inf)
    if share is not None and not low <= share <= high:
        yield f"the page cache held {share:.1%} of the data, and was to be {job.page_cache}"
    trained, left_over = 0, 0
    if sizes := job.sizes:
        trained = sizes.batch * (sizes.steps + sizes.warmup_steps)
        # An epoch reads each file at most once, but those left over; of a part of one, each image may be the largest.
        left_over = planned.images % (sizes.batch * job.devices.devices)
    if use.images_read < trained:
        yield f"{use.images_read} images were read, and {trained} trained"
    if use.bytes_read > planned.size_bytes * math.ceil(use.images_read / max(1, planned.images - left_over)):
        yield f"{use.bytes_read} bytes were read, and {use.images_read} images hold less"


def _samples(metrics: dict[str, tuple[float, list[float]]], _: Job, __: dict[Any, Any]) -> Iterator[str]:
    for name, (value, samples) in metrics.items():
        if not min(samples) * (1 - _NEAR) <= value <= max(samples) * (1 + _NEAR):
            yield f"{name} is {value:.6g}, and its samples are {json.dumps([min(samples), max(samples)])}"
