"""Columns of numbers held against each other and against the jobs: sums, limits, and what must have been counted.

The bounds come from the sample runs; ``docs/method/audit.md`` states them with the largest deviations found there.
"""

from collections.abc import Callable, Iterator, Mapping

import pandas as pd

from analysis.audit.findings import Finding, Kind
from analysis.load.records import Facts, of_jobs
from suite.job.ablations import known_properties
from suite.job.envelope import MEMORY_NOT_LIMITED
from suite.job.job import Job
from suite.records.columns import CLOCKS_SHARE, TABLE, most_late_s
from suite.records.record import (
    EPOCH_METRICS,
    EXACT,
    GENERATING_METRICS,
    PREEMPTION_METRICS,
)
from suite.results.quality import QUALITY_METRICS
from suite.targets import VMS

GAP_SHARE = 0.02
GAP_S = 0.1
"""The time between steps: the share of the span, and the seconds."""
GAP_STEP_S = 0.3e-3
"""The seconds between two steps of a GPU, in which the host stores a step: those of the GPU may take as little."""
COPY_SHARE = 0.05
"""The share by which phases may exceed their steps if the copy is timed by the device's own clock."""
CLOCKS_S = 0.5
"""The seconds by which spans on the target's clock may exceed those on the host's, besides their share."""
CLOCKED_S = 2.5
"""The span on the host's clock from which every suite has recorded the ratio of both clocks."""
COUNTING_S = 2.0
"""The seconds that reading the counters around a job may take."""
TICK_S = 0.01
"""The tick of a coarse clock: the seconds by which a burst may be longer than its turn, and all-in below inside."""
COMPUTES_S = 0.1
"""The seconds of computing that show in every accounting, whose ticks may be 10 ms."""
LIMIT_SHARE = 0.02
MAPPED_BYTES = 1 << 30
"""Memory beyond the limit: the share by which groups and guests round, and what is mapped of files and counted for the
process that read them first, or belongs to the hypervisor and the engine."""

THROUGHPUT, STEPS, TIMELINE, INTERVAL = map(Kind, ("throughput", "steps", "timeline", "interval"))
CPU, MEMORY, OPENING, GENERATED = map(Kind, ("cpu-time", "memory", "opening", "generated"))
CLOCKS = Kind("clocks")
MISSING = Kind(
    "evidence", advice="the record was changed, or is of the first suite, which did not count this: run it again"
)
CONTRADICTS = Kind("outcome", advice="the record was changed: run the trial again")
GAP = Kind(
    "gap",
    "named",
    "see whether the host could not count it then, or the record was changed",
)
_CONDITIONS = [column.name for column in TABLE if column.path.startswith(("conditions.", "resources."))]
_BESIDE_OTHERS = "busiest"
"""Trials beside which nobody works have none."""
_COUNTED = [name for name in (*_CONDITIONS, "opening_s", "throughput_per_s") if name != _BESIDE_OTHERS]
"""The columns that the host and the worker count of every trial alike."""
_ARM = ("hostname", "scenario", "model", "design", "target", "ablation", "aggressor")


def sums(trials: pd.DataFrame) -> Iterator[Finding]:
    """Yield contradictions inside the records that are ok."""
    yield from _rates(trials)
    yield from _amounts(trials)
    yield from _step_times(trials)
    yield from _clocks(trials)
    yield from _spans(trials)


def _rates(trials: pd.DataFrame) -> Iterator[Finding]:
    alone = trials[trials["ranks"].isna()]
    span_s = alone["measured_s"].fillna(alone["steps_s"])
    expected_per_s = alone["global_batch"] * alone["steps"] / span_s
    # Without a timeline the span is the steps', which leave out what lies between them.
    bound = alone["measured_s"].isna() * GAP_SHARE + EXACT
    wrong = (alone["throughput_per_s"] - expected_per_s).abs() > bound * expected_per_s
    yield from _mismatches(
        THROUGHPUT,
        alone[wrong],
        "throughput_per_s",
        "per second",
        "its steps make",
        expected_per_s,
    )
    printed = trials["printed_per_s"]
    wrong = (trials["throughput_per_s"].fillna(0) - printed).abs() > EXACT * printed
    yield from _mismatches(
        THROUGHPUT,
        trials[wrong],
        "throughput_per_s",
        "per second",
        "it printed",
        printed,
    )


