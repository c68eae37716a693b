"""Injuries: changes of a target whose size is known from elsewhere than from what the suite measures.

An injury is measured as an ablation is: in the same blocks as the target as it is. The suite must find it in size (the
known ratio lies in the interval), in place (its phase grows most) and in verdict. ``bench selftest`` alone does them.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from suite.job.ablations import Ablation
from suite.job.lab import bits_per_s
from suite.job.properties import AS_IT_IS, Properties
from suite.records.record import TrialRecord
from suite.registries import INJURIES

_HERE = ("bare-metal", "container")
_EVERYWHERE = (*_HERE, "vm", "container-vm")
SYNTHETIC = "synthetic"
DISTRIBUTED = "distributed"
PHASES = ("data", "copy", "compute", "communicate")
"""The phases of a step, one of which an injury of time must be found in."""
THROUGHPUT = "throughput"
MEMORY = "memory"
UNINJURED = "nothing"
"""The arm of every target that is not injured: A/A."""
LEAST_APPLIED = 0.5
"""The share of what was asked for that a counter must show: neighbours may have held the target back before it did."""
QUOTA = 0.9
"""The share of its CPUs that the quota leaves to a job."""
SLOW_LINK = "250mbit"
LINK_HEADERS = 1.1
"""The most bytes on the wire for each byte of a message: headers of TCP, IP, Ethernet and VXLAN."""
HELD_BYTES = 512 << 20


@dataclass(frozen=True)
class Truth:
    """The ratio of the injured trial to the trial as it is: from ``low`` to ``high``, which are mostly the same."""

    low: float
    high: float

    @classmethod
    def exactly(cls, ratio: float) -> "Truth":
        return cls(ratio, ratio)


TruthOf = Callable[[TrialRecord, TrialRecord], Truth | None]
"""Returns the truth of one block, given the injured trial and the trial as it is; None if the injury was not there."""


@dataclass(frozen=True)
class Injury(Ablation):
    """A change of known size. Its truth never rests on the ratio that it is to be compared with."""

    truth: TruthOf = lambda _injured, _usual: Truth(1.0, 1.0)
    witness: str = ""
    metric: str = THROUGHPUT
    phase: str | None = None
    """The phase of a step that must carry it; None if none does."""
    scenario: str | None = SYNTHETIC
    """The scenario in which it shows; None for any."""

    @property
    def changes(self) -> bool:
        return self.properties != AS_IT_IS


def span_s(record: TrialRecord) -> float:
    """Return the seconds of the measured steps, by which the throughput was divided."""
    if record.job.sizes is None or not record.throughput_per_s:
        return math.nan
    trainers = record.job.distributed.workers if record.job.distributed else 1
    sizes = record.job.sizes
    images = sizes.batch * sizes.steps * record.job.devices.devices * trainers
    return images / record.throughput_per_s


def injected(record: TrialRecord, name: str) -> float:
    """Return what the worker says it has added, by its own clock or count; 0 if it says nothing."""
    seconds = record.details.get("injected")
    value = None
    if isinstance(seconds, dict):
        value = seconds.get(name)
    if isinstance(value, int | float):
        return float(value)
    return 0.0


def _clocked(record: TrialRecord, _usual: TrialRecord) -> Truth | None:
    """Return the throughput that is left by the seconds that the worker has clocked."""
    added_s = injected(record, "seconds")
    whole_s = span_s(record)
    if 0 < added_s < whole_s:
        return Truth.exactly((whole_s - added_s) / whole_s)
    return None


def _held(record: TrialRecord, _usual: TrialRecord) -> Truth | None:
    """Return the memory with what the worker holds, over the memory without."""
    held = injected(record, "held_bytes")
    serving = record.resources.serving if record.resources else None
    peak = serving.peak_memory_bytes if serving else None
    if peak and 0 < held < peak:
        return Truth.exactly(peak / (peak - held))
    return None


def _quota(record: TrialRecord, _usual: TrialRecord) -> Truth | None:
    """Return the range between the share that one busy CPU keeps and what is left by the kernel's count.

    The count is of the whole job, which now and then waits and is not held back meanwhile.
    """
    conditions = record.conditions
    held_s, whole_s = (conditions.throttled_s, conditions.interval_s) if conditions else (None, None)
    if not (held_s and whole_s) or held_s < LEAST_APPLIED * (1 - QUOTA) * whole_s:
        return None
    left = 1 - held_s / whole_s
    return Truth(min(QUOTA, left), max(QUOTA, left))


def _by_slow_links(record: TrialRecord, usual: TrialRecord) -> Truth | None:
    """Return the range between both directions at once and one after the other, from the bytes that the ranks counted.

    In the first case the computing overlaps, too; in the second nothing does.
    """
    ranks = [rank for rank in record.ranks if rank.role == "worker"]
    counted = [(rank.sent_bytes, rank.received_bytes) for rank in ranks if rank.sent_bytes and rank.received_bytes]
    sizes = record.job.sizes
    if len(counted) < len(ranks) or not ranks or sizes is None:
        return None
    # The counts hold the warm-up steps.
    measured_share = sizes.steps / (sizes.steps + sizes.warmup_steps)
    share = measured_share * 8 / bits_per_s(SLOW_LINK)
    sent_s = share * sum(sent for sent, _ in counted)
    received_s = share * sum(received for _, received in counted)
    most_s = LINK_HEADERS * (sent_s + received_s) + span_s(usual)
    transfer_s = max(sent_s, received_s)
    return Truth(span_s(usual) / most_s, min(1.0, span_s(usual) / transfer_s))


NOTHING = Injury("nothing at all", "no injury", _EVERYWHERE, AS_IT_IS, witness="nothing was done", scenario=None)
CPU_QUOTA_10 = Injury(
    "a quota that holds the CPUs back by 10 %",
    "CPU quota 10 %",
    _HERE,
    Properties(cpu_share=QUOTA),
    truth=_quota,
    witness="the quota, and the kernel's count of the time that it held back",
    phase="compute",
)
LATE_STEPS = Injury(
    "every tenth step sleeps, by 10 % of all steps together",
    "late steps",
    _EVERYWHERE,
    Properties(step_injury={"kind": "late-step", "share": 0.1, "every": 10}),
    truth=_clocked,
    witness="the worker's clock around the sleep",
    phase="compute",
)
LATE_BATCHES = Injury(
    "every fifth batch comes late, by 5 % of all steps together",
    "late batches",
    _EVERYWHERE,
    Properties(step_injury={"kind": "late-batch", "share": 0.05, "every": 5}),
    truth=_clocked,
    witness="the worker's clock around the sleep",
    phase="data",
)
HELD_MEMORY = Injury(
    f"the job holds {HELD_BYTES >> 20} MiB that it has no use for",
    "held memory",
    _EVERYWHERE,
    Properties(step_injury={"kind": "held-memory", "held_bytes": HELD_BYTES}),
    truth=_held,
    witness="the number of bytes that the worker has touched",
    metric=MEMORY,
)
SLOW_LINKS = Injury(
    f"links of {SLOW_LINK}/s",
    "slow links",
    _EVERYWHERE,
    Properties(link={"rate": SLOW_LINK}),
    truth=_by_slow_links,
    witness="the rate, and the bytes that the ranks counted",
    phase="communicate",
    scenario=DISTRIBUTED,
)


def get_injury(name: str) -> Injury:
    injury: Injury = INJURIES.get(name)
    return injury


def injuries_of(scenario: str, names: Collection[str]) -> tuple[str, ...]:
    """Return those of the injuries that show in a scenario, in their order, and with them what changes nothing."""
    wanted = [name for name in INJURIES if name in names and get_injury(name).scenario == scenario]
    return (UNINJURED, *wanted) if wanted else ()
