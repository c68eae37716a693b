"""Disturbances: typed warnings with advice, made of the conditions that the records hold.

A record without conditions says nothing and gives no warning: what was not measured is absent, never fine.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd

from analysis.compare.pairing import JOB, ROW, job_of
from analysis.compare.results import ComparedJob, Disturbed
from analysis.warnings.types import AnalysisWarning, Touched
from suite.targets import BASELINE

_PLACE = [*JOB, "target"]
_TURNS_TOGETHER = ["scenario", "model", "design", "run_id", "block"]
LINE, REST = (0.002, 0.002), (0.025, 0.005)
"""The seconds, plus the share of a turn, by which an honest target may differ from bare metal: up to the line after its
last step, and up to the rest of its threads. ``docs/evidence/alternating.md`` has the measurements."""


@dataclass(frozen=True)
class Disturbance:
    """Something that disturbs trials, and what to do about it."""

    kind: str
    finding: str
    advice: str
    amount: Callable[[pd.DataFrame], "pd.Series[float]"]
    """Returns the amount in each trial."""
    bound: float
    """The amount above which a trial is worth a warning."""
    words: Callable[[float, str], str]
    """Returns an amount in words, after ``up to`` or ``over``."""
    spoils: float | None = None
    """The amount above which a trial decides nothing; None where the trial still measures what it says."""


def _share(text: str) -> Callable[[float, str], str]:
    return lambda amount, how: f"{how} {amount * 100:.2g} % {text}"


def unread(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the share of a cold trial's data that no counter saw coming from the disk; missing if none counted."""
    read = trials[["worker_disk_read_bytes", "serving_disk_read_bytes"]].max(axis=1)
    share: pd.Series[float] = 1 - read / trials["data_bytes"].where(trials["data_bytes"] > 0)
    return share.where(trials["page_cache"] == "cold")