def _amounts(trials: pd.DataFrame) -> Iterator[Finding]:
    planned = trials["generate"].fillna(0)
    checks = (
        (STEPS, "counted_steps", "steps", "the job has", trials["steps"]),
        (STEPS, "recorded_batch", "units a step", "its ranks have", trials["global_batch"]),
        (GENERATED, "generated_images", "images", "its job generates", planned),
    )
    for kind, column, unit, other, expected in checks:
        recorded = trials[column]
        wrong = trials[recorded.notna() & (recorded != expected)]
        yield from _mismatches(kind, wrong, column, unit, other, expected)
    devices = of_jobs(trials, lambda job: job.devices.devices)
    wrong = trials[trials["devices"].fillna(1) != devices]
    yield from _mismatches(STEPS, wrong, "devices", "devices", "the job has", devices)
    idle = trials[trials["generating_s"].notna() & (planned == 0)]
    yield from _mismatches(GENERATED, idle, "generating_s", "s of generating", "images of its job are", planned)


def _step_times(trials: pd.DataFrame) -> Iterator[Finding]:
    steps = trials["steps_s"]
    phases = trials["phases_s"]
    copied = COPY_SHARE * trials["copied_s"].notna()
    wrong = (phases < steps * (1 - EXACT)) | (phases > steps * (1 + EXACT + copied))
    yield from _mismatches(
        STEPS,
        trials[wrong],
        "phases_s",
        "s of phases",
        "its steps take",
        steps,
    )
    computed = trials["computed_s"]
    wrong = trials["parts_s"] > computed * (1 + EXACT) + copied * steps
    yield from _mismatches(
        STEPS,
        trials[wrong],
        "parts_s",
        "s of named phases",
        "computing takes",
        computed,
    )
    # A workload that measures something after each step lengthens the span at will.
    beside = {*EPOCH_METRICS, *GENERATING_METRICS, *PREEMPTION_METRICS, *QUALITY_METRICS}
    measures = trials["metrics"].map(lambda own: isinstance(own, dict) and not set(own) <= beside)
    measured = trials["measured_s"]
    gap = measured - steps
    on_gpu = of_jobs(trials, lambda job: job.devices.device == "cuda").astype(bool)
    between_s = (GAP_STEP_S * trials["steps"]).where(on_gpu, 0)
    most = GAP_SHARE * measured + GAP_S + between_s
    wrong = (gap < -EXACT * steps) | ((gap > most) & ~measures.astype(bool))
    yield from _mismatches(
        STEPS,
        trials[wrong],
        "steps_s",
        "s of steps",
        "it measured",
        measured,
    )


def _clocks(trials: pd.DataFrame) -> Iterator[Finding]:
    # The clocks of a job that takes turns are compared over its waiting, too.
    clocked = (trials["clock_span_s"] * trials["clock_ratio"]).where(trials["alternation"].isna())
    spanned = trials["measured_s"] + trials["between_s"].fillna(0)  # checkpoints are written between the epochs
    wrong = (clocked - spanned).abs() > EXACT * spanned
    unit = "s on the host, times its ratio,"
    yield from _mismatches(CLOCKS, trials[wrong], "clock_span_s", unit, "measured", spanned)


