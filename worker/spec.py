"""The requests to the worker: a training, a probe, an aggressor, a command, a service or its load.

Each request is declared here alone. The host constructs and encodes it; inside the target it is decoded strictly:
an unknown key, a wrong type or a number out of bounds is refused. Neither side imports torch for that.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from worker.data.kinds.kind import DataKind
from worker.members import Plugin, load_member
from worker.protocol import SpecError
from worker.workloads.workload import Shape, Workload

_Request = TypeVar("_Request", bound="Strict")
_Count = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1)]
_QUOTED_CHARACTERS = 100
FEWEST_FOR_FID = 2048
"""The images of which a FID is not refused: as many as its features."""
SPLIT = "split"
DISCRIMINATOR_RANK, GENERATOR_RANK = range(2)
"""The ranks of a split GAN."""
SERVERLESS = ("all-reduce", SPLIT)
STRATEGIES = ("parameter-server", "parameter-server-async", *SERVERLESS)


class Strict(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all requests and of their parts."""

    def encoded(self) -> bytes:
        """Return the request as one line of JSON, without the keys that have their defaults."""
        return msgspec.json.encode(self)


class Data(Strict, frozen=True):
    """A data set, and how it is read. ``loader_workers`` are of all of the job's processes together."""

    kind: str
    """Where the kind is declared: ``module:attribute``."""
    directory: str
    loader_workers: _Count
    decoder: Literal["auto", "simplejpeg", "pillow"]
    crop: Literal["random", "centre"] = "random"
    """The part of an image that is taken; see ``worker.data.decode``."""
    frame_stride: _Positive = 1
    """Of the frames of a video, one in so many is taken."""
    plugin: Plugin | None = None
    """The kind's module, where it is not part of the image."""

    def __post_init__(self) -> None:
        if not self.directory.startswith("/"):
            raise ValueError(f"directory is {self.directory!r}; it must be an absolute path")

    def load_kind(self) -> DataKind:
        """Return the kind's declaration, which has the ``channels`` of its images. Raises SpecError without one."""
        return load_member("kind", self.kind, self.plugin, DataKind)


class Membership(Strict, frozen=True):
    """One rank's view of a distributed job. Ranks count the servers first and then the workers.

    Rank 0 holds the rendezvous (a TCP store at ``master``:``port``), and is the last one to leave: a server outlives
    all workers in any case. ``timeout_s`` is how long a rank may be silent before it counts as lost;
    ``join_timeout_s`` how long the ranks wait for each other at the start, where one may boot longer than another.
    """

    strategy: str
    rank: int
    workers: int
    servers: int
    master: str
    port: int
    interface: str
    timeout_s: float = 60.0
    join_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy is {self.strategy!r}; it can be {', '.join(STRATEGIES)}")
        if self.workers < 1:
            raise ValueError(f"workers is {self.workers}; a job needs one at least")
        if self.strategy == SPLIT and self.workers != 2:
            raise ValueError(f"workers is {self.workers}; {SPLIT} has one for each of two networks")
        if self.strategy in SERVERLESS and self.servers:
            raise ValueError(f"servers is {self.servers}; {self.strategy} has none")
        if self.strategy not in SERVERLESS and self.servers < 1:
            raise ValueError(f"servers is {self.servers}; {self.strategy} needs one at least")
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank is {self.rank}; with {self.world} ranks it is 0 to {self.world - 1}")
        if min(self.timeout_s, self.patience_s) <= 0:
            raise ValueError("timeouts must be longer than no time")

    @property
    def world(self) -> int:
        return self.servers + self.workers

    @property
    def worker_ranks(self) -> range:
        return range(self.servers, self.world)

    @property
    def is_server(self) -> bool:
        return self.rank < self.servers

    @property
    def generates(self) -> bool:
        """Return whether this is the rank of a split GAN that has the generator."""
        return self.strategy == SPLIT and self.rank == GENERATOR_RANK

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.world) if rank != self.rank]

    @property
    def patience_s(self) -> float:
        if self.join_timeout_s is None:
            return self.timeout_s
        return self.join_timeout_s

    def name(self, rank: int) -> str:
        """``server 0 (rank 0)``, ``worker 1 (rank 2)``: the user's own terms, and the ranks of torch's messages."""
        role, number = ("server", rank) if rank < self.servers else ("worker", rank - self.servers)
        return f"{role} {number} (rank {rank})"

    def names(self, ranks: list[int]) -> str:
        return ", ".join(map(self.name, ranks))


