"""Trials that take turns: each held against its job, and those of a block against each other."""

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.audit.findings import Finding, Kind
from analysis.audit.numbers import CLOCKS_S, COMPUTES_S, COUNTING_S, TICK_S
from suite.job.job import Alternating, Job, TimeSlices
from suite.records.columns import CLOCKS_SHARE
from suite.records.record import EXACT, Alternation, Burst

TURNS = Kind("turns")
BESIDE_SHARE = 0.5
BESIDE_S = 2.5
"""The most of a turn in which no step is taken: 1 s of rest, and lines of an emulated guest that are 1.2 s late."""


def turns(alternation: Alternation, job: Job, _: dict[Any, Any]) -> Iterator[str]:
    """Yield how the turns of a trial differ from those of its job, and the first burst that does not fit its turn."""
    planned = job.turns
    if planned is None:
        yield "it took turns, and its job has none"
        return
    bursts = alternation.bursts
    if isinstance(planned, TimeSlices):
        yield from _sliced(bursts, planned)
    else:
        yield from _stepped(bursts, planned)
    if any(burst.position >= alternation.instances for burst in bursts):
        yield f"it had a turn after those of all {alternation.instances} instances"
    for burst in bursts:
        problem = _mistimed(burst)
        if problem:
            yield f"its burst {burst.round} took {burst.span_s:.6g} s, {problem}"
            break


def _stepped(bursts: Sequence[Burst], planned: Alternating) -> Iterator[str]:
    rounds = [burst.round for burst in bursts]
    if rounds != list(range(planned.rounds)):
        yield f"its {len(bursts)} turns are not one of each of the job's {planned.rounds} rounds"
    steps = {burst.steps for burst in bursts}
    if steps != {planned.burst_steps}:
        yield f"its bursts have {sorted(steps)} steps, and the job's {planned.burst_steps}"


def _sliced(bursts: Sequence[Burst], planned: TimeSlices) -> Iterator[str]:
    rounds = [burst.round for burst in bursts]
    if rounds != list(range(len(rounds))):
        yield f"its {len(bursts)} turns are not one of each round"
    if any(burst.steps for burst in bursts):
        yield "its slices of time have steps"
    # The last one ends with the command.
    shorter = [burst for burst in bursts[:-1] if burst.span_s < planned.slice_s * (1 - EXACT)]
    if shorter:
        yield f"its burst {shorter[0].round} took {shorter[0].span_s:.6g} s, and a slice is {planned.slice_s:g} s"


def _mistimed(burst: Burst) -> str | None:
    """Return what is wrong with the seconds of a burst, on the worker's clock, by those of its turn on the host's."""
    turn_s = burst.ended_s - burst.begun_s
    if burst.heard_s > turn_s * (1 + EXACT) + EXACT:
        return f"and its end was reported after {burst.heard_s:.6g} s, later than that of its turn"
    if burst.span_s > burst.heard_s * (1 + CLOCKS_SHARE) + TICK_S:
        return f"longer than its turn of {burst.heard_s:.6g} s"
    idle_s = turn_s - burst.span_s
    if idle_s > BESIDE_SHARE * turn_s + BESIDE_S:
        return f"with {idle_s:.6g} s of its turn beside it"
    return None


def turn_limits(alternation: Alternation, _: Job, row: dict[Any, Any]) -> Iterator[str]:
    """Yield what does not fit into the block, and bursts with other CPU time than their CPUs could give."""
    bursts = alternation.bursts
    block_s = alternation.block_s
    parts_s = {
        "last turn ended after": bursts[-1].ended_s,
        "timeline has": row["timeline_s"],
    }
    for name, part_s in parts_s.items():
        if part_s > block_s * (1 + CLOCKS_SHARE) + CLOCKS_S:
            yield f"its {name} {part_s:.6g} s, and its block took {block_s:.6g} s"
    if any((burst.waiting_cpu_s is None) != (burst.cpu_s is None) for burst in bursts):
        yield "its CPU time was counted in some of its turns and not between them"
    cpus_by_name = {"own_cpu_s": row["cpus"], "cpu_s": row["host_cpus"]}
    for name, cpus in cpus_by_name.items():
        for burst in bursts:
            used_s = getattr(burst, name)
            if used_s is None:
                continue
            turn_s = burst.ended_s - burst.begun_s
            most_s = cpus * (turn_s * (1 + CLOCKS_SHARE) + CLOCKS_S)
            # What a command starts may leave no trace of its CPU time in the target, and does on the host.
            is_counted = burst.steps > 0 or name == "cpu_s"
            if used_s > most_s or (is_counted and _is_idle(burst, used_s)):
                yield f"its burst {burst.round} took {burst.span_s:.6g} s and {used_s:.6g} CPU s ({name})"


