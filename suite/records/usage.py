"""The state of the host while the job ran, and the resources that the job used."""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Annotated

from msgspec import Meta
from pydantic import Field
from pydantic.dataclasses import dataclass

from suite.part import Count, Seconds
from suite.records.fields import STRICT, Amount, Positive, ProcessName, Share, Text


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Conditions:
    """The host while the job ran: counters after it minus those before. Null where the host does not count it.

    CPU seconds are those of the envelope's CPUs, all together.
    """

    interval_s: Positive | None = None
    steal_s: Seconds | None = None
    other_cpu_s: Seconds | None = None
    """Busy time of the envelope's CPUs, without everything that served the target and the suite itself."""
    busiest: dict[ProcessName, Seconds] | None = None
    """The CPU seconds, on any CPU, of the processes that took most of it, by name. Those that ended are not seen."""
    throttled_s: Seconds | None = None
    """Time lost to a CPU quota: the most that one of the control groups around the suite or the job was held back."""
    thermal_throttles: Count | None = None
    """The count of the CPU that was throttled most often."""
    swapped_bytes: Count | None = None
    """Bytes swapped in and out by the whole host."""
    governor: Text | None = None
    frequency_mhz: tuple[Seconds, Seconds] | None = None
    """The mean of the envelope's CPUs right before the launch, when they are idle, and right after the end."""
    siblings_shared: bool | None = None
    """Whether a core has hardware threads both inside and outside of the envelope."""
    numa_nodes: list[Count] | None = None
    """The nodes of the envelope's CPUs and of the job's GPUs."""
    load_1min: Amount | None = None
    """The load average right before the launch."""
    sampler_cpu_s: Seconds | None = None
    """The CPU time that reading these counters, and those of the resources, has cost."""
    absent: Text | None = None
    """The reason why nothing that is counted by CPU could be read."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Usage:
    """The resources that a job has used; null if they could not be read."""

    cpu_s: Seconds | None = None
    peak_memory_bytes: Count | None = None
    disk_read_bytes: Count | None = None
    """Bytes read from storage; reads served by the page cache are not counted."""
    disk_written_bytes: Count | None = None
    network_received_bytes: Count | None = None
    network_sent_bytes: Count | None = None
    minor_faults: Count | None = None
    major_faults: Count | None = None
    peak_gpu_memory_bytes: Count | None = None
    """The most memory that the tensors of rank 0 held on its GPU; NVML's peak has the context of CUDA and others, too.
    """
    peak_gpu_reserved_bytes: Count | None = None
    """The most memory that torch kept for tensors."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class GpuSpan:
    """The use of one GPU over a span of time."""

    energy_j: Seconds | None = None
    utilisation: Share | None = None
    """The mean share of the time in which a kernel ran."""
    sm_mhz: Seconds | None = None
    """The mean clock of the multiprocessors."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class GpuSamples:
    """Samples of one GPU, a column for each quantity; null if the GPU does not answer."""

    at_s: Annotated[list[Seconds], Field(min_length=2), Meta(min_length=2)]
    """The times of the samples, since the launch."""
    energy_j: list[Seconds | None]
    """The GPU's own counter."""
    utilisation: list[Share | None]
    sm_mhz: list[Count | None]

    def span(self, begin_s: float, end_s: float) -> GpuSpan:
        """Return the use between two times; energy is interpolated between samples."""
        inside = [begin_s <= at_s <= end_s for at_s in self.at_s]
        busy = [value for value in itertools.compress(self.utilisation, inside) if value is not None]
        clocks = [value for value in itertools.compress(self.sm_mhz, inside) if value is not None]
        samples = zip(self.at_s, self.energy_j, strict=True)
        counted = [(at_s, spent) for at_s, spent in samples if spent is not None]
        return GpuSpan(
            energy_j=max(0.0, _at(end_s, counted) - _at(begin_s, counted)) if len(counted) > 1 else None,
            utilisation=fmean(busy) if busy else None,
            sm_mhz=fmean(clocks) if clocks else None,
        )


