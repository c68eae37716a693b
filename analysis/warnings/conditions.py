"""Disturbances: typed warnings with advice, made of the conditions that the records hold.

A record without conditions says nothing and gives no warning: what was not measured is absent, never fine.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import pandas as pd

from analysis.compare.pairing import JOB, job_of
from analysis.warnings.types import AnalysisWarning
from suite.targets import BASELINE


class OfTarget(AnalysisWarning):
    """A warning about one target. ``notices`` joins those of several targets that find the same."""

    what: str

    @property
    def finding(self) -> str:
        raise NotImplementedError

    @property
    def where(self) -> str:
        raise NotImplementedError

    @property
    def message(self) -> str:
        return f"{self.what}: {self.finding}: {self.where}"


def notices(warnings: Iterable[AnalysisWarning], jobs: Collection[object]) -> list[tuple[str, str]]:
    """Return messages and advice as a reader should see them: what several targets share is said once.

    A message does not name its job if ``jobs`` has only one.
    """
    told: dict[object, tuple[str, str]] = {}
    for found in warnings:
        key = (found.what, found.finding) if isinstance(found, OfTarget) else id(found)
        message = f"{told[key][0]}; {found.where}" if isinstance(found, OfTarget) and key in told else found.message
        told[key] = message, found.advice
    prefix = f"{next(iter(jobs))}: " if len(jobs) == 1 else ""
    return [(message.removeprefix(prefix), advice) for message, advice in told.values()]


@dataclass(frozen=True)
class Disturbance(OfTarget):
    """Trials of one target that something disturbed. The subclass says what, and what to do about it."""

    what: str
    target: str
    trials: int
    of: int
    worst: str

    @property
    def where(self) -> str:
        return f"{self.target} in {self.trials} of {self.of} trials ({self.worst})"


class StealTime(Disturbance):
    kind = "steal-time"
    finding = "the hypervisor below this host took CPU time away"
    advice = "this host is a virtual machine with neighbours: take a dedicated one, or more blocks"


class OtherLoad(Disturbance):
    kind = "other-load"
    finding = "other processes used the CPUs of the trial"
    advice = "stop what else runs on this host, or give the trials CPUs of their own with --cpus"


class Throttled(Disturbance):
    kind = "throttled"
    finding = "a CPU quota held the target back"
    advice = "lift the quota (cpu.max or CPUQuota) of the control group in which bench runs"


class ThermalThrottling(Disturbance):
    kind = "thermal-throttling"
    finding = "the CPU lowered its frequency because of heat"
    advice = "cool the machine, or limit its frequency so that every trial has the same"


class Swapping(Disturbance):
    kind = "swapping"
    finding = "memory was swapped"
    advice = "lower --memory or the batch, or switch swap off"


class ClockDrift(Disturbance):
    kind = "clock-drift"
    finding = "the target's clock and the host's went at different rates"
    advice = "trust elapsed times, which the host's clock takes; step times of this target are off by this"


class SlowGovernor(Disturbance):
    kind = "governor"
    finding = "the frequency governor did not hold the CPU at its highest frequency"
    advice = "cpupower frequency-set -g performance"


class SharedSiblings(Disturbance):
    kind = "smt-siblings"
    finding = "hardware threads of the same core were inside and outside of the CPUs of the trial"
    advice = "choose whole cores with --cpus (see lscpu -e), or switch SMT off"


class NumaCrossing(Disturbance):
    kind = "numa-crossing"
    finding = "the CPUs of the trial lay on several NUMA nodes"
    advice = "choose CPUs of one node with --cpus (see lscpu)"


@dataclass(frozen=True)
class MitigationsDiffer(OfTarget):
    """The kernel inside a target protects against other CPU flaws than the host's: part of the difference is that."""

    kind = "mitigations-differ"
    advice = "part of the difference may come from this; the records hold both sides (environment.*.mitigations)"
    what: str
    target: str
    names: tuple[str, ...]

    @property
    def finding(self) -> str:
        return f"the kernel inside has other CPU mitigations than the host ({', '.join(self.names)})"

    @property
    def where(self) -> str:
        return self.target