def _is_idle(burst: Burst, used_s: float) -> bool:
    return not used_s > 0 and not burst.span_s <= COMPUTES_S


def turn_sums(alternation: Alternation, job: Job, row: dict[Any, Any]) -> Iterator[str]:
    """Yield the numbers of a trial that are not the sums of those of its bursts."""
    if job.turns is None:
        return
    columns = {"serving_cpu_s": "cpu_s"}
    # A command is counted by itself at its end, and in its turns together with its worker.
    if isinstance(job.turns, Alternating):
        columns["worker_cpu_s"] = "own_cpu_s"
    # A turn of a distributed job is as long as that of its slowest worker; the record has the first one's.
    if not job.distributed:
        columns = {"measured_s": "span_s", **columns}
    else:
        bursts_s = math.fsum(burst.span_s for burst in alternation.bursts)
        if row["measured_s"] > bursts_s * (1 + EXACT):
            yield f"its first worker measured {row['measured_s']:.6g} s, longer than all its bursts"
    for name, column in columns.items():
        spans = [getattr(burst, column) for burst in alternation.bursts]
        total = None if None in spans else math.fsum(spans)
        recorded = None if math.isnan(row[name]) else row[name]
        if not _are_equal(total, recorded):
            yield f"its bursts make {total} of {name}, and the record has {recorded}"


def _are_equal(total: float | None, recorded: float | None) -> bool:
    """Return whether both are unknown, or as good as equal; a total of nothing is equal to any number."""
    if total is None or recorded is None:
        return total is recorded
    return not total or math.isclose(total, recorded, rel_tol=EXACT)


def turns_of_blocks(trials: pd.DataFrame, block: list[str]) -> Iterator[Finding]:
    """Yield the trials, with ``begin_s``, of a block that took no turns together, or that computed at the same time."""
    took_turns = trials["alternation"].notna()
    for (_, number, *_), rows in trials[took_turns].groupby(block, observed=True):
        apart_s = rows["begin_s"].max() - rows["begin_s"].min()
        if rows["block_s"].nunique() > 1 or apart_s > rows["block_s"].max():
            for path in rows["path"]:
                yield TURNS.at(path, f"the trials of block {number} did not take their turns together")
        else:
            yield from _turns_together(number, rows)


def _turns_together(number: object, rows: pd.DataFrame) -> Iterator[Finding]:
    """Yield the trials of one block whose turns are not those of its instances, or that computed at the same time."""
    bursts: list[Burst] = []
    spans = []
    for path, alternation in zip(rows["path"], rows["alternation"], strict=True):
        bursts += alternation.bursts
        spans += [(burst.begun_s, burst.ended_s, path) for burst in alternation.bursts]
    instances = {alternation.instances for alternation in rows["alternation"]}
    most_instances = max(instances)
    places = {(burst.round, burst.position) for burst in bursts}
    if len(instances) > 1 or len(rows) > most_instances or len(places) < len(bursts):
        for path in rows["path"]:
            yield TURNS.at(path, f"the turns of block {number} are not those of its {most_instances} instances")
    yield from _uncounted(rows)
    neighbours = itertools.pairwise(sorted(spans))
    for (_, ended_s, path), (begun_s, _, next_path) in neighbours:
        if begun_s < ended_s:
            trial = Path(next_path).stem
            yield TURNS.at(path, f"its turn ended {ended_s - begun_s:.3g} s after {trial} had begun one")


def _uncounted(rows: pd.DataFrame) -> Iterator[Finding]:
    """Yield the trials of one block whose counters were not read around all of its turns."""
    last_s = max(alternation.bursts[-1].ended_s for alternation in rows["alternation"])
    most_s = last_s * (1 + CLOCKS_SHARE) + COUNTING_S
    wrong = (rows["interval_s"] < last_s) | (rows["interval_s"] > most_s)
    for path, interval_s in rows.loc[wrong, ["path", "interval_s"]].itertuples(index=False):
        yield TURNS.at(path, f"its counters enclose {interval_s:.6g} s, and the last turn ended after {last_s:.6g}")