def _at(time_s: float, points: Sequence[tuple[float, float]]) -> float:
    """Return the value at a time by linear interpolation; beyond the ends, that of the end."""
    after = bisect.bisect_left(points, (time_s,))
    if after in (0, len(points)):
        return points[min(after, len(points) - 1)][1]
    (left_s, left), (right_s, right) = points[after - 1 : after + 1]
    return left + (right - left) * (time_s - left_s) / (right_s - left_s)


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class GpuUsage:
    """One GPU of the job, or an instance of one by MIG, while it ran, by NVML on the host.

    Null where it does not answer. NVML counts the energy and the utilisation of a whole card alone: those of an
    instance are null. Its clocks, temperature and limits are its card's.
    """

    uuid: Text | None = None
    pci_address: Text | None = None
    job: GpuSpan | None = None
    """From the launch to the end."""
    measured: GpuSpan | None = None
    """The measured steps alone; null where the job has none."""
    samples: GpuSamples | None = None
    peak_memory_bytes: Count | None = None
    peak_temperature_c: Count | None = None
    power_capped_s: Seconds | None = None
    """The time for which the power limit held its clocks down."""
    throttled_s: Seconds | None = None
    """The time for which heat, or its board, held its clocks down."""
    strangers: list[Text] | None = None
    """Processes of others that computed or drew on it while the job ran, ten at most. Null where processes on it are
    not visible: whose they are is unknown."""
    strangers_utilisation: Share | None = None
    """The mean share of the time in which kernels of others ran."""
    memory_bytes_before: Count | None = None
    """Its memory in use right before the launch."""
    utilisation_before: Share | None = None
    """Its utilisation right before the launch, by all processes."""
    power_limit_w: Seconds | None = None
    persistence: bool | None = None
    ecc: bool | None = None
    mig: bool | None = None
    confidential: bool | None = None
    """Whether the machine computes confidentially: what is copied to its GPUs is encrypted."""
    pcie_generation: Count | None = None
    pcie_width: Count | None = None
    """The fastest state of its link while the job ran, in lanes."""

    def with_measured(self, begin_s: float, end_s: float) -> "GpuUsage":
        """Return it with the use of the measured steps, which lie between these times since the launch."""
        if self.samples is None:
            return replace(self, measured=None)
        return replace(self, measured=self.samples.span(begin_s, end_s))


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class CacheUse:
    """Counts of the hardware, on the host, from the launch to the end; null if they could not be read."""

    cpus: list[Count] | None = None
    """The CPUs that were counted, with all that ran on them: those given to the target alone."""
    llc_loads: Count | None = None
    """Loads from the last-level cache."""
    llc_load_misses: Count | None = None
    memory_read_bytes: Count | None = None
    """Bytes read through the memory controllers of the whole host, which serve all jobs."""
    memory_written_bytes: Count | None = None
    absent: Text | None = None
    """The reason why a count is null."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Resources:
    """The resources that the job used, as seen from outside and from inside.

    ``serving`` is everything on the host that serves the target, the job included, by the host's accounting, from the
    launch to the end: QEMU with all its threads, shims, the clients of the engine. Its peak of memory is since the
    target was opened, and holds the page cache where a control group counts it. ``worker`` is the worker by its own
    accounting, from its start to its last line; its memory is that of rank 0.
    """

    serving: Usage | None = None
    worker: Usage | None = None
    energy_j: dict[str, Seconds] | None = None
    """Energy by counter: ``package-0``, ``dram-0`` of the whole host (RAPL), ``gpu-0`` of the job alone (NVML). They
    do not overlap. Null if one of them is unknown."""
    energy_absent: Text | None = None
    """The reason why a host or a GPU with a counter has no energy here."""
    idle_w: Seconds | None = None
    """The power of the host's counters while it idled, in watts, measured once before the first block of the run."""
    gpus: list[GpuUsage] | None = None
    """Those of a job that takes turns are counted for all jobs of its block, over the whole block."""
    cache: CacheUse | None = None
    beside: Usage | None = None
    """CPU time of the processes that serve the other instances, while the victim ran; ``serving`` is then the victim's
    alone."""

    def with_measured(self, span: tuple[float, float] | None) -> "Resources":
        """Return them with the use of the GPUs in the measured steps, which lie between two times since the launch."""
        if not (self.gpus and span):
            return self
        gpus = [gpu.with_measured(*span) for gpu in self.gpus]
        return replace(self, gpus=gpus)
