"""Records: what one trial leaves behind. One JSON file each; enough to rebuild every table on another machine.

What was not measured is ``null``, never zero. ``record.schema.json`` beside this file is the published schema.
The machines are described in ``environment``, what the job used in ``usage``.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, Literal, Self

from msgspec import Meta
from pydantic import AfterValidator, Field, RootModel, model_validator
from pydantic.dataclasses import dataclass

from suite.job.command import UNITS
from suite.job.distributed import Role
from suite.job.job import Digest, Job, Name
from suite.part import LEAST_MEASURED, Count, Part, RunId, Seconds, Words
from suite.records.environment import Environment, Environments
from suite.records.fields import STRICT, Amount, AtLeastOne, AtLeastTwo, Negative, Number, Positive, Share, Text
from suite.records.usage import Conditions, Resources, Usage
from suite.trial_names import TrialId, TrialKey
from suite.untrusted.grid import check_grid

SCHEMA_VERSION = 3
EXACT = 1e-6
"""The share by which numbers may differ that were computed from each other: JSON keeps all digits."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Steps:
    """The measured steps, one column per phase, each of length ``steps``; a phase that a job does not have is null.

    ``elapsed_s`` is the whole step; the phases are parts of it: waiting for data, copying host to device, computing
    (forward, backward and update), communicating with other ranks or with the parameter device. If the host waited for
    the GPU at the ends of the span alone (``job.devices.sync``), steps have losses and no times: all of these are null.
    """

    elapsed_s: list[Seconds] | None = None
    data_s: list[Seconds] | None = None
    copy_s: list[Seconds] | None = None
    compute_s: list[Seconds] | None = None
    communicate_s: list[Seconds] | None = None
    phases: dict[Words, list[Seconds]] = field(default_factory=dict)
    """The seconds of the phases of computing that the workload names; together at most ``compute_s``."""
    losses: dict[Words, list[Number]] = field(default_factory=dict)
    """What the workload's step gives, by name: its losses above all."""

    @model_validator(mode="after")
    def _equal_lengths(self) -> Self:
        times = (self.elapsed_s, self.data_s, self.compute_s)
        if None in times and any((*times, self.copy_s, self.communicate_s, self.phases)):
            raise ValueError("steps have elapsed_s, data_s and compute_s, or no times at all")
        columns = (*times, self.copy_s, self.communicate_s)
        named = (*self.phases.values(), *self.losses.values())
        lengths = set()
        for column in (*columns, *named):
            if column is not None:
                lengths.add(len(column))
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"the columns of the steps have the lengths {sorted(lengths)}")
        return self


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Timeline:
    """The parts of the elapsed time, on the worker's monotonic clock; the launch and the exit on the host's.

    Of a job of whole epochs ``measured_s`` is the sum of these, and what is done between them is a part of its own.

    ``launch_s`` is from the launch on the host until the worker's first line comes in; ``teardown_s`` from the last
    measured step to the worker's last line, but for ``generating_s``; ``exit_s`` from that line until the job has
    ended: the interpreter with torch in it takes up to a second to end.
    """

    launch_s: Seconds | None = None
    imports_s: Seconds | None = None
    build_s: Seconds | None = None
    warmup_s: Seconds | None = None
    measured_s: Seconds | None = None
    between_epochs_s: Seconds | None = None
    """Checkpoints, and the collection of garbage; null for a job of a number of steps without checkpoints."""
    generating_s: Seconds | None = None
    """Generating images with the trained network; null for a job that generates none."""
    teardown_s: Seconds | None = None
    exit_s: Seconds | None = None

    @property
    def measured_span(self) -> tuple[float, float] | None:
        """Return the begin and the end of the measured steps, since the launch; None where a part is unknown."""
        before_s = (self.launch_s, self.imports_s, self.build_s, self.warmup_s)
        if None in before_s or self.measured_s is None:
            return None
        begin_s = math.fsum(filter(None, before_s))
        return begin_s, begin_s + self.measured_s + (self.between_epochs_s or 0.0)


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Checkpoints:
    """The checkpoints of a trial, one after each epoch."""

    seconds: Annotated[list[Seconds], Field(min_length=1), Meta(min_length=1)]
    size_bytes: Count
    """The size of the last one."""
    filesystem: Words | None = None
    """The file system that they were written to, in the target: ``tmpfs`` is memory, without a disk."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Epochs:
    """The epochs of a training, or the share of one that its steps were."""

    steps: AtLeastOne
    """The steps of one epoch: the whole batches that the data set fills or, of drawn data, those between checkpoints.
    """
    seconds: list[Seconds] = field(default_factory=list)
    """The time of each whole epoch, from asking for its first batch to the end of its last step."""
    scaled_share: Positive | None = None
    """The share of an epoch that was measured, and from which the time of a whole one was scaled; null for whole ones.
    """
    checkpoints: Checkpoints | None = None

    def __post_init__(self) -> None:
        if bool(self.seconds) == bool(self.scaled_share):
            raise ValueError("either whole epochs were measured, or a share of one")

    def metrics(self, measured_s: float, *, of_data: bool) -> "dict[str, MetricValue]":
        """Return the metrics of epochs. An epoch of drawn data, the steps between checkpoints, has no time."""
        if self.scaled_share:
            return {SCALED_EPOCH: MetricValue(value=measured_s / self.scaled_share, unit="s", better="less")}
        written_s = self.checkpoints.seconds if self.checkpoints else []
        columns = {FIRST_EPOCH: self.seconds[:1], EPOCH: self.seconds[1:]} if of_data else {}
        return {
            name: MetricValue(
                value=statistics.median(seconds),
                unit="s",
                better="less",
                samples=seconds,
            )
            for name, seconds in {**columns, CHECKPOINT: written_s}.items()
            if seconds
        }

    def check_steps(self, steps_s: Sequence[float]) -> None:
        """Raise ValueError if the steps of an epoch take longer than it does."""
        for number, epoch_s in enumerate(self.seconds):
            of_epoch = steps_s[number * self.steps : (number + 1) * self.steps]
            taken_s = math.fsum(of_epoch)
            if taken_s > epoch_s * (1 + EXACT):
                raise ValueError(f"epoch {number + 1} has {epoch_s:.6g} s, and its steps take {taken_s:.6g} s")


EPOCH = "epoch"
FIRST_EPOCH = "first-epoch"
SCALED_EPOCH = "epoch-scaled"
CHECKPOINT = "checkpoint"
"""The metrics of epochs: the median of those after the first, the first one, the time of a whole epoch as scaled from
a share of one, and the median of the checkpoints."""
EPOCH_METRICS = (EPOCH, FIRST_EPOCH, SCALED_EPOCH, CHECKPOINT)
MAKESPAN = "makespan"
OPENINGS = "openings"
LOST_STEPS = "lost-steps"
PREEMPTION_METRICS = (MAKESPAN, OPENINGS, LOST_STEPS)
"""The metrics of a job that was preempted: the time until its last checkpoint, openings and all but attestation; how
often it was opened; the steps that it took again, by the time that a step takes."""
GENERATING_METRICS = ("first-image", "generated-per-s", "image")


class Grid(RootModel[Annotated[str, AfterValidator(check_grid)]], frozen=True):
    """Images beside each other, as one PNG in base64."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Generated:
    """The images that the trained network generated after the last step, from noise that the seed decides."""

    images: AtLeastOne
    weights_sha256: Digest | None = None
    """The digest of the network that made them, which may be one of several; null if it has no weights."""
    pixels_sha256: Digest
    """The digest of their bytes, by image, row, column and channel."""
    png: Grid | None = None
    """The first of them, at most 16, in rows of four; null where not even one fits in 64 KiB."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class KeptModel:
    """A network that makes images, kept as ``models/WEIGHTS_SHA256.pt`` of the run: equal ones are one file."""

    weights_sha256: Digest
    epoch: Count | None = None
    """The epochs that it was trained for; null for the last of a job without epochs."""
    training_s: Seconds
    """The seconds of training until then, without what is done between epochs."""
    size_bytes: Count


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class DataUse:
    """The data set of a job, and how the job has read it."""

    kind: Text
    sha256: Text
    listing_sha256: Text | None = None
    """The digest of the names and sizes that the target listed right before the launch."""
    images: Count
    size_bytes: Count
    decoder: Text
    loader_workers: Count
    """Processes that read and decode; 0 is the training process itself."""
    page_cache_share: Share | None = None
    """The share of the data set that the target's page cache held right before the launch, by mincore(2)."""
    filesystem: Text | None = None
    """The file system on which the target has it: ``ext4``, ``overlay``, ``virtiofs``."""
    device: Text | None = None
    """The device that is mounted there, as the target calls it: ``/dev/vdb``."""
    images_read: Count
    bytes_read: Count
    """The size of those images' files, warm-up and prefetch included; reads from the disk are in the resources."""
    damaged: Count = 0
    """Images that could not be decoded; their neighbours took their places."""
    damaged_files: list[Text] = field(default_factory=list)
    """The first of them, relative to the data set."""

    @property
    def asked_bytes(self) -> int:
        """The bytes that were asked for at least once. A second epoch finds files in the page cache."""
        return min(self.bytes_read, self.size_bytes)