class StepInjury(Strict, frozen=True):
    """The injury of ``bench selftest``: ``late-step`` sleeps while it computes, ``late-batch`` as it waits for data."""

    kind: Literal["late-step", "late-batch", "held-memory"]
    share: float = 0.0
    """The time to add, as a share of all measured steps."""
    every: int = 1
    """The steps of which one bears the time of all."""
    held_bytes: int = 0
    """The memory that ``held-memory`` touches and keeps to the end."""


class Turns(Strict, frozen=True):
    """The measured steps in bursts, each begun by a line of the host's; see ``worker.turns``.

    A probe has measurements in place of steps.
    """

    rounds: _Positive
    burst_steps: _Positive


class Checkpointing(Strict, frozen=True):
    """A checkpoint after every epoch; with ``fsync`` it is on the disk before the training goes on."""

    mode: Literal["on", "fsync"]
    directory: str | None = None
    """The directory from whose last checkpoint the job goes on; None for one that is removed with the job."""


class Shaped(Strict, frozen=True, kw_only=True):
    """Base of the requests that build a network for images or sequences."""

    image_px: _Positive | None = None
    """The width and height of the images; None for a workload that has none."""
    channels: _Positive | None = None
    """The channels of the images; None for the three of a workload that takes no other number."""
    tokens: _Positive | None = None
    """The length of the sequences; None for a workload that has none."""
    depth: _Positive | None = None
    """The depth of the network; None for a workload that has no choice of it."""

    @property
    def shape(self) -> Shape:
        return Shape(self.image_px or 0, self.channels or 3, self.tokens or 0, self.depth or 0)


class Spec(Shaped, frozen=True):
    """One training job. ``batch`` is per device, ``threads`` for all of the job's processes together."""

    workload: str
    """Where the workload is declared: ``module:attribute``."""
    batch: _Positive
    warmup_steps: _Count
    steps: _Count
    """The measured steps; 0 for those of ``epochs`` of a data set that only the target can count."""
    threads: _Positive
    recipe: Literal["reference", "tuned"]
    seed: _Count
    device: Literal["cpu", "cuda"]
    devices: _Positive
    parallel: Literal["none", "parameter-cpu", "ddp"]
    channels_last: bool = False
    """Whether images and weights have their channels last under any recipe."""
    sync: Literal["span"] | None = None
    """Where the host waits for the GPU: at the ends of the measured span; None for after each step."""
    threads_at: dict[int, int] = {}
    """The number of threads from measured steps on, at which the host changes the CPUs: said as event ``resize``."""
    data: Data | None = None
    """None where data are drawn."""
    distributed: Membership | None = None
    """This rank's view of the job it is part of; None for a job on one instance."""
    plugin: Plugin | None = None
    """The workload's module, where it is not part of the image."""
    injury: StepInjury | None = None
    """The load that is added on purpose; None except in a self-test."""
    turns: Turns | None = None
    """None for a job that takes its steps one after the other."""
    epochs: _Positive | None = None
    """The whole epochs that ``steps`` are, each of which ends with the checkpoint if data are drawn; else None."""
    learning_rate: Annotated[float, Meta(gt=0)] | None = None
    """The learning rate of every optimizer; None for those of the workload."""
    settle_s: Annotated[float, Meta(gt=0)] | None = None
    """The least seconds of a training before this one, which is forgotten, until its steps are level; None for none."""
    least_s: Annotated[float, Meta(gt=0)] | None = None
    """The least seconds that the measured steps take; None for any."""
    most_steps: _Positive | None = None
    """The most steps that a settled job takes in place of ``steps``, so that they last ``least_s``; None: no others."""
    checkpoint: Checkpointing | None = None
    """None for a job without checkpoints."""
    model_file: str | None = None
    """The file that the trained network is written to, for who serves it; None to forget it."""
    within_s: _Positive | None = None
    """The seconds that all epochs may take; the job ends after the first epoch if they will take more."""
    generate: _Positive | None = None
    """The images that are generated after the last measured step; None for none."""
    keep_model: Literal["last", "each"] | None = None
    """Whether the network that makes images is said after the training: the last one, or that of each epoch."""

    @property
    def batches(self) -> int:
        """Return how many instances take a batch of their own in each step."""
        if self.distributed and self.distributed.strategy != SPLIT:
            return self.distributed.workers
        return 1

    def load_workload(self) -> Workload:
        """Return the workload's declaration. Raises SpecError where there is none."""
        return load_member("workload", self.workload, self.plugin, Workload)


