"""The state of host and targets while trials ran: what disturbed them, and facts that changed between them.

A record without conditions gives no warning: what was not measured is absent, never fine. Facts are compared over all
trials, of however many runs: what is constant inside each run can still differ from run to run, and no pair of a block
shows it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.compare.pairing import BLOCK, JOB, ROW, job_of
from analysis.compare.results import Disturbed
from analysis.compare.validity import changes
from analysis.warnings.types import AnalysisWarning, Touched
from suite.job.ablations import label_of
from suite.targets import BASELINE, VMS

_TARGET = [*JOB, "target"]
ARM = ("target", "ablation", "aggressor", "hostname")
"""What tells arms apart, each on its host."""
LINE = (0.002, 0.002)
REST = (0.025, 0.005)
"""The seconds, plus the share of a turn, by which an honest target may differ from bare metal: up to the line after its
last step, and up to the rest of its threads. ``docs/evidence/README.md`` has the measurements."""

LINE_LATE_S = 0.01
"""The seconds by which a line may be read later than the one before it, of an emulated guest, too."""
OWN_UNCHECKED = 0.005
SHARED_UNCHECKED = 0.05
"""The share of the measured span that late lines may make up: of a clock of the target's own, and of the host's."""
MOST_NAMED = 2
"""The processes that a reason names."""
GPU_SPAN_S = 5.0
"""The seconds in which a GPU comes to the clocks that it keeps."""
UNFINISHED_S = 0.25
"""The seconds in which the threads of OpenMP have ended to spin after the last step, in an emulated guest, too."""
_SHORTEST_S = 1e-6
"""The time of a job that may have done nothing but wait; it has a logarithm."""


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
    apart: bool = False
    """Whether only what a trial has more, or less, of than bare metal in its block spoils it: a ratio of trials that
    are held back alike still is that of their targets."""

    def words_spoilt(self) -> str:
        """Return in words from which amount on a trial is spoilt; empty for never."""
        if self.spoils is None:
            return ""
        return self.words(self.spoils, "over") + (" apart from bare metal" if self.apart else "")

    def spoiling(self, trials: pd.DataFrame, amounts: "pd.Series[float]") -> "pd.Series[float]":
        """Return the amounts that are held against ``spoils``."""
        return (amounts - of_baseline(trials, amounts).fillna(0)).abs() if self.apart else amounts


def _share(text: str) -> Callable[[float, str], str]:
    return lambda amount, how: f"{how} {amount * 100:.2g} % {text}"


def of_baseline(trials: pd.DataFrame, amounts: "pd.Series[float]") -> "pd.Series[float]":
    """Return for each trial the mean amount of bare metal in its block; missing without one."""
    blocks = [trials[name] for name in BLOCK]
    return amounts.where(trials["target"] == BASELINE).groupby(blocks, observed=True).transform("mean")


def clocks_of_gpu_apart(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the share by which a GPU's clock over the measured steps differs from that on bare metal in its block."""
    clock = trials["gpu_sm_mhz"].astype(float)
    return (clock / of_baseline(trials, clock) - 1).abs()