Compared = Literal["ratio", "difference"]
"""How a number is compared: by ratios, for which it must be above zero; or by differences, as counts and amounts are
that can be zero, and estimates that can be below."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class MetricValue:
    """One number of a probe; its name is the key under which it stands."""

    value: Number
    unit: Text
    better: Literal["more", "less"]
    compared: Compared = "ratio"
    samples: list[Amount] | None = None
    """The repetitions from which the value was taken; null if there was one."""

    def __post_init__(self) -> None:
        if self.compared == "ratio" and self.value < LEAST_MEASURED:
            raise ValueError("a number that is compared by ratios is above zero")


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Link:
    """The connection from one rank to another over TCP, measured right before the job."""

    rank: Count
    """The rank at the other end."""
    source_address: Text
    """The address that the kernel chose, which shows the interface."""
    connect_s: Seconds
    rate_bits_per_s: Positive | None = None
    """The rate without headers; null if the CPUs are emulated, whose speed would limit it."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Rank:
    """One process of a distributed job. Seconds are sums over the measured steps."""

    rank: Count
    role: Role
    address: Text
    interface: Text
    node_address: Text | None = None
    """The address of the node below, if ``address`` is that of a container behind it."""
    environment: Environment
    throughput_per_s: Positive | None = None
    """The throughput of a worker; null for a server."""
    measured_s: Seconds | None = None
    data_s: Seconds | None = None
    compute_s: Seconds | None = None
    communicate_s: Seconds | None = None
    """Communication that a step waited for, without what overlapped with computing."""
    sent_bytes: Count | None = None
    """What it sent for its steps, warm-up included, without headers; all-reduce is reckoned from the gradients."""
    received_bytes: Count | None = None
    interface_sent_bytes: Count | None = None
    """What its interface sent meanwhile, with headers and with whatever else it carried."""
    interface_received_bytes: Count | None = None
    links: list[Link] = field(default_factory=list)
    """The connections to all other ranks."""
    clock_offset_s: Number | None = None
    """Seconds by which its machine's time of day is ahead of the launcher's; null if both are one machine."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Aggression:
    """The work of an aggressor. Seconds count from the victim's launch, on the host's clock, as its lines came in."""

    unit: Text
    """The unit of its work: images, bytes, operations."""
    begun_s: Negative
    """The begin of its measured steps: before the victim was launched."""
    ended_s: Positive
    """The end of the last of them: after the victim had ended."""
    heard_s: list[Number]
    """The times at which it reported that so many ``steps`` and so much ``work`` were done."""
    steps: list[Count]
    work: list[Amount | None]
    """Null if it could not be counted."""
    before_per_s: Amount | None = None
    """Work per second until the victim was launched."""
    beside_per_s: Amount | None = None
    """Work per second while the victim took its measured steps."""
    usage: Usage | None = None
    """Its own accounting, from its start to its end, including the programs that it started."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class AggressorInstance:
    """One instance beside the victim's."""

    environment: Environment
    aggression: Aggression | None = None
    """Null where the instance was idle."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Turn:
    """The worker's account of one of its turns; ``waiting`` is since the turn before, or since it was ready."""

    span_s: Positive
    """From the begin of its first step to the end of its last, or of the slice of time, on the worker's clock; the most
    of several workers."""
    heard_s: Seconds
    """From giving the turn to hearing of the end of that, on the host's clock."""
    steps: Count
    """0 for a slice of time."""
    own_cpu_s: Seconds
    own_waiting_cpu_s: Seconds
    faults: Count
    """Minor page faults during its turn."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Burst(Turn):
    """One turn of a job that takes turns; its steps follow those of its earlier bursts in ``steps``.

    ``cpu_s`` and ``waiting_cpu_s`` are those of everything that serves the target, as the host counts them.
    """

    round: Count
    position: Count
    """Its place in the round, in the order in which the turns were taken."""
    begun_s: Seconds
    """The time at which it was given its turn, on the host's clock, since the first turn of the block."""
    ended_s: Seconds
    """The time at which its end reached the host, on the same clock."""
    cpu_s: Seconds | None = None
    waiting_cpu_s: Seconds | None = None


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Alternation:
    """The turns of one trial of the alternating design, and the block that it took them in."""

    instances: AtLeastTwo
    """The instances that were open at once."""
    block_s: Seconds
    """From opening the first of them until the last was closed."""
    bursts: Annotated[list[Burst], Field(min_length=1), Meta(min_length=1)]

    @property
    def span_s(self) -> float:
        return math.fsum(burst.span_s for burst in self.bursts)

    @property
    def burst_s(self) -> float | None:
        """The geometric mean of the seconds per step of the bursts; None of slices of time.

        A ratio of two of these is the ratio of the bursts of each round, averaged on the log scale over the rounds.
        """
        logarithms = []
        for burst in self.bursts:
            if not burst.steps:
                return None
            logarithms.append(math.log(burst.span_s / burst.steps))
        return math.exp(math.fsum(logarithms) / len(self.bursts))

    @property
    def turn_s(self) -> float:
        lasting_s = (burst.ended_s - burst.begun_s for burst in self.bursts)
        return math.fsum(lasting_s) / len(self.bursts)

    @property
    def beside_s(self) -> float:
        """The mean seconds of a turn in which, by the worker's clock, no step was taken."""
        return self.turn_s - self.span_s / len(self.bursts)

    @property
    def late_s(self) -> float:
        """The same, up to when the end of its last step reached the host."""
        unseen_s = (burst.heard_s - burst.span_s for burst in self.bursts)
        return math.fsum(unseen_s) / len(self.bursts)

    @property
    def waiting_share(self) -> float | None:
        """The CPU seconds of the others' turns, over those of its own turns; None if they were not counted."""
        waited = [burst.waiting_cpu_s for burst in self.bursts if burst.waiting_cpu_s is not None]
        spent = [burst.cpu_s for burst in self.bursts if burst.cpu_s is not None]
        counted = len(waited) == len(spent) == len(self.bursts) and math.fsum(spent) > 0
        if counted:
            return math.fsum(waited) / math.fsum(spent)
        return None


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Outcome:
    """``ok``, or ``failed`` with what is needed to see why."""

    status: Literal["ok", "failed"]
    kind: Words | None = None
    message: str | None = None
    command: list[str] = field(default_factory=list)
    output_tail: str = ""
    remedy: str | None = None

    @model_validator(mode="after")
    def _a_failure_says_why(self) -> Self:
        if self.status == "failed" and not (self.kind and self.message):
            raise ValueError("a failed outcome has a kind and a message")
        return self