class Request(Strict, frozen=True):
    """One probe, or one aggressor that trains nothing."""

    member: str
    """Where the probe or the aggressor is declared: ``module:attribute``."""
    threads: _Positive
    directory: str | None
    size: Literal["smoke", "quick", "paper"]
    device: Literal["cpu", "cuda"]
    plugin: Plugin | None = None
    """The module that declares it, where it is not part of the image."""
    turns: Turns | None = None
    """The turns in which a probe is measured again and again; null where it is measured once."""


class AggressorRequest(Strict, frozen=True):
    """An aggressor: a training without an end, or the member of a registry."""

    training: Spec | None = None
    aggressor: Request | None = None

    def __post_init__(self) -> None:
        if (self.training is None) == (self.aggressor is None):
            raise ValueError("the specification of an aggressor is an object with one key: training, or aggressor")

    @property
    def work(self) -> Spec | Request:
        return self.training or cast(Request, self.aggressor)


class ProgramRequest(Strict, frozen=True, kw_only=True):
    """A program of the user's own. ``directory`` holds its files, or is null; it works in a copy of them."""

    argv: Annotated[tuple[str, ...], Meta(min_length=1)]
    threads: _Positive
    directory: str | None
    tmpfs_bytes: _Count
    """The size of /dev/shm in every target."""
    scratch: str
    """The directory for the copy, and the program's HOME."""


class CommandRequest(ProgramRequest, frozen=True, kw_only=True):
    """One command of the user's own."""

    throughput: str | None
    """A regular expression, ``json``, ``json:PATH``, ``auto``, the name of a series, or null where none is read."""
    decimal_mark: Literal["point", "comma"] | None = None
    slice_s: Annotated[float, Meta(gt=0)] | None = None
    """How long it runs in each of its turns, which lines of the host's begin; null to run in one piece."""


class ServerRequest(ProgramRequest, frozen=True, kw_only=True):
    """A server of the user's own, which a line on standard input ends."""

    port: _Positive


class NullServerRequest(Strict, frozen=True):
    """A server that answers every request at once, in the form of an ``api``."""

    api: Literal["http", "openai"]
    port: _Positive
    threads: _Positive


class GeneratorSpec(Shaped, frozen=True, kw_only=True):
    """One generator of a service. ``dataset`` and ``model`` are the names by which requests ask for it."""

    workload: str
    """Where the workload is declared: ``module:attribute``."""
    dataset: str
    model: str
    seed: _Count
    model_file: str | None = None
    """The file of the trained network; None for weights that are drawn from the seed."""
    weights_sha256: str | None = None
    """The digest that the weights of the file must have."""
    plugin: Plugin | None = None
    """The workload's module, where it is not part of the image."""

    def load_workload(self) -> Workload:
        """Return the workload's declaration. Raises SpecError where there is none that generates."""
        workload = load_member("workload", self.workload, self.plugin, Workload)
        if not workload.generates:
            raise SpecError(f"workload is {self.workload}, which generates nothing")
        return workload


class ServeSpec(GeneratorSpec, frozen=True, kw_only=True):
    """A generator behind HTTP, and the others of the same service."""

    threads: _Positive
    device: Literal["cpu", "cuda"]
    address: str
    port: _Positive
    names: tuple[str, ...] = ()
    """The names, in lower case, by which it is asked; addresses need none."""
    others: tuple[GeneratorSpec, ...] = ()