def unread(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the share of a cold trial's data that no counter saw coming from the disk; missing if none counted."""
    read = trials[["worker_disk_read_bytes", "serving_disk_read_bytes"]].max(axis=1)
    share: pd.Series[float] = 1 - read / trials["data_bytes"].where(trials["data_bytes"] > 0)
    return share.where(trials["page_cache"] == "cold")


def with_own_clock(trials: pd.DataFrame) -> "pd.Series[bool]":
    """Return whether each target has a clock of its own: that of another kernel, or of another machine."""
    of_facts = {facts: has_own_clock(facts.by_path) for facts in trials["facts"].unique()}
    other_clock = trials["facts"].astype(object).map(of_facts).astype(bool)
    stacks = trials["stack"] if "stack" in trials else trials["target"]
    return other_clock | stacks.isin(VMS)


def has_own_clock(facts: Mapping[str, Any]) -> bool:
    """Return whether the facts of a trial name another kernel than the host's, or another machine."""
    other_kernel = facts.get("container_engine.kernel") or facts.get("pod.runtime_class") or facts.get("pod.virtual")
    return bool(other_kernel or facts.get("machine") or facts.get("pod.this_machine") is False)


def times_apart(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return how far the times of a target and of the host are apart: over the measured span, or inside its turns.

    A clock that is slow while the target computes, and then catches up, is right over the whole job. It shows by what
    a turn takes beside its steps, which is the same on bare metal but for the way of a line and the end of spinning.
    """
    late = LINE_LATE_S / trials["clock_span_s"]
    shares = [((trials["clock_ratio"] - 1).abs() - late.fillna(0)).clip(lower=0)]
    for column, (honest_s, honest_share) in (("late_s", LINE), ("beside_s", REST)):
        more_s = (trials[column] - of_baseline(trials, trials[column])).abs() - honest_s
        shares.append((more_s / trials["turn_s"] - honest_share).clip(lower=0))
    return pd.concat(shares, axis=1).max(axis=1)


def clocks_apart(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return how far the clocks of the host and of a target that has its own went apart."""
    return times_apart(trials).where(with_own_clock(trials), 0)


def late_lines(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return how far the lines of a target came from its times, which it took by the host's own clock."""
    return times_apart(trials).mask(with_own_clock(trials), 0)


def unchecked_clocks(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the share of a rate by which the target's clock may be wrong unnoticed, where its span is too short.

    A clock of the target's own that was never held against the host's may be wrong by anything.
    """
    own_clock = with_own_clock(trials)
    share = (LINE_LATE_S / trials["clock_span_s"]).mask(trials["clock_ratio"].isna(), 1).clip(upper=1)
    by_its_clock = trials["throughput_per_s"].notna() | trials["scenario"].eq("probe")
    short = share > own_clock.map({True: OWN_UNCHECKED, False: SHARED_UNCHECKED})
    unknown = trials["clock_ratio"].isna() & trials["clock_span_s"].isna() & ~own_clock
    return share.where(by_its_clock & short & ~unknown, 0)


def stolen_from_guests(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the share of the measured steps' CPU time that the kernel of a guest had none of its virtual CPUs for."""
    whole_s = trials["clock_span_s"] * trials["cpus"]
    share: pd.Series[float] = trials["inside_steal_s"] / whole_s
    return share.where(trials["target"].isin(VMS))


def least_elapsed(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the elapsed seconds without all CPU seconds of others: no job has waited longer for a CPU.

    In turns those were counted over the turns of all, and a job met its share.
    """
    taken_s = trials["other_cpu_s"].fillna(0) + trials["steal_s"].fillna(0)
    in_turns = trials["block_s"].notna()
    share = (trials["elapsed_s"] / trials["interval_s"]).clip(upper=1.0)
    met_s = taken_s * share.where(in_turns, 1.0)
    return (trials["elapsed_s"] - met_s).clip(lower=_SHORTEST_S)


def short_on_gpu(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the seconds by which the measured span of a training on a GPU is too short for its clocks to settle."""
    trains_on_gpu = trials["device"].eq("cuda") & trials["throughput_per_s"].notna()
    return (GPU_SPAN_S - trials["clock_span_s"]).where(trains_on_gpu, 0)


OTHER_LOAD = "other-load"
STEAL_TIME = "steal-time"
DISTURBANCES = (
    Disturbance(
        STEAL_TIME,
        "the hypervisor below this host took CPU time away",
        "this host is a virtual machine with neighbours: take a dedicated one; more blocks help against short spells",
        *(lambda t: t["steal_s"] / (t["interval_s"] * t["cpus"]), 0.005, _share("of the CPU time"), 0.05),
    ),
    Disturbance(
        "guest-steal",
        "the host took CPU time away from a guest's virtual CPUs",
        "keep the CPUs of the envelope free of other work (--cpus): QEMU's own threads run there, too",
        *(stolen_from_guests, 0.005, _share("of the CPU time"), 0.05),
    ),
    Disturbance(
        OTHER_LOAD,
        "the CPUs were busy with other work",
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
        "gpu-shared",
        "processes of others computed or drew on a GPU of the job",
        "see resources.gpus.*.strangers in the records: end them, or choose another GPU with --gpus",
        *(lambda t: t["gpu_strangers_share"], 0.01, _share("of the time"), 0.05),
    ),
    Disturbance(
        "gpu-hidden",
        "processes on a GPU of the job are not visible here: whether others used it is unknown",
        "run bench on the host itself, or see memory_bytes_before and utilisation_before in the records",
        *(lambda t: t["gpu_hidden"].astype(float), 0, lambda *_: "see resources.gpus"),
    ),
    Disturbance(
        "gpu-clocks",
        "a GPU ran at another clock than on bare metal",
        "lock its clocks below what it can hold (nvidia-smi --lock-gpu-clocks), and let it settle (--profile gpu)",
        *(clocks_of_gpu_apart, 0.01, _share("apart"), 0.05),
    ),
    Disturbance(
        "gpu-span",
        "the measured span on a GPU is too short: its clocks still rise",
        "measure with --profile gpu, or more steps (--steps)",
        *(short_on_gpu, 0, lambda *_: f"under {GPU_SPAN_S:g} s", 0),
    ),
    Disturbance(
        "gpu-throttled",
        "a GPU was throttled by heat or by its board",
        "cool it, or lock its clocks below what it can hold (nvidia-smi --lock-gpu-clocks)",
        *(lambda t: t["gpu_throttled_s"] / t["interval_s"], 0.001, _share("of the time"), 0.05),
        apart=True,
    ),
    Disturbance(
        "gpu-power-capped",
        "a GPU was throttled by its power limit",
        "raise the limit, or lock the clocks below it (nvidia-smi --lock-gpu-clocks), for every target alike",
        *(lambda t: t["gpu_power_capped_s"] / t["interval_s"], 0.01, _share("of the time"), 0.1),
        apart=True,
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
        "unfinished-work",
        "after the last measured step, work went on that the steps had started and not waited for",
        "let each step of the workload wait for what it starts: until then its steps are shorter than its work",
        *(lambda t: t["unfinished_s"], UNFINISHED_S, lambda s, how: f"{how} {s:.2g} s", UNFINISHED_S),
    ),
    Disturbance(
        "steps-untimed",
        "the host waited for the GPU at the ends of the measured span alone: tails and phases of steps are absent",
        "measure by --sync step to have them, in a run apart: its throughput includes the waits",
        *(lambda t: t["losses"].notna() & t["step_p99_s"].isna(), 0, lambda *_: "--sync span"),
    ),
    Disturbance(
        "clock-drift",
        "the target's clock and the host's went at different rates",
        "trust elapsed times, which the host's clock takes; step times of this target, and its turns, are off by this",
        *(clocks_apart, 0.001, _share("apart"), 0.01),
    ),
    Disturbance(
        "late-lines",
        "lines of the target, which has the host's clock, were read late: the CPUs were busy with other work",
        "see other-load; if nothing else runs, see what inside the target changes the time that its programs see",
        *(late_lines, 0.01, _share("of the measured span"), 0.05),
    ),
    Disturbance(
        "clock-unchecked",
        "the measured span is too short to hold the target's clock against the host's",
        "measure more steps (--steps) or a longer profile: from 2 s on a rate by a guest's clock can be checked",
        *(unchecked_clocks, 0, _share("could go unnoticed"), 0),
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
        "the CPUs and GPUs of the trial lay on several NUMA nodes",
        "choose CPUs of one node with --cpus, that of the GPU (see lscpu, nvidia-smi topo -m)",
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


TAKES_CPUS = (STEAL_TIME, OTHER_LOAD)
"""The disturbances that can delay a job by the CPU time that they take, and by no more."""


def disturbances(ok: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield one warning per job, target and disturbance, models together, from ok trials that have ``variant``."""
    for kind, amounts in _noticed(ok):
        for _, rows in ok[amounts > kind.bound].groupby(_TARGET):
            first = rows.iloc[0]
            trials = int((ok[_TARGET] == first[_TARGET]).all(axis=1).sum())
            worst = kind.words(float(amounts[rows.index].max()), "up to")
            where = f"{first['target']} in {len(rows)} of {trials} trials ({worst})"
            touches = (Touched(job_of(first), str(first["target"])),)
            yield AnalysisWarning(
                kind.kind,
                f"{job_of(first)}: {kind.finding}",
                kind.advice,
                where,
                touches,
            )
    yield from _mitigations(ok)


def _noticed(ok: pd.DataFrame) -> Iterator[tuple[Disturbance, "pd.Series[float]"]]:
    """Yield each disturbance that some trial had, with its amount in all trials. Most trials had none."""
    for kind in DISTURBANCES:
        amounts = kind.amount(ok).astype(float)
        if (amounts > kind.bound).any():
            yield kind, amounts


def disturbed(ok: pd.DataFrame, keys: Sequence[str] = ROW) -> dict[tuple[str, ...], tuple[Disturbed, ...]]:
    """Return what has disturbed the trials of each row, as far as it can spoil a trial."""
    counts = ok.groupby(list(keys)).size().to_dict()
    by_row: dict[tuple[str, ...], tuple[Disturbed, ...]] = defaultdict(tuple)
    for kind, amounts in _noticed(ok):
        if kind.spoils is None:
            continue
        spoiling = kind.spoiling(ok, amounts)
        for key, rows in ok[amounts > kind.bound].groupby(list(keys)):
            spoiled = int((spoiling[rows.index] > kind.spoils).sum())
            noticed = ""
            if kind.bound:
                noticed = kind.words(kind.bound, "over")
            by = busiest(rows) if kind.kind == OTHER_LOAD else {}
            row = Disturbed(
                kind.kind,
                kind.finding,
                noticed,
                len(rows),
                counts[key],
                spoiled,
                kind.words_spoilt(),
                by,
            )
            by_row[tuple(map(str, key))] += (row,)
    return dict(by_row)


def busiest(trials: pd.DataFrame) -> dict[str, float]:
    """Return the share of the CPU time that each process which is named took in trials on average."""
    spent_s: dict[str, float] = defaultdict(float)
    for of_trial in trials["busiest"]:
        if isinstance(of_trial, dict):
            for name, seconds in of_trial.items():
                spent_s[name] += seconds
    whole_s = float((trials["interval_s"] * trials["cpus"]).sum())
    return {name: seconds / whole_s for name, seconds in spent_s.items()}


def who(disturbed: Sequence[Disturbed]) -> str:
    """Return the processes that took most CPU time, on any side: ``python 61 %, cc1 12 %``; empty if none is known."""
    shares: dict[str, float] = {}
    for disturbance in disturbed:
        for name, share in disturbance.by.items():
            shares[name] = max(share, shares.get(name, 0.0))
    most = sorted(shares, key=lambda name: shares[name], reverse=True)[:MOST_NAMED]
    return ", ".join(f"{name} {100 * shares[name]:.2g} %" for name in most)


def _mitigations(ok: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield the targets whose kernel protects against other CPU flaws: part of the difference is that."""
    both = ok["mitigations"].notna() & ok["host_mitigations"].notna() & (ok["target"] != BASELINE)
    differing = ok[both & (ok["mitigations"] != ok["host_mitigations"])]
    if len(differing):
        for _, rows in differing.groupby(_TARGET):
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


def changed_arms(trials: pd.DataFrame, keys: Sequence[str]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the key of every arm that changed, and its changes in the order of time."""
    # Of 100,000 trials few have other facts.
    ordered = trials.sort_values("started_at", kind="stable").drop_duplicates([*keys, "facts"])
    arms = ordered[list(keys)].astype(object).fillna("")
    for key, facts in ordered["facts"].astype(object).groupby([arms[name] for name in keys], sort=False):
        if len(facts) > 1 and (texts := changes(*([side] for side in facts))):
            yield tuple(map(str, key)), texts


def with_changes(trials: pd.DataFrame) -> pd.DataFrame:
    """Add ``changed``: the mark at the numbers of a trial whose arm changed; empty elsewhere. They have ``variant``."""
    keys = [*ROW, *ARM[1:]]
    marks = {
        key: f"changed between trials: {'; '.join(texts)}" for key, texts in changed_arms(trials[trials["ok"]], keys)
    }
    if not marks:
        return trials.assign(changed="")
    arms = trials[keys].astype(object).fillna("")
    return trials.assign(changed=[marks.get(key, "") for key in arms.itertuples(index=False, name=None)])


def changed(ok: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield one warning per job, arm, host and change, models together, from ok trials that have ``changed``."""
    keys = [*JOB, *ARM, "changed"]
    rows = ok[ok["changed"] != ""].drop_duplicates([*keys, "model"])
    several = ok["hostname"].nunique() > 1
    for _, arm in rows.groupby([rows[name].astype(object).fillna("") for name in keys], sort=False):
        first = arm.iloc[0]
        target = str(first["target"])
        switched = ""
        if isinstance(first["ablation"], str):
            switched = f", {label_of(first['ablation'])}"
        beside = ""
        if isinstance(first["aggressor"], str):
            beside = f" beside {first['aggressor']}"
        host = f" on {first['hostname']}" if several else ""
        plain = not (switched or beside)
        yield AnalysisWarning(
            "changed",
            f"{job_of(first)}: {first['changed']}",
            "the numbers mix the trials of each state: compare the runs, or the trials, of one state alone",
            f"{target}{switched}{beside}{host}",
            # The number of a target as it is holds no trial of its other arms.
            tuple(Touched(job_of(first), target, model) for model in arm["model"].unique()) if plain else (),
        )
