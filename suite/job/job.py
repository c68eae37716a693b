"""The job: everything that decides what a number means, as one frozen object.

A plan, every trial and every record hold it whole. Trials are compared exactly when their jobs agree, apart from what a
comparison varies on purpose (the target, its replica, ablation and aggressor, which stand beside the job).
"""

import shlex
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta
from pydantic import Field

from suite.job.command import CommandJob
from suite.job.datasets import Dataset, PageCache
from suite.job.distributed import DistributedJob
from suite.job.envelope import GIB, Envelope
from suite.job.preemption import Preemption
from suite.job.profiles import Recipe, Sizes
from suite.job.serving import Serving
from suite.job.sharing import Sharing
from suite.part import MOST, Part
from suite.targets import OwnMachine

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}$"
_DIGEST = r"^[0-9a-f]{64}$"
Name = Annotated[str, Field(pattern=_NAME), Meta(pattern=_NAME)]
"""Names come to stand in file names, so they are names and not paths."""
Digest = Annotated[str, Field(pattern=_DIGEST), Meta(pattern=_DIGEST)]
SEQUENTIAL = "sequential"
CpuCapability = Literal["default", "avx2", "avx512"]
CPU_CAPABILITIES: tuple[CpuCapability, ...] = ("default", "avx2", "avx512")
"""Levels of vector instructions, lowest first, as torch's ATen names them."""


class Devices(Part):
    """The devices that a job computes on, and how it uses several of one instance together."""

    device: Literal["cpu", "cuda"] = "cpu"
    devices: Annotated[int, Field(gt=0)] = 1
    parallel: Literal["none", "parameter-cpu", "ddp"] = "none"
    sync: Literal["span"] | None = None
    """Where the host waits for the GPU: at the ends of the measured span alone. None for after each step."""


class Loading(Part):
    """The way a job reads its data set. ``loader_workers`` is None where each instance has one process per CPU."""

    decoder: Literal["auto", "simplejpeg", "pillow"] = "auto"
    loader_workers: Annotated[int, Field(ge=0)] | None = None
    crop: Literal["random", "centre"] = "random"
    """What the workload takes of an image: a random part, perhaps mirrored, or the largest square in the middle."""


class Alternating(Part):
    """The alternating design: targets of a block are open at once, and their jobs take their steps in turns."""

    design: Literal["alternating"] = "alternating"
    rounds: Annotated[int, Field(gt=0, le=MOST)]
    """The bursts of one job."""
    burst_steps: Annotated[int, Field(gt=0, le=MOST)]
    partner: str | None = None
    """The target that takes turns with bare metal alone; None where all targets of the block do, with each other."""


class TimeSlices(Part):
    """The alternating design of programs: each runs for a slice of time, and is stopped until its next one."""

    design: Literal["alternating"] = "alternating"
    slice_s: Annotated[float, Field(gt=0, le=MOST)]
    partner: str | None = None
    """As that of ``Alternating``."""


class Layers(Part):
    """The layers that the targets are made of."""

    engine: str | None = None
    provider: str | None = None
    """The machine provider that boots the virtual machines."""
    accelerator: str | None = None
    image: str | None = None
    """The image's digest."""
    oci_runtime: str | None = None
    """The OCI runtime that the engine is asked for, in place of its usual one."""
    runtime_class: str | None = None
    """The runtime class of pods: what runs them in place of the node's usual runtime."""
    pod_requests: str | None = None
    """The share of their limits that pods request of their node; None for all of it."""
    gpus: str | None = None
    """GPUs of containers and bare metal, by UUID; on machines of an inventory as they were named."""
    confinement: Literal["user"] | None = None
    """How the job on bare metal is confined: as a user of its own, without capabilities. None for the user who runs the
    suite."""


SEED_IS_NOT_ALL = "a workload that the seed alone does not decide"


