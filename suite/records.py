"""Records: what one trial leaves behind. One JSON file each; enough to rebuild every table on another machine.

What was not measured is ``null``, never zero. ``record.schema.json`` beside this file is the published schema.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from suite.cluster import Cluster, Role
from suite.datasets import Kind, PageCache
from suite.envelope import Envelope
from suite.profiles import Recipe, Workload
from suite.sharing import Sharing

SCHEMA_VERSION = 2
"""See ``suite.migrations`` for what the versions before were like."""
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Steps(_Part):
    """The measured steps, one column per phase, each of length ``steps``; a phase that a job does not have is null.

    ``elapsed_s`` is the whole step; the phases are parts of it: waiting for data, copying host to device, computing
    (forward, backward and update), communicating with other ranks or with the parameter device.
    """

    elapsed_s: list[Seconds]
    data_s: list[Seconds]
    copy_s: list[Seconds] | None = None
    compute_s: list[Seconds]
    communicate_s: list[Seconds] | None = None

    @model_validator(mode="after")
    def _equal_lengths(self) -> Self:
        columns = (self.elapsed_s, self.data_s, self.copy_s, self.compute_s, self.communicate_s)
        lengths = {len(column) for column in columns if column is not None}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"the columns of the steps have the lengths {sorted(lengths)}")
        return self


class Timeline(_Part):
    """Where the elapsed time went, on the worker's monotonic clock; the launch and the exit on the host's.

    ``launch_s`` is from the launch on the host until the worker's first line comes in; ``teardown_s`` from the last
    measured step to the worker's last line; ``exit_s`` from that line until the job has ended: the interpreter with
    torch in it takes up to a second to end.
    """

    launch_s: Seconds | None = None
    imports_s: Seconds | None = None
    build_s: Seconds | None = None
    warmup_s: Seconds | None = None
    measured_s: Seconds | None = None
    teardown_s: Seconds | None = None
    exit_s: Seconds | None = None


class Engine(_Part):
    """The container engine that ran the target, and what it was told that could cost something."""

    name: str
    version: str
    network: str
    rootfs: str
    """How the image's tree is mounted: ``directory`` (read-only, in place) or ``overlay``."""


class Gpu(_Part):
    """One GPU as seen from inside."""

    name: str
    memory_bytes: int
    driver: str | None = None
    pci_address: str | None = None


class Environment(_Part):
    """A machine as seen from one place: the host, or the inside of a target. Null where the place cannot tell."""

    kernel: str | None = None
    hostname: str | None = None
    pid1: str | None = None
    """Command line of process 1: which init, or that the place is a container."""
    cpus: list[int] | None = None
    """The CPUs this process may use, in this kernel's own numbers."""
    host_cpus: list[int] | None = None
    """The host CPUs that these are pinned to."""
    memory_bytes: int | None = None
    """The least of the control group's limit and the machine's physical memory."""
    kernel_memory_bytes: int | None = None
    """Physical memory that the kernel kept for itself: not in MemTotal."""
    threads: int | None = None
    userland_sha256: str | None = None
    userland_differences: list[str] | None = None
    """Paths in which the tree seen from inside departs from its manifest; empty when it was checked and agrees."""
    accelerator: Literal["none", "kvm", "tcg"] | None = None
    hypervisor: str | None = None
    disk: str | None = None
    container_engine: Engine | None = None
    cgroup_version: Literal[1, 2] | None = None
    seccomp: Literal["disabled", "strict", "filter"] | None = None
    no_new_privileges: bool | None = None
    effective_capabilities: str | None = None
    cpu_model: str | None = None
    cpu_flags: list[str] | None = None
    mitigations: dict[str, str] | None = None
    transparent_hugepages: str | None = None
    clocksource: str | None = None
    python: str | None = None
    libc: str | None = None
    allocator: str | None = None
    torch: str | None = None
    torchvision: str | None = None
    torch_cpu_capability: str | None = None
    gpus: list[Gpu] | None = None


class Environments(_Part):
    """The same questions asked on the host and inside the target."""

    host: Environment
    target: Environment | None = None