def clocks_apart(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return how far the clocks of the target and of the host went apart: over the whole job, or inside its turns.

    A clock that is slow while the target computes, and then catches up, is right over the whole job. It shows by what
    a turn takes beside its steps, which is the same on bare metal but for the way of a line and the end of spinning.
    """
    blocks = [trials[name] for name in _TURNS_TOGETHER]
    found = [(trials["clock_ratio"] - 1).abs()]
    for column, (honest_s, honest_share) in (("late_s", LINE), ("beside_s", REST)):
        base_s = trials[column].where(trials["target"] == BASELINE).groupby(blocks, observed=True).transform("mean")
        more_s = (trials[column] - base_s).abs() - honest_s
        found.append((more_s / trials["turn_s"] - honest_share).clip(lower=0))
    return pd.concat(found, axis=1).max(axis=1)


DISTURBANCES = (
    Disturbance(
        "steal-time",
        "the hypervisor below this host took CPU time away",
        "this host is a virtual machine with neighbours: take a dedicated one, or more blocks",
        *(lambda t: t["steal_s"] / (t["interval_s"] * t["cpus"]), 0.005, _share("of the CPU time"), 0.05),
    ),
    Disturbance(
        "other-load",
        "other processes used the CPUs of the trial",
        "stop what else runs on this host, or give the trials CPUs of their own with --cpus",
        *(lambda t: t["other_cpu_s"] / (t["interval_s"] * t["cpus"]), 0.02, _share("of the CPU time"), 0.1),
    ),
    Disturbance(
        "throttled",
        "a CPU quota held the target back",
        "lift the quota (cpu.max or CPUQuota) of the control group in which bench runs",
        *(lambda t: t["throttled_s"] / t["interval_s"], 0.001, _share("of the time"), 0.05),
    ),
    Disturbance(
        "thermal-throttling",
        "the CPU lowered its frequency because of heat",
        "cool the machine, or limit its frequency so that every trial has the same",
        *(lambda t: t["thermal_throttles"], 0, lambda n, how: f"{how} {n:.0f} times", 0),
    ),
    Disturbance(
        "swapping",
        "memory was swapped",
        "lower --memory or the batch, or switch swap off",
        *(lambda t: t["swapped_bytes"], 0, lambda n, how: f"{how} {n / (1 << 20):.3g} MiB", 64 << 20),
    ),
    Disturbance(
        "waiting-computes",
        "the target took CPU time while other jobs had their turns",
        "see what of it runs while its job waits (timer ticks of a guest, a daemon), or use --design sequential",
        *(lambda t: t["waiting_share"], 0.005, _share("of what its own turns took"), 0.005),
    ),
    Disturbance(
        "clock-drift",
        "the target's clock and the host's went at different rates",
        "trust elapsed times, which the host's clock takes; step times of this target, and its turns, are off by this",
        *(clocks_apart, 0.001, _share("apart"), 0.01),
    ),
    Disturbance(
        "governor",
        "the frequency governor did not hold the CPU at its highest frequency",
        "cpupower frequency-set -g performance",
        *(lambda t: t["governor"].notna() & (t["governor"] != "performance"), 0, lambda *_: "set so"),
    ),
    Disturbance(
        "smt-siblings",
        "hardware threads of the same core were inside and outside of the CPUs of the trial",
        "choose whole cores with --cpus (see lscpu -e), or switch SMT off",
        *(lambda t: t["siblings_shared"].eq(True), 0, lambda *_: "see lscpu -e"),
    ),
    Disturbance(
        "numa-crossing",
        "the CPUs of the trial lay on several NUMA nodes",
        "choose CPUs of one node with --cpus (see lscpu)",
        *(lambda t: t["numa_nodes"] - 1, 0, lambda n, how: f"{how} {n + 1:.0f} nodes"),
    ),
    Disturbance(
        "cold-not-read",
        "the page cache was to be cold, and less was read from the disk than the images hold",
        "something kept the files in memory: a host's cache below this machine, or another reader; do not call it cold",
        *(unread, 0, _share("of the bytes missing")),
    ),
    Disturbance(
        "damaged-images",
        "images could not be decoded, and others took their places",
        "see damaged_files in the records, and bench data verify",
        *(lambda t: t["damaged"], 0, lambda n, how: f"{how} {n:.0f} in a trial"),
    ),
)


def disturbances(ok: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield one warning per job, target and disturbance, models together, from ok trials that have ``variant``."""
    for kind in DISTURBANCES:
        amounts = kind.amount(ok).astype(float)
        for _, disturbed in ok[amounts > kind.bound].groupby(_PLACE):
            first = disturbed.iloc[0]
            of = int((ok[_PLACE] == first[_PLACE]).all(axis=1).sum())
            worst = kind.words(float(amounts[disturbed.index].max()), "up to")
            where = f"{first['target']} in {len(disturbed)} of {of} trials ({worst})"
            touches = (Touched(job_of(first), str(first["target"])),)
            yield AnalysisWarning(kind.kind, f"{job_of(first)}: {kind.finding}", kind.advice, where, touches)
    yield from _mitigations(ok)


def disturbed(ok: pd.DataFrame) -> dict[tuple[ComparedJob, str, str], tuple[Disturbed, ...]]:
    """Return what has disturbed the trials of each job, model and target, as far as it can spoil a trial."""
    counts = ok.groupby(ROW).size().to_dict()
    found: dict[tuple[ComparedJob, str, str], list[Disturbed]] = defaultdict(list)
    for kind in DISTURBANCES:
        if kind.spoils is None:
            continue
        amounts = kind.amount(ok).astype(float)
        for key, rows in ok[amounts > kind.bound].groupby(ROW):
            *job, model, target = (str(part) for part in key)
            spoiled = int((amounts[rows.index] > kind.spoils).sum())
            one = Disturbed(kind.kind, len(rows), counts[key], spoiled, kind.words(kind.spoils, "over"))
            found[ComparedJob(*job), model, target].append(one)
    return {key: tuple(each) for key, each in found.items()}


def _mitigations(ok: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield the targets whose kernel protects against other CPU flaws: part of the difference is that."""
    known = ok["mitigations"].notna() & ok["host_mitigations"].notna() & (ok["target"] != BASELINE)
    differing = ok[known & (ok["mitigations"] != ok["host_mitigations"])]
    for _, rows in differing.groupby(_PLACE):
        first = rows.iloc[0]
        sides = set(str(first["mitigations"]).splitlines()) ^ set(str(first["host_mitigations"]).splitlines())
        names = ", ".join(sorted({line.split(":")[0] for line in sides}))
        yield AnalysisWarning(
            "mitigations-differ",
            f"{job_of(first)}: the kernel inside has other CPU mitigations than the host ({names})",
            "part of the difference may come from this; the records hold both sides (environment.*.mitigations)",
            str(first["target"]),
            (Touched(job_of(first), str(first["target"])),),
        )