class LoadRequest(Strict, frozen=True):
    """The load of a server: which requests it gets, how many, and when."""

    address: str
    port: _Positive
    bodies: Annotated[tuple[str, ...], Meta(min_length=1)]
    """The bodies of requests, sent in turn; an empty one for requests without."""
    requests: _Positive
    """The requests of each part of the measurement."""
    clients: _Positive
    """The connections at saturation, and at a rate the most that are open."""
    rates: tuple[float, ...]
    """Requests per second."""
    seed: _Count
    timeout_s: _Positive
    """How long an answer may take."""
    patience_s: _Positive
    """How long the first may."""
    threads: _Positive
    tokens: Annotated[int, Meta(ge=2)] | None = None
    """The tokens of each answer of a generator; None where it is an image."""
    api: Literal["generator", "http", "openai"] = "generator"
    method: str = "POST"
    path: str = "/generate"
    ready: str | None = None
    """The path that answers once the server is ready; None if the first answer shows it."""


class QualitySpec(Strict, frozen=True):
    """Models whose images are held against real ones; ``spec`` is a training of the suite's classifier on these."""

    spec: Spec
    models: dict[str, str]
    """The files of the models by the digests of their weights."""
    samples: Annotated[int, Meta(ge=10, le=100_000)]
    inception: str | None = None
    """The file of Inception's weights; None to train the classifier."""

    @property
    def measures_fid(self) -> bool:
        return self.spec.shape.channels == 3 and self.samples >= FEWEST_FOR_FID


def parsed(into: type[_Request], text: str) -> _Request:
    """Return the request that a JSON object holds. Raises SpecError that names the key, its value and what would do."""
    try:
        return msgspec.json.decode(text, type=into)
    except msgspec.ValidationError as error:
        decoded = msgspec.json.decode(text)
        raise SpecError(_explained(str(error), decoded, into)) from None
    except msgspec.DecodeError as error:
        raise SpecError(f"the specification is not JSON: {error}") from None


def parse_spec(text: str) -> Spec:
    """Return the specification of a training, whose parts fit together. Raises SpecError."""
    spec = parsed(Spec, text)
    check(spec)
    return spec


def check(spec: Spec) -> None:
    """Raise SpecError unless the parts of a training fit together, and its workload and data kind can be loaded."""
    for conflicts in _CONFLICTS:
        for conflict in conflicts(spec):
            raise SpecError(conflict)
    if spec.data:
        spec.data.load_kind()


def _workload_conflicts(spec: Spec) -> Iterator[str]:
    workload = spec.load_workload()
    if workload.communicates and not spec.distributed and spec.parallel != "ddp":
        yield f"{spec.workload} exchanges messages between ranks, and the job has one"
    if spec.sync and workload.metrics:
        metric = workload.metrics[0]
        source = "from the times of its steps" if metric.per == "job" else "after each step, for which the host waits"
        yield f"sync is {spec.sync!r}; {spec.workload} makes {metric.name} {source}"
    if (spec.generate or spec.keep_model) and (spec.turns or not workload.makes_images):
        chosen = f"generate is {spec.generate}, keep_model {spec.keep_model}"
        yield f"{chosen}; {spec.workload} makes no images, or takes turns"


def _device_conflicts(spec: Spec) -> Iterator[str]:
    several = spec.parallel != "none"
    one_device = ("injury", "model_file", "checkpoint", "generate", "keep_model") if several else ()
    one_instance = ("injury", "model_file", "checkpoint", "generate", "threads_at") if spec.distributed else ()
    for name in filter(partial(getattr, spec), one_device):
        yield f"{name} is given with parallel {spec.parallel!r}; only a job of one device has it"
    for name in filter(partial(getattr, spec), one_instance):
        yield f"{name} is given in a distributed job; only a job on one instance has it"
    if not several and spec.devices != 1:
        yield f"devices is {spec.devices} with parallel 'none'; several need 'parameter-cpu' or 'ddp'"
    if spec.parallel == "ddp" and spec.threads < spec.devices:
        yield f"threads is {spec.threads}; ddp needs one for each of its {spec.devices} processes"
    if spec.parallel == "ddp" and spec.turns:
        yield "turns is given; the processes of ddp take none"