class Conditions(_Part):
    """The host while the job ran: counters after it minus those before. Null where the host cannot tell.

    CPU seconds are those of the envelope's CPUs, all together.
    """

    interval_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    steal_s: Seconds | None = None
    other_cpu_s: Seconds | None = None
    """Busy time of the envelope's CPUs, without everything that served the target and the suite itself."""
    throttled_s: Seconds | None = None
    """By a CPU quota: the most that one of the control groups around the suite or the job was held back."""
    thermal_throttles: Count | None = None
    """Of the CPU on which heat did it most often."""
    swapped_bytes: Count | None = None
    """In and out, by the whole host."""
    governor: str | None = None
    frequency_mhz: tuple[Seconds, Seconds] | None = None
    """Mean of the envelope's CPUs right before the launch, when they are idle, and right after the end."""
    siblings_shared: bool | None = None
    """Whether a core has hardware threads both inside and outside of the envelope."""
    numa_nodes: list[Count] | None = None
    load_1min: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Right before the launch."""
    sampler_cpu_s: Seconds | None = None
    """What taking these counters, and those of the resources, has cost itself."""


class Usage(_Part):
    """What a job has used. Null where the place cannot tell."""

    cpu_s: Seconds | None = None
    peak_memory_bytes: Count | None = None
    disk_read_bytes: Count | None = None
    """From storage; what the page cache gave is not in it."""
    disk_written_bytes: Count | None = None
    network_received_bytes: Count | None = None
    network_sent_bytes: Count | None = None
    minor_faults: Count | None = None
    major_faults: Count | None = None


class GpuUsage(_Part):
    """One GPU of the host while the job ran, by NVML; its energy is in ``Resources.energy_j``."""

    pci_address: str
    utilisation: Annotated[float, Field(ge=0, le=1)] | None = None
    """Mean share of the time in which a kernel ran."""
    peak_memory_bytes: Count | None = None


class Resources(_Part):
    """What the job cost, from outside and from inside.

    ``serving`` is everything on the host that serves the target, the job included, by the host's accounting, from the
    launch to the end: QEMU with all its threads, shims, the clients of the engine. Its peak of memory is since the
    target was opened, and holds the page cache where a control group tells it. ``worker`` is the worker by its own
    accounting, from its start to its last line; its memory is that of rank 0.
    """

    serving: Usage | None = None
    worker: Usage | None = None
    energy_j: dict[str, Seconds] | None = None
    """Of the whole host, by counter: ``package-0``, ``dram-0`` (RAPL), ``gpu-0`` (NVML). They do not overlap."""
    gpus: list[GpuUsage] | None = None
    beside: Usage | None = None
    """What served the instances beside the victim's, while the victim ran: CPU time; ``serving`` is then the victim's
    alone."""


class DataUse(_Part):
    """The data set of a job, and how the job has read it."""

    kind: Kind
    sha256: str
    images: Count
    size_bytes: Count
    decoder: str
    loader_workers: Count
    """Processes that read and decode; 0 is the training process itself."""
    page_cache_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """How much of the data set the target's page cache held right before the launch, by mincore(2)."""
    images_read: Count
    bytes_read: Count
    """Of the files of those images, warm-up and prefetch included; what the disk gave is in the resources."""
    damaged: Count = 0
    """Images that could not be decoded; their neighbours took their places."""
    damaged_files: list[str] = []
    """The first of them, relative to the data set."""


class Metric(_Part):
    """One number of a probe; its name is the key under which it stands."""

    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    unit: str
    better: Literal["more", "less"]
    samples: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None
    """What the value was taken from, where the probe repeats itself."""