class _Version(Part):
    """The field that every record begins with: the version of any other text is found by parsing it."""

    schema_version: Literal[3] = 3


class _Head(TrialKey, _Version):
    """Which trial a record is of, of which job, and how it ended."""

    run_id: RunId
    trial_id: TrialId
    suite_version: Words
    """The suite that measured, with the digest of its code: ``0.1.0+3f9a2c5d41e0``."""
    started_at: Words
    """UTC, ISO 8601."""
    outcome: Outcome
    failed_attempts: Count = 0
    """The earlier attempts of this trial that failed: it counts as a failed one, even if it was repeated and is ok."""
    job: Job
    """The job that decides the meaning of the numbers, as the plan and the trial had it."""


class TrialNumbers(Part):
    """The numbers of a trial that its scenario measures. Those of a failed trial are absent."""

    throughput_per_s: Positive | None = None
    elapsed_s: Seconds | None = None
    """The time from launching the job in the ready target until it has ended, on the host's monotonic clock. Of a
    command in turns without those of others. Null for other jobs that take turns, and so are ``open_s`` and ``close_s``
    of all: while it waited, others had the machine."""
    steps: Steps | None = None
    weights_sha256: Digest | None = None
    """The digest of the trained weights after the last step; of a distributed job the first worker's, as ``steps`` are,
    and of a split GAN that of both digests. Null for a job that trains nothing of the suite's."""
    drawn_sha256: Digest | None = None
    """The digest of the data, order and seed of all steps, warm-up included, equal on every CPU; of several ranks that
    of their digests. Null as ``weights_sha256`` is."""
    last_step: Count | None = None
    """The last step that a command has printed; null for other jobs, and where the pattern has no step."""
    answers_sha256: Digest | None = None
    """The digest of a server's answers to each different request. Null for other jobs, and if it answered one of them
    in several ways."""
    counted: Name | None = None
    """The unit of a command's throughput in its output: ``images``; ``images+steps`` if several things match
    a pattern. Null for other jobs, and if the output names none."""
    unfinished_s: Seconds | None = None
    """The time after the last measured step until nothing computed that the steps had started; waited for up to 1 s.
    Null for a job that takes turns, and where no steps are measured."""
    timeline: Timeline | None = None
    metrics: dict[Words, MetricValue] = {}
    """The numbers of a probe, in place of a throughput, by name; or a training's own, and those of its epochs."""
    data_use: DataUse | None = None
    generated: Generated | None = None
    """Null for a job that generates nothing after its training."""
    kept: list[KeptModel] = []
    """The models that were kept, the first epoch's first."""
    epochs: Epochs | None = None
    """Null for a job without data set and checkpoints, or one that is distributed or takes turns."""
    ranks: list[Rank] = []
    aggressors: list[AggressorInstance] = []
    clock_ratio: Positive | None = None
    """The measured span on the target's clock over the same on the host's, from line to line as they arrived."""
    clock_span_s: Seconds | None = None
    """That span on the host's clock: over a short one the lateness of its lines counts for more."""
    details: dict[str, Any] = {}


