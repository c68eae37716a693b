"""The state of the host while the job ran, and the resources that the job used."""

from typing import Annotated

from pydantic import Field

from suite.part import Count, Part, Seconds


class Conditions(Part):
    """The host while the job ran: counters after it minus those before. Null where the host cannot tell.

    CPU seconds are those of the envelope's CPUs, all together.
    """

    interval_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    steal_s: Seconds | None = None
    other_cpu_s: Seconds | None = None
    """Busy time of the envelope's CPUs, without everything that served the target and the suite itself."""
    throttled_s: Seconds | None = None
    """Time lost to a CPU quota: the most that one of the control groups around the suite or the job was held back."""
    thermal_throttles: Count | None = None
    """The count of the CPU that was throttled most often."""
    swapped_bytes: Count | None = None
    """Bytes swapped in and out by the whole host."""
    governor: str | None = None
    frequency_mhz: tuple[Seconds, Seconds] | None = None
    """The mean of the envelope's CPUs right before the launch, when they are idle, and right after the end."""
    siblings_shared: bool | None = None
    """Whether a core has hardware threads both inside and outside of the envelope."""
    numa_nodes: list[Count] | None = None
    """The nodes of the envelope's CPUs and of the job's GPUs."""
    load_1min: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """The load average right before the launch."""
    sampler_cpu_s: Seconds | None = None
    """The CPU time that reading these counters, and those of the resources, has cost."""


class Usage(Part):
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


class GpuUsage(Part):
    """One GPU of the host while the job ran, by NVML; its energy is in ``Resources.energy_j``."""

    pci_address: str
    utilisation: Annotated[float, Field(ge=0, le=1)] | None = None
    """The mean share of the time in which a kernel ran."""
    peak_memory_bytes: Count | None = None


class CacheUse(Part):
    """Counts of the hardware, on the host, from the launch to the end; null if they could not be read."""

    cpus: list[Count] | None = None
    """The CPUs that were counted, with all that ran on them: those given to the target alone."""
    llc_loads: Count | None = None
    """Loads from the last-level cache."""
    llc_load_misses: Count | None = None
    memory_read_bytes: Count | None = None
    """Bytes read through the memory controllers of the whole host, which serve all jobs."""
    memory_written_bytes: Count | None = None
    absent: str | None = None
    """The reason why a count is null."""


class Resources(Part):
    """The resources that the job used, as seen from outside and from inside.

    ``serving`` is everything on the host that serves the target, the job included, by the host's accounting, from the
    launch to the end: QEMU with all its threads, shims, the clients of the engine. Its peak of memory is since the
    target was opened, and holds the page cache where a control group tells it. ``worker`` is the worker by its own
    accounting, from its start to its last line; its memory is that of rank 0.
    """

    serving: Usage | None = None
    worker: Usage | None = None
    energy_j: dict[str, Seconds] | None = None
    """Energy of the whole host by counter: ``package-0``, ``dram-0`` (RAPL), ``gpu-0`` (NVML). They do not overlap."""
    gpus: list[GpuUsage] | None = None
    cache: CacheUse | None = None
    beside: Usage | None = None
    """CPU time of the processes that serve the other instances, while the victim ran; ``serving`` is then the victim's
    alone."""