class Job(Part):
    """One job: what is trained or probed, on what, with which data, and how several instances are arranged."""

    scenario: Name
    model: Name
    """The workload that is trained or served, the probe, or the name of the command."""
    data: Name
    profile: Name
    recipe: Recipe = "reference"
    sizes: Sizes | None = None
    """None for a job that trains nothing."""
    reproducible: Literal[False] | None = None
    """False where a workload declares that the seed alone does not decide its losses and weights."""
    shares_batch: Literal[True] | None = None
    """True where the workers exchange messages: a round is one of all of them."""
    unit: Name | None = None
    """What the throughput counts: ``images``, ``tokens``. None for a job that has none."""
    envelope: Envelope
    machines: tuple[OwnMachine, ...] = ()
    """The machines of an inventory that are listed for the targets; empty where all targets are opened from here."""
    devices: Devices = Devices()
    isa: Literal["shared", "native"] | None = None
    cpu_capability: CpuCapability | None = None
    """The level to which the libraries of every target are capped; None for no cap."""
    dataset: Dataset | None = None
    page_cache: PageCache | None = None
    loading: Loading | None = None
    checkpoint: Literal["on", "fsync"] | None = None
    """Whether a checkpoint is written after every epoch, and is then on the disk. None for a job that writes none."""
    preemption: Preemption | None = None
    """The moments at which the instance of a second training is killed. None for no second training."""
    generate: Annotated[int, Field(gt=0, le=MOST)] | None = None
    """The images that are generated after the last measured step; None for none."""
    keep_model: Literal["last", "each"] | None = None
    """Which models are kept: the last, or that of each epoch. None for none."""
    resize_at: str | None = None
    """The numbers of CPUs from measured steps on, ``0=1,10=2``. None for a job that keeps those of its envelope."""
    distributed: DistributedJob | None = None
    sharing: Sharing | None = None
    command: CommandJob | None = None
    """The program that is run as it is, in place of a training or a probe. Its files are the ``dataset``."""
    serving: Serving | None = None
    """The load of a generator that is served, in place of a training."""
    workload_sha256: Digest | None = None
    """Digest of the source of a workload or probe that another package provides."""
    options: Mapping[Name, str | int | float | bool | tuple[str, ...]] = Field(default_factory=dict)
    """Options that a scenario or a container engine of another package declares."""
    layers: Layers = Layers()
    turns: Alternating | TimeSlices | None = None
    """None for the sequential design: a trial has the machine to itself from its launch to its end."""

    @property
    def of_pods(self) -> bool:
        return self.envelope.of_cluster or bool(self.distributed and self.distributed.of_pods)

    def machine_of(self, target: str) -> OwnMachine | None:
        return next((machine for machine in self.machines if target in machine.targets), None)

    def envelope_of(self, target: str) -> Envelope:
        """Return the envelope with the CPUs of one target, in its machine's own numbers."""
        machine = self.machine_of(target)
        if machine:
            return self.envelope.model_copy(update={"cpus": machine.cpus})
        return self.envelope.of_target(target)

    @property
    def rounds_freely(self) -> str:
        """Return why equal machines need not compute it to the same bits; empty where they must."""
        distributed = self.distributed
        ranks = self.devices.devices if self.devices.parallel == "ddp" else 1
        if distributed and distributed.strategy == "all-reduce":
            ranks = distributed.workers
        why = {
            SEED_IS_NOT_ALL: self.reproducible is False,
            "a GPU": self.devices.device != "cpu",
            # The sum of two numbers has one order; the order of more is promised by no library.
            "sums over ranks in any order": ranks > 2,
            "asynchronous updates": distributed is not None and distributed.strategy == "parameter-server-async",
        }
        return ", ".join(name for name, holds in why.items() if holds)

    @property
    def global_batch(self) -> int | None:
        """Return the units that a step of all ranks, with all devices, trains on; None where nothing is trained."""
        ranks = self.distributed.workers if self.distributed and not self.one_batch else 1
        devices = 1 if self.shares_batch else self.devices.devices
        if self.sizes:
            return self.sizes.batch * devices * ranks
        return None

    @property
    def one_batch(self) -> bool:
        """Return whether all workers share one batch: the ranks of a split GAN, and those that exchange messages."""
        return bool(self.shares_batch or (self.distributed and self.distributed.strategy == "split"))

    @property
    def epochs(self) -> int:
        """Return the number of whole epochs that are measured; 0 for a job of a number of steps."""
        return (self.sizes and self.sizes.epochs) or 0

    @property
    def epoch_steps(self) -> int:
        """Return the steps of one epoch: the whole batches of the data set, or those up to a checkpoint."""
        units = self.dataset.images if self.dataset else 0
        return units // (self.global_batch or 1) or (self.sizes.steps if self.sizes else 0) // (self.epochs or 1)

    @property
    def repeats_images(self) -> bool:
        """Return whether the data set has fewer images than all steps take; epochs see all of them each time."""
        if not (self.dataset and self.sizes) or self.epochs:
            return False
        steps = self.sizes.warmup_steps + self.sizes.steps
        return self.dataset.images < steps * (self.global_batch or 0)

    @property
    def has_elapsed_time(self) -> bool:
        """Return whether its trials are timed as a whole: that of steps in turns would hold their waiting."""
        return not isinstance(self.turns, Alternating)

    @property
    def design(self) -> str:
        """Return the name of the design, which is part of the names of trials."""
        if not self.turns:
            return SEQUENTIAL
        return self.turns.design + (f"-with-{self.turns.partner}" if self.turns.partner else "")