def _spans(trials: pd.DataFrame) -> Iterator[Finding]:
    elapsed = trials["elapsed_s"]
    late_s = most_late_s(trials["measured_s"], trials["launch_s"])
    wrong = (trials["timeline_s"] - elapsed).abs() > late_s
    yield from _mismatches(
        TIMELINE,
        trials[wrong],
        "timeline_s",
        "s in its timeline",
        "elapsed are",
        elapsed,
    )
    interval = trials["interval_s"]
    # In turns the counters cover those of the whole block, and no start: ``audit.turns`` checks them.
    alone = trials["alternation"].isna()
    shorter = interval < elapsed * (1 - EXACT)
    longer = interval > elapsed * (1 + CLOCKS_SHARE) + COUNTING_S
    wrong = alone & (shorter | longer)
    yield from _mismatches(
        INTERVAL,
        trials[wrong],
        "interval_s",
        "s between its counters",
        "elapsed are",
        elapsed,
    )
    parts_s = trials["opening_s"]
    open_s = trials["open_s"].fillna(0)
    wrong = (parts_s - open_s).abs() > EXACT * parts_s + EXACT
    yield from _mismatches(
        OPENING,
        trials[wrong],
        "opening_s",
        "s of parts",
        "the opening took",
        open_s,
    )


def limits(trials: pd.DataFrame) -> Iterator[Finding]:
    """Yield the records that are ok and used more than there was, or that computed without CPU time."""
    instances = of_jobs(trials, lambda job: float(len(job.distributed.roles)) if job.distributed else 1.0)
    machines = of_jobs(trials, lambda job: max(1.0, len(job.distributed.machines)) if job.distributed else 1.0)
    most_s = trials["elapsed_s"].fillna(trials["block_s"]) * (1 + CLOCKS_SHARE) + COUNTING_S
    # What serves a target (hypervisor, shims, clients) is pinned to none of its CPUs.
    for column, cpus in (("worker_cpu_s", trials["cpus"] * machines), ("serving_cpu_s", trials["host_cpus"])):
        given_s = cpus * most_s
        over = trials[trials[column] > given_s]
        yield from _mismatches(
            CPU,
            over,
            column,
            f"s of {column}",
            "its CPUs could give",
            given_s,
        )
        idle = trials[(trials[column] == 0) & (trials["measured_s"] > COMPUTES_S)]
        yield from _mismatches(
            CPU,
            idle,
            column,
            f"s of {column}",
            "the seconds measured are",
            trials["measured_s"],
        )
    properties = {name: known_properties(name) for name in trials["ablation"].dropna().unique()}
    limit = trials["memory_bytes"] * machines
    unlimited = [name for name, switched in properties.items() if not (switched and switched.memory_limited)]
    limited = ~trials["ablation"].isin(unlimited) & ~trials["substitutes"].str.contains(MEMORY_NOT_LIMITED)
    for column in ("worker_peak_memory_bytes", "serving_peak_memory_bytes"):
        over = trials[limited & (trials[column] > limit * (1 + LIMIT_SHARE) + MAPPED_BYTES * instances)]
        yield from _mismatches(MEMORY, over, column, f"of {column}", "its limit is", limit)


def all_in(trials: pd.DataFrame) -> Iterator[Finding]:
    """Yield the records that are ok and took less CPU time as the host counts it than inside, by the same kernel."""
    # Other kernels count by other clocks, which run on while they wait for a CPU.
    other = of_jobs(trials, lambda job: job.layers.oci_runtime or job.layers.runtime_class or job.machines)
    switched = {name: known_properties(name) for name in trials["ablation"].dropna().unique()}
    # Another engine may have a kernel of its own, too, as gVisor has.
    replacing = []
    for name, properties in switched.items():
        if not properties or properties.oci_runtime or properties.engine:
            replacing.append(name)
    same = ~(trials["target"].isin(VMS) | other.astype(bool) | trials["ablation"].isin(replacing))
    inside = trials["worker_cpu_s"]
    below = trials[same & (trials["serving_cpu_s"] < inside * (1 - LIMIT_SHARE) - TICK_S)]
    yield from _mismatches(CPU, below, "serving_cpu_s", "CPU s all-in", "inside are", inside)


def _mismatches(
    kind: Kind, wrong: pd.DataFrame, column: str, unit: str, other: str, expected: "pd.Series[float]"
) -> Iterator[Finding]:
    for path, value, wanted in zip(wrong["path"], wrong[column], expected[wrong.index], strict=True):
        yield kind.at(path, f"{value:.6g} {unit}, and {other} {wanted:.6g}")


def _trains(job: Job) -> bool:
    return bool(job.sizes and not job.serving)