class NotRead(Disturbance):
    kind = "cold-not-read"
    finding = "the page cache was to be cold, and less was read from the disk than the images hold"
    advice = (
        "something kept the files in memory: a host's cache below this machine, or another reader; do not call it cold"
    )


class DamagedImages(Disturbance):
    kind = "damaged-images"
    finding = "images could not be decoded, and others took their places"
    advice = "see damaged_files in the records, and bench data verify"


def _share(text: str) -> Callable[[float], str]:
    return lambda amount: f"up to {amount * 100:.2g} % {text}"


def unread(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the share of a cold trial's data that no counter saw coming from the disk; missing if none counted."""
    read = trials[["worker_disk_read_bytes", "serving_disk_read_bytes"]].max(axis=1)
    share: pd.Series[float] = 1 - read / trials["data_bytes"].where(trials["data_bytes"] > 0)
    return share.where(trials["page_cache"] == "cold")


_GIVEN = "performance"
RULES: tuple[tuple[type[Disturbance], Callable[[pd.DataFrame], "pd.Series[float]"], float, Callable[[float], str]], ...]
RULES = (
    (StealTime, lambda t: t["steal_s"] / (t["interval_s"] * t["cpus"]), 0.005, _share("of the CPU time")),
    (OtherLoad, lambda t: t["other_cpu_s"] / (t["interval_s"] * t["cpus"]), 0.02, _share("of the CPU time")),
    (Throttled, lambda t: t["throttled_s"] / t["interval_s"], 0.001, _share("of the time")),
    (ThermalThrottling, lambda t: t["thermal_throttles"], 0, lambda n: f"up to {n:.0f} times"),
    (Swapping, lambda t: t["swapped_bytes"], 0, lambda n: f"up to {n / (1 << 20):.3g} MiB"),
    (ClockDrift, lambda t: (t["clock_ratio"] - 1).abs(), 0.001, _share("apart")),
    (SlowGovernor, lambda t: (t["governor"].notna() & (t["governor"] != _GIVEN)).astype(float), 0, lambda _: "set so"),
    (SharedSiblings, lambda t: t["siblings_shared"].eq(True).astype(float), 0, lambda _: "see lscpu -e"),
    (NumaCrossing, lambda t: t["numa_nodes"] - 1, 0, lambda n: f"up to {n + 1:.0f} nodes"),
    (NotRead, unread, 0, _share("of the bytes missing")),
    (DamagedImages, lambda t: t["damaged"], 0, lambda n: f"up to {n:.0f} in a trial"),
)
"""A kind of disturbance, its amount in each trial, the amount from which it is worth a warning, and its wording."""


def disturbances(ok: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield one warning per job, target and kind, models together, from ok trials that have ``variant``."""
    place = [*JOB, "target"]
    for kind, amount_of, bound, words in RULES:
        amounts = amount_of(ok).astype(float)
        for _, disturbed in ok[amounts > bound].groupby(place):
            first = disturbed.iloc[0]
            of = int((ok[place] == first[place]).all(axis=1).sum())
            worst = words(float(amounts[disturbed.index].max()))
            yield kind(str(job_of(first)), str(first["target"]), len(disturbed), of, worst)
    yield from _mitigations(ok)


def _mitigations(ok: pd.DataFrame) -> Iterator[MitigationsDiffer]:
    known = ok["mitigations"].notna() & ok["host_mitigations"].notna() & (ok["target"] != BASELINE)
    differing = ok[known & (ok["mitigations"] != ok["host_mitigations"])]
    for _, rows in differing.groupby([*JOB, "target"]):
        first = rows.iloc[0]
        sides = set(str(first["mitigations"]).splitlines()) ^ set(str(first["host_mitigations"]).splitlines())
        names = sorted({line.split(":")[0] for line in sides})
        yield MitigationsDiffer(str(job_of(first)), str(first["target"]), tuple(names))