class TrialRecord(TrialNumbers, _Head):
    """One trial: one job, launched and finished, or failed."""

    global_batch: Count | None = None
    """The units that one step of all ranks trains on, beside those of one device in ``job.sizes.batch``; null for a job
    that trains nothing."""
    open_s: Seconds | None = None
    """The time that the target needs to be ready to launch the job, without what the suite asks on its own account."""
    opening: dict[Words, Seconds] | None = None
    """The parts of ``open_s``: ``boot``, ``container``, ``network``, ``tree`` and what else was opened."""
    close_s: Seconds | None = None
    alternation: Alternation | None = None
    """The turns of a job of the alternating design."""
    substitutes: Annotated[list[Words], Field(max_length=50), Meta(max_length=50)] = []
    """The substitutes for what this host lacks, shown wherever the numbers are shown."""
    environment: Environments
    conditions: Conditions | None = None
    resources: Resources | None = None

    @property
    def unit(self) -> str | None:
        """The unit of the throughput: that of the job, or of the output if the job leaves it open."""
        if self.job.unit == UNITS and self.counted:
            return self.counted
        return self.job.unit

    @model_validator(mode="after")
    def _numbers_only_when_measured(self) -> Self:
        measured = self.throughput_per_s is not None or bool(self.metrics)
        if self.job.has_elapsed_time:
            timed = self.elapsed_s is not None
        else:
            timed = self.alternation is not None
        if self.outcome.status == "ok" and not (measured and timed):
            raise ValueError(
                "a trial that is ok has elapsed_s, and throughput_per_s or metrics; a job of steps that takes turns "
                "has an alternation in place of the first"
            )
        if self.outcome.status == "failed" and measured:
            raise ValueError("a failed trial has no throughput and no metrics")
        return self

    @model_validator(mode="after")
    def _aggressors_enclose_the_victim(self) -> Self:
        """Refuse a trial whose victim was not under load all the time: it must not be taken for one that was."""
        if self.outcome.status == "ok" and self.aggressor is not None:
            ends_s = [instance.aggression.ended_s if instance.aggression else 0.0 for instance in self.aggressors]
            if not ends_s or min(ends_s) < (self.elapsed_s or 0.0):
                raise ValueError("the measured steps of every aggressor last until the victim has ended")
        return self