def _joined_conflicts(spec: Spec) -> Iterator[str]:
    membership = spec.distributed if spec.parallel != "none" else None
    if membership and (spec.parallel == "ddp" or membership.strategy in SERVERLESS):
        yield f"parallel is {spec.parallel!r} in a distributed job; there it is 'parameter-cpu', with parameter servers"


def _timing_conflicts(spec: Spec) -> Iterator[str]:
    pieces = bool(spec.distributed or spec.turns)
    if (spec.settle_s or spec.least_s) and (pieces or spec.parallel == "ddp"):
        yield f"settle_s is {spec.settle_s}; only one process that takes its steps in one piece settles before them"
    if spec.sync and (pieces or spec.epochs or spec.parallel != "none" or spec.device == "cpu"):
        yield "sync is 'span'; only one GPU that takes its steps in one piece leaves them without times"


def _lasting_conflicts(spec: Spec) -> Iterator[str]:
    if spec.most_steps and (spec.epochs or not (spec.settle_s and spec.least_s)):
        yield f"most_steps is {spec.most_steps}; only a job of steps that settles has more of them, to last ``least_s``"


def _step_conflicts(spec: Spec) -> Iterator[str]:
    turns = spec.turns
    if not spec.steps and not all((spec.epochs, spec.data, spec.model_file)):
        yield "steps is 0; only a job that writes a model of epochs of a data set counts them itself"
    if spec.injury and spec.injury.share and spec.warmup_steps < 3:
        yield f"warmup_steps is {spec.warmup_steps}; an injury takes its size from 3 or more"
    if turns and spec.steps != (steps := turns.rounds * turns.burst_steps):
        yield f"steps is {spec.steps}; {turns.rounds} rounds of {turns.burst_steps} steps are {steps}"
    if spec.keep_model == "each" and not spec.epochs:
        yield "keep_model is 'each'; only a job of whole epochs has more than the last"
    if spec.data and spec.image_px is None:
        yield "data is given without image_px; only a workload of images reads a data set"


def _epoch_conflicts(spec: Spec) -> Iterator[str]:
    epochs = spec.epochs
    if spec.checkpoint and not epochs:
        yield "checkpoint is given; only a job of whole epochs has checkpoints"
    if epochs and (spec.steps % epochs or (spec.data and spec.warmup_steps)):
        yield f"steps is {spec.steps} and warmup_steps {spec.warmup_steps}; they must be {epochs} epochs"
    if epochs and (spec.turns or not (spec.data or spec.checkpoint)):
        yield "epochs is given; only a job that reads a data set or writes checkpoints, and takes no turns, has them"


def _explained(message: str, given: Any, into: type) -> str:  # noqa: ANN401 (any JSON)
    """Return msgspec's message with the key, its value, and what the key could be."""
    problem, _, path = message.partition(" - at `$")
    keys = re.findall(r"[^.\[\]`]+", path)
    declared: Any = msgspec.inspect.type_info(into)
    for key in keys:
        given = given[int(key) if isinstance(given, list) else key]
        fields = {field.name: field.type for field in getattr(declared, "fields", ())}
        declared = fields.get(key)
        if isinstance(declared, msgspec.inspect.UnionType):  # only with None
            declared = declared.types[0]
    name = ".".join(keys) or "the specification"
    text = repr(given)
    where = name if isinstance(given, dict) or not keys else f"{name} is {text[:_QUOTED_CHARACTERS]}"
    problem = problem[:1].lower() + problem[1:]
    if "unknown field" in problem or "missing" in problem:
        return f"{where}: {problem}; known are {', '.join(field.name for field in declared.fields)}"
    if isinstance(declared, msgspec.inspect.LiteralType):
        return f"{where}; it can be {', '.join(map(str, declared.values))}"
    return f"{where}: {problem}"


_CONFLICTS = (
    _device_conflicts,
    _timing_conflicts,
    _lasting_conflicts,
    _joined_conflicts,
    _step_conflicts,
    _epoch_conflicts,
    _workload_conflicts,
)