class Link(_Part):
    """From one rank to another over TCP, right before the job."""

    rank: Count
    """Of the other end."""
    source_address: str
    """That the kernel chose: which interface it took."""
    connect_s: Seconds
    rate_bits_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Without headers; null where the CPUs are emulated, of which it would tell more."""


class Rank(_Part):
    """One process of a cluster's job. Seconds are sums over the measured steps."""

    rank: Count
    role: Role
    address: str
    interface: str
    node_address: str | None = None
    """Of the node below, where the address is of a container behind it."""
    environment: Environment
    throughput_images_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Of a worker."""
    measured_s: Seconds | None = None
    data_s: Seconds | None = None
    compute_s: Seconds | None = None
    communicate_s: Seconds | None = None
    """That a step waited for; what went on beside computing is not in it."""
    sent_bytes: Count | None = None
    received_bytes: Count | None = None
    links: list[Link] = []
    """To every other rank."""
    clock_offset_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """How far its machine's time of day is ahead of the launcher's; null on one and the same machine."""


class Aggression(_Part):
    """What an aggressor did. Seconds are on the host's clock, as its lines came in, from the launch of the victim."""

    unit: str
    """Of its work: images, bytes, operations."""
    begun_s: Annotated[float, Field(lt=0, allow_inf_nan=False)]
    """When its measured steps began: before the victim was launched."""
    ended_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """When the last of them had ended: after the victim had."""
    heard_s: list[Annotated[float, Field(allow_inf_nan=False)]]
    """When it told that so many ``steps`` were done, and so much ``work``."""
    steps: list[Count]
    work: list[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None]
    """Null where the place cannot tell."""
    before_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Work per second until the victim was launched."""
    beside_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """While the victim took its measured steps."""
    usage: Usage | None = None
    """By its own accounting, from its start to its end, which the programs that it started are part of."""


class Aggressor(_Part):
    """One instance beside the victim's."""

    environment: Environment
    aggression: Aggression | None = None
    """Null where the instance was idle."""


class Outcome(_Part):
    """``ok``, or ``failed`` with what is needed to see why."""

    status: Literal["ok", "failed"]
    kind: str | None = None
    message: str | None = None
    command: list[str] = []
    output_tail: str = ""
    remedy: str | None = None

    @model_validator(mode="after")
    def _a_failure_says_why(self) -> Self:
        if self.status == "failed" and not (self.kind and self.message):
            raise ValueError("a failed outcome has a kind and a message")
        return self


class TrialRecord(_Part):
    """One trial: one job, launched and finished, or failed."""

    schema_version: Literal[2] = 2
    run_id: str
    trial_id: str
    suite_version: str
    started_at: str
    """UTC, ISO 8601."""
    scenario: str
    target: str
    replica: int = 0
    ablation: str | None = None
    """The one property of the target that was switched; see ``suite.ablations``."""
    warm_up: bool = False
    """Whether the trial belongs to a warm-up block: discarded by that rule, whatever it shows."""
    model: str
    """What was trained; of a probe, its name."""
    data: str
    profile: str
    recipe: Recipe
    block: Annotated[int, Field(ge=0)]
    position: Annotated[int, Field(ge=0)]
    seed: int
    workload: Workload | None = None
    envelope: Envelope
    page_cache: PageCache | None = None
    options: dict[str, str] = {}
    outcome: Outcome
    throughput_images_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    elapsed_s: Seconds | None = None
    """From launching the job in the ready target until it has ended, on the host's monotonic clock."""
    open_s: Seconds | None = None
    """From nothing to a target that is ready to launch the job."""
    close_s: Seconds | None = None
    steps: Steps | None = None
    timeline: Timeline | None = None
    metrics: dict[str, Metric] = {}
    """What a probe has measured, in place of a throughput."""
    data_use: DataUse | None = None
    cluster: Cluster | None = None
    ranks: list[Rank] = []
    sharing: Sharing | None = None
    aggressor: str | None = None
    """What ran beside the victim; null where the instances beside it were idle."""
    aggressors: list[Aggressor] = []
    clock_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    substitutes: list[str] = []
    """What stood in for what this host lacks; shown wherever the numbers are shown."""
    environment: Environments
    conditions: Conditions | None = None
    resources: Resources | None = None
    details: dict[str, Any] = {}

    @model_validator(mode="after")
    def _numbers_only_when_measured(self) -> Self:
        measured = self.throughput_images_per_s is not None or bool(self.metrics)
        if self.outcome.status == "ok" and not (measured and self.elapsed_s is not None):
            raise ValueError("a trial that is ok has elapsed_s, and throughput_images_per_s or metrics")
        if self.outcome.status == "failed" and measured:
            raise ValueError("a failed trial has no throughput and no metrics")
        return self

    @model_validator(mode="after")
    def _aggressors_enclose_the_victim(self) -> Self:
        """A trial whose victim was not under load all the time must not be taken for one that was."""
        if self.outcome.status == "ok" and self.aggressor is not None:
            ends_s = [one.aggression.ended_s if one.aggression else 0.0 for one in self.aggressors]
            if not ends_s or min(ends_s) < (self.elapsed_s or 0.0):
                raise ValueError("the measured steps of every aggressor last until the victim has ended")
        return self
