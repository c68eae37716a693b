"""The parts that few records have, held against the job: ranks, aggressors, data, samples of metrics."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from analysis.audit.findings import AGAIN, Finding, Kind
from analysis.audit.limits import COMPUTES_S
from analysis.audit.sums import CLOCKS_S, CLOCKS_SHARE, EXACT, GAP_S, GAP_SHARE
from analysis.load.records import Text
from suite.job.datasets import LEAST_WARM, MOST_COLD
from suite.job.job import Job
from suite.records.record import Aggression, AggressorInstance, Alternation, Burst, DataUse, Rank

RANKS = Kind("ranks", "refused", AGAIN)
TRAFFIC = Kind("traffic", "named", "see the ranks' byte counts; a message may have been under way at the end")
AGGRESSORS = Kind("aggressors", "refused", AGAIN)
DATA = Kind("data", "refused", AGAIN)
SAMPLES = Kind("samples", "refused", AGAIN)
TURNS = Kind("turns", "refused", AGAIN)
_NEAR = 0.01
TICK_S = 0.01
"""By how much a burst may be longer than its turn: a coarse clock ticks every 10 ms."""
BESIDE_SHARE, BESIDE_S = 0.5, 2.5
"""The most of a turn in which no step is taken: 1 s of rest, and lines of an emulated guest that are 1.2 s late."""
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
        ("alternation", TURNS, _turns),
        ("alternation", TURNS, _turn_limits),
        ("alternation", TURNS, _turn_sums),
    )
    for column, kind, check in checks:
        for row in trials[trials[column].notna()].to_dict("records"):
            for problem in _problems(check, row[column], jobs[row["job"]], row):
                yield kind.at(row["path"], problem)


def _problems(check: Check, found: Any, job: Job, row: dict[Any, Any]) -> Iterator[str]:  # noqa: ANN401
    try:
        yield from check(found, job, row)
    except Exception as error:  # noqa: BLE001 (one record of a stranger must not end what judges thousands)
        yield f"it cannot be checked ({type(error).__name__}: {error})"


def _ranks(ranks: Sequence[Rank], job: Job, row: dict[Any, Any]) -> Iterator[str]:
    numbers = [one.rank for one in ranks]
    roles = list(job.distributed.roles) if job.distributed else []
    if numbers != list(range(len(ranks))) or [one.role for one in ranks] != roles:
        yield f"its ranks are {', '.join(f'{one.rank} {one.role}' for one in ranks)}, and not those of the job"
        return
    yield from (f"rank {one.rank} has links to other ranks than all others" for one in ranks if _unlinked(one, numbers))
    if not (workers := [one for one in ranks if one.role == "worker"]):
        return
    total = sum(one.throughput_per_s or 0.0 for one in workers)
    if not math.isclose(total, row["throughput_per_s"], rel_tol=EXACT):
        yield f"{row['throughput_per_s']:.6g} {job.unit}/s, and its workers make {total:.6g}"
    for one in workers:
        span_s = one.measured_s or 0.0
        made = job.sizes.batch * job.sizes.steps / span_s if job.sizes and span_s else 0.0
        if not math.isclose(made, one.throughput_per_s or 0.0, rel_tol=EXACT):
            yield f"rank {one.rank} has {one.throughput_per_s or 0:.6g} {job.unit}/s, and its steps make {made:.6g}"
        if None in (one.data_s, one.compute_s, one.communicate_s):
            yield f"rank {one.rank} does not say how long it waited, computed and communicated"
        parts_s = (one.data_s or 0.0) + (one.compute_s or 0.0) + (one.communicate_s or 0.0)
        if not -EXACT * span_s <= span_s - parts_s <= GAP_SHARE * span_s + GAP_S:
            yield f"rank {one.rank} has phases of {parts_s:.6g} s, and measured {span_s:.6g} s"
    # The steps of the record are those of the first worker.
    if not math.isclose(workers[0].data_s or 0.0, row["waited_s"], rel_tol=EXACT, abs_tol=EXACT):
        yield f"its first worker waited {workers[0].data_s or 0:.6g} s for data, its steps {row['waited_s']:.6g} s"


def _unlinked(one: Rank, numbers: Sequence[int]) -> bool:
    found = sorted(link.rank for link in one.links)
    return bool(found) and found != [number for number in numbers if number != one.rank]


def _traffic(ranks: Sequence[Rank], job: Job, row: dict[Any, Any]) -> Iterator[str]:
    del job, row
    counts = [(one.sent_bytes, one.received_bytes) for one in ranks]
    sent, received = (sum(count or 0 for count in side) for side in zip(*counts, strict=True))
    if all(None not in each for each in counts) and abs(sent - received) > _NEAR * max(sent, received):
        yield f"its ranks sent {sent} bytes and received {received}"


def _aggressors(aggressors: Sequence[AggressorInstance], job: Job, row: dict[Any, Any]) -> Iterator[str]:
    copies = job.sharing.copies if job.sharing else 0
    if len(aggressors) != copies:
        yield f"{len(aggressors)} instances beside the victim, and the job has {copies}"
    at_work = [one.aggression for one in aggressors if one.aggression]
    alone = not isinstance(row["aggressor"], str)
    if len(at_work) != (0 if alone else len(aggressors)):
        planned = "the victim is alone" if alone else f"the trial has {row['aggressor']} beside it"
        yield f"{len(at_work)} of {len(aggressors)} aggressors were at work, and {planned}"
    for one in at_work:
        if one.begun_s >= 0 or one.ended_s < row["elapsed_s"]:
            yield f"an aggressor was at work from {one.begun_s:.3g} s to {one.ended_s:.6g} s, not all the time"
        if not _grows(one):
            yield "what an aggressor reported does not only grow, from its begin to its end"


def _grows(one: Aggression) -> bool:
    work = [done for done in one.work if done is not None]
    growing = all(first <= later for column in (one.heard_s, one.steps, work) for first, later in pairwise(column))
    lengths = {len(one.heard_s), len(one.steps), len(one.work)}
    ends = (one.heard_s[0], one.heard_s[-1]) if one.heard_s else (one.begun_s, one.ended_s)
    return growing and len(lengths) == 1 and abs(ends[0] - one.begun_s) <= EXACT and abs(ends[1] - one.ended_s) <= EXACT


def _data(use: DataUse, job: Job, row: dict[Any, Any]) -> Iterator[str]:
    del row
    if (planned := job.dataset) is None:
        yield "it read a data set, and the job has none"
        return
    for name in ("kind", "sha256", "listing_sha256", "images", "size_bytes"):
        own, its = getattr(use, name), getattr(planned, name)
        # Older suites have not said how many images and of which kind.
        if own != its and (own or name in ("sha256", "listing_sha256")):
            yield f"the data set has {name} {own}, and that of the job {its}"
    share = use.page_cache_share
    if share is not None and (share > MOST_COLD if job.page_cache == "cold" else share < LEAST_WARM):
        yield f"the page cache held {share:.1%} of the data, and was to be {job.page_cache}"
    trained = (job.sizes.batch * (job.sizes.steps + job.sizes.warmup_steps)) if job.sizes else 0
    if use.images_read < trained:
        yield f"{use.images_read} images were read, and {trained} trained"
    # An epoch reads each file at most once, but those left over; of a part of one, each image may be the largest.
    left_over = planned.images % (job.sizes.batch * job.devices.devices) if job.sizes else 0
    if use.bytes_read > planned.size_bytes * math.ceil(use.images_read / max(1, planned.images - left_over)):
        yield f"{use.bytes_read} bytes were read, and {use.images_read} images hold less"


def _samples(metrics: dict[str, tuple[float, list[float]]], job: Job, row: dict[Any, Any]) -> Iterator[str]:
    del job, row
    for name, (value, samples) in metrics.items():
        if not min(samples) * (1 - _NEAR) <= value <= max(samples) * (1 + _NEAR):
            yield f"{name} is {value:.6g}, and its samples are {json.dumps([min(samples), max(samples)])}"


def _turns(taken: Alternation, job: Job, row: dict[Any, Any]) -> Iterator[str]:
    del row
    if (planned := job.turns) is None:
        yield "it took turns, and its job has none"
        return
    bursts = taken.bursts
    if len(bursts) != planned.rounds or any(one.round != number for number, one in enumerate(bursts)):
        yield f"its {len(bursts)} turns are not one of each of the job's {planned.rounds} rounds"
    if any(one.steps != planned.burst_steps for one in bursts):
        yield f"its bursts have {sorted({one.steps for one in bursts})} steps, and the job's {planned.burst_steps}"
    if any(one.position >= taken.instances for one in bursts):
        yield f"it had a turn after those of all {taken.instances} instances"
    for one in bursts:
        if problem := _mistimed(one):
            yield f"its burst {one.round} took {one.span_s:.6g} s, {problem}"
            return


def _turn_limits(taken: Alternation, job: Job, row: dict[Any, Any]) -> Iterator[str]:
    del job
    bursts = taken.bursts
    for name, parts_s in (("last turn ended after", bursts[-1].ended_s), ("timeline has", row["timeline_s"])):
        if parts_s > taken.block_s * (1 + CLOCKS_SHARE) + CLOCKS_S:
            yield f"its {name} {parts_s:.6g} s, and its block took {taken.block_s:.6g} s"
    if any((one.waiting_cpu_s is None) != (one.cpu_s is None) for one in bursts):
        yield "its CPU time was counted in some of its turns and not between them"
    for name, cpus in (("own_cpu_s", row["cpus"]), ("cpu_s", row["host_cpus"])):
        for one in bursts:
            used_s = getattr(one, name)
            if used_s is not None and not _possible(used_s, one, cpus):
                yield f"its burst {one.round} took {one.span_s:.6g} s and {used_s:.6g} CPU s ({name})"


def _turn_sums(taken: Alternation, job: Job, row: dict[Any, Any]) -> Iterator[str]:
    if job.turns is None:
        return
    bursts = taken.bursts
    # A turn of a distributed job is as long as that of its slowest worker; the record has the first one's.
    if job.distributed and row["measured_s"] > math.fsum(one.span_s for one in bursts) * (1 + EXACT):
        yield f"its first worker measured {row['measured_s']:.6g} s, longer than all its bursts"
    sums: dict[str, list[float | None]] = {
        **({} if job.distributed else {"measured_s": [one.span_s for one in bursts]}),
        "serving_cpu_s": [one.cpu_s for one in bursts],
        "worker_cpu_s": [one.own_cpu_s for one in bursts],
    }
    for name, parts in sums.items():
        total = None if None in parts else math.fsum(filter(None, parts))
        known = None if math.isnan(row[name]) else row[name]
        if (total is None) != (known is None) or (total and not math.isclose(total, known or 0.0, rel_tol=EXACT)):
            yield f"its bursts make {total} of {name}, and the record says {known}"


def _possible(used_s: float, burst: Burst, cpus: float) -> bool:
    """Return whether a burst can have used so much CPU time: some, and no more than its CPUs could give in its turn."""
    most_s = cpus * ((burst.ended_s - burst.begun_s) * (1 + CLOCKS_SHARE) + CLOCKS_S)
    return (used_s > 0 or burst.span_s <= COMPUTES_S) and not used_s > most_s


def _mistimed(burst: Burst) -> str | None:
    """Return what is wrong with the seconds of a burst, on the worker's clock, by those of its turn on the host's."""
    turn_s = burst.ended_s - burst.begun_s
    heard_s = turn_s if burst.heard_s is None else burst.heard_s
    if heard_s > turn_s * (1 + EXACT) + EXACT:
        return f"and its end was heard after {heard_s:.6g} s, later than that of its turn"
    if burst.span_s > heard_s * (1 + CLOCKS_SHARE) + TICK_S:
        return f"longer than its turn of {heard_s:.6g} s"
    beside_s = turn_s - burst.span_s
    return f"and {beside_s:.6g} s beside it" if beside_s > BESIDE_SHARE * turn_s + BESIDE_S else None