IN_COLUMNS = ("scenario", "model", "data", "profile", "recipe")
"""Parts of the key that tables show in separate columns."""
PLACES = ("host", "machine", "context", "inventory", "place")
"""The keys of where a trial ran. A place is the context, else the inventory, else the host."""
NOT_IN_KEY: Mapping[str, str] = {
    "envelope.cpus": "which CPUs they are is the machine's affair; how many there are is in the key",
    "envelope.node_cpus": "see envelope.cpus",
    "envelope.node_chosen": "see envelope.cpus",
    "machines.cpus": "see envelope.cpus",
    "layers.gpus": "which cards they are is named as a difference; how many a job computes on is in the key",
    "dataset.digest": "another kind gives another digest",
    "dataset.listing_sha256": "follows from the digest",
    "dataset.images": "follows from the digest",
    "dataset.size_bytes": "follows from the digest",
    "distributed.comm_timeout_s": "decides when a job is given up, and not how fast it is",
    "distributed.guests": "follows from whether any target of the run is a virtual machine",
    "distributed.machines.address": "a machine that is given another address is the same machine",
    "sharing.aggressors": "varied on purpose: each trial says which one it had",
}
"""The fields of a job that do not keep trials apart, each with the reason. All others do."""
_LABELS = {
    "dataset": "data_",
    "distributed.lab": "lab.",
    "distributed.machines": "machines.",
    "machines": "machines.",
    "sharing.workloads": "workloads.",
    "command": "command.",
    "sharing.sources": "sources.",
    "options": "options.",
}
"""The prefixes of names of settings, by the part that they are in; others have none."""


def settings(job: Job) -> dict[str, str]:
    """Return the comparison key of a job but for ``IN_COLUMNS``: every setting as text, by a name for people."""
    parts = leaves(job.model_dump(mode="json", exclude=set(IN_COLUMNS)))
    return {"cpus": str(len(job.envelope.cpus)), **{_label(path): _text(path, value) for path, value in parts}}


@dataclass(frozen=True)
class ComparisonKey:
    """The settings of a job by their names, as one value: equal for trials that may be compared."""

    pairs: tuple[tuple[str, str], ...]

    def without(self, names: Container[str]) -> "ComparisonKey":
        remaining = tuple(pair for pair in self.pairs if pair[0] not in names)
        return ComparisonKey(remaining)

    def __str__(self) -> str:
        # What stands between settings must not stand inside of one.
        return "; ".join(f"{name}={value}".replace("; ", r";\x20") for name, value in self.pairs)


def comparison_key(job: Job) -> ComparisonKey:
    return ComparisonKey(tuple(settings(job).items()))


def leaves(part: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field of the key with its dotted path; of a list of parts, a list of each field's values."""
    for name, value in part.items():
        here = f"{path}.{name}" if path else name
        if here in NOT_IN_KEY or value is None or value in ([], {}):
            continue
        if isinstance(value, dict):
            yield from leaves(value, here)
        elif isinstance(value, list) and all(isinstance(one, dict) for one in value):
            yield from leaves({key: [one.get(key) for one in value] for key in value[0]}, here)
        else:
            yield here, value


def _label(path: str) -> str:
    name = path.rpartition(".")[2]
    for begin, label in _LABELS.items():
        if path.startswith(f"{begin}."):
            return label + path[len(begin) + 1 :]
    if name == "memory_bytes":
        return "memory"
    return name


def _text(path: str, value: object) -> str:
    if path == "envelope.memory_bytes" and isinstance(value, int):
        return f"{value / GIB:.6g} GiB"
    if path in ("command.argv", "command.versus") and isinstance(value, list):
        value = shlex.join(value)
    if isinstance(value, list):
        return "+".join(",".join(map(str, one)) if isinstance(one, list) else str(one) for one in value)
    return str(value)