def _counted_here(job: Job) -> bool:
    """Return whether this host counts what a job takes; it cannot count for other machines and clusters."""
    return _trains(job) and not (job.of_pods or job.machines or (job.distributed and job.distributed.machines))


_EVIDENCE: Mapping[str, tuple[str, Callable[[Job], object]]] = {
    "throughput_per_s": ("throughput", _trains),
    "elapsed_s": ("elapsed time", lambda job: job.has_elapsed_time),
    "counted_steps": ("steps", _trains),
    "steps_s": ("times of steps", lambda job: _trains(job) and not job.devices.sync),
    "whole_timeline": ("whole timeline", _trains),
    "interval_s": ("conditions of the host", _counted_here),
    "worker_cpu_s": ("CPU time of its worker", _counted_here),
    "alternation": ("turns", lambda job: job.turns),
    "ranks": ("ranks", lambda job: job.distributed and job.distributed.strategy),
    "aggressors": ("instances beside the victim", lambda job: job.sharing),
    "data_use": ("account of its data set", lambda job: _trains(job) and job.dataset),
    "generated_images": ("generated images", lambda job: job.generate),
    "epochs": ("epochs", lambda job: job.epochs),
    "models": ("kept models", lambda job: job.keep_model),
    "generating_s": ("time of generating", lambda job: job.generate),
}
"""What a finished job leaves, by the column that is empty without it, and the jobs that leave it."""


def missing(trials: pd.DataFrame) -> Iterator[Finding]:
    """Yield the records that are ok and lack what their jobs leave, which prove nothing, or that hold a failure."""
    for column, (words, leaves) in _EVIDENCE.items():
        due = trials["job"].map({shared: bool(leaves(shared.job)) for shared in trials["job"].unique()}).astype(bool)
        for path in trials.loc[due & trials[column].isna(), "path"]:
            yield MISSING.at(path, f"it is ok and has no {words}")
    measured_s = trials["measured_s"]
    host_s = (trials["elapsed_s"] - (trials["timeline_s"] - measured_s)).fillna(measured_s)
    unclocked = trials["clock_ratio"].isna() & (host_s > CLOCKED_S)
    yield from _mismatches(
        MISSING,
        trials[unclocked],
        "measured_s",
        "s, no clock ratio",
        "on the host",
        host_s,
    )
    for path, failure in trials.loc[trials["failure"].notna(), ["path", "failure"]].itertuples(index=False):
        yield CONTRADICTS.at(path, f"it is ok and holds a failure: {failure}")


def gaps(trials: pd.DataFrame, runs: "pd.Series[str]") -> Iterator[Finding]:
    """Yield the finished trials that lack a count, or a fact, which others of the same target in their run have."""
    ok = trials[trials["ok"].astype(bool)]
    arms = ok.groupby(
        [runs[ok.index], *(ok[name] for name in _ARM)],
        dropna=False,
        observed=True,
    ).ngroup()
    counted = ok[_COUNTED].notna()
    lost = counted.groupby(arms).transform("any") & ~counted
    for column in lost.columns[lost.any()]:
        for path in ok.loc[lost[column], "path"]:
            yield GAP.at(path, f"its {column} is missing, which other trials of its target have")
    for path in ok.loc[ok["idle_w"].notna() & ok["energy_j"].isna(), "path"]:
        yield GAP.at(path, "its energy is missing, of whose counter it has the idle power")
    several = ok["facts"].cat.codes.groupby(arms).transform("nunique") > 1
    for _, rows in ok.loc[several, ["path", "facts"]].groupby(arms[several]):
        names = {facts: _recorded(facts) for facts in rows["facts"].unique()}
        every = set[str]().union(*names.values())
        for path, facts in rows.itertuples(index=False):
            lacking = sorted(every - names[facts])
            if lacking:
                yield GAP.at(path, f"it does not record {', '.join(lacking)}, which other trials of its target do")


def _recorded(facts: Facts) -> set[str]:
    """Return the facts that are known. A filter of system calls is one only if none was expected."""
    return {name for name, fact in facts.by_path.items() if fact is not None and not name.endswith("seccomp")}
