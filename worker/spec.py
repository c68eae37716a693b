"""The specifications that the worker is given, checked key by key: of a training, and of a probe or an aggressor."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from worker.data.kinds.kind import DataKind
from worker.distributed.membership import Membership
from worker.errors import SpecError
from worker.members import Plugin, load_member
from worker.workloads.workload import Shape, Workload

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class Data:
    """A data set, and how it is read. ``loader_workers`` are of all of the job's processes together."""

    kind: str
    """Where the kind is declared: ``module:attribute``."""
    directory: str
    loader_workers: Annotated[int, 0]
    decoder: Literal["auto", "simplejpeg", "pillow"]
    crop: Literal["random", "centre"] = "random"
    """The part of an image that is taken; see ``worker.data.decode``."""
    frame_stride: Annotated[int, 1] = 1
    """Of the frames of a video, one in so many is taken."""
    plugin: Plugin | None = None
    """The kind's module, where it is not part of the image."""

    def __post_init__(self) -> None:
        if not self.directory.startswith("/"):
            raise ValueError(f"directory is {self.directory!r}; it must be an absolute path")

    def load_kind(self) -> DataKind:
        """Return the kind's declaration, which tells the ``channels`` of its images. Raises SpecError without one."""
        return load_member("kind", self.kind, self.plugin, DataKind)


@dataclass(frozen=True)
class StepInjury:
    """The injury of ``bench selftest``: ``late-step`` sleeps while it computes, ``late-batch`` as it waits for data."""

    kind: Literal["late-step", "late-batch", "page-faults", "held-memory"]
    share: float = 0.0
    """The time to add, as a share of all measured steps."""
    every: int = 1
    """The steps of which one bears the time of all."""
    held_bytes: int = 0
    """The memory that ``held-memory`` touches and keeps to the end."""


@dataclass(frozen=True)
class Turns:
    """The measured steps in bursts, each begun by a line of the host's; see ``worker.turns``.

    A probe has measurements in place of steps.
    """

    rounds: Annotated[int, 1]
    burst_steps: Annotated[int, 1]


@dataclass(frozen=True)
class Checkpointing:
    """Checkpoints after every epoch; with ``fsync`` each is on the disk before the training goes on."""

    mode: Literal["on", "fsync"]
    directory: str | None = None
    """The directory from whose last checkpoint the job goes on; None for one that is removed with the job."""


@dataclass(frozen=True)
class Spec:
    """One training job. ``batch`` is per device, ``threads`` for all of the job's processes together."""

    workload: str
    """Where the workload is declared: ``module:attribute``."""
    batch: Annotated[int, 1]
    image_px: Annotated[int, 1]
    warmup_steps: Annotated[int, 0]
    steps: Annotated[int, 1]
    threads: Annotated[int, 1]
    recipe: Literal["reference", "tuned"]
    seed: Annotated[int, 0]
    device: Literal["cpu", "cuda"]
    devices: Annotated[int, 1]
    parallel: Literal["none", "parameter-cpu", "ddp"]
    channels: Annotated[int, 1] | None = None
    """The channels of the images; None for the three of a workload that takes no other number."""
    data: Data | None = None
    """None where data are drawn."""
    distributed: Membership | None = None
    """This rank's view of the job it is part of; None for a job on one instance."""
    plugin: Plugin | None = None
    """The workload's module, where it is not part of the image."""
    injury: StepInjury | None = None
    """What is added on purpose; None but in a self-test."""
    turns: Turns | None = None
    """None for a job that takes its steps one after the other."""
    epochs: Annotated[int, 1] | None = None
    """The whole epochs that ``steps`` are; None for a number of steps."""
    checkpoint: Checkpointing | None = None
    """None for a job without checkpoints."""
    model_file: str | None = None
    """The file that the trained network is written to, for who serves it; None to forget it."""

    @property
    def shape(self) -> Shape:
        """Return the shape of the images."""
        return Shape(self.image_px, self.channels or 3)

    def load_workload(self) -> Workload:
        """Return the workload's declaration. Raises SpecError where there is none."""
        return load_member("workload", self.workload, self.plugin, Workload)


@dataclass(frozen=True)
class Request:
    """One probe, or one aggressor that trains nothing. ``job`` is the text of a fio job file, or null."""

    member: str
    """Where the probe or the aggressor is declared: ``module:attribute``."""
    threads: Annotated[int, 1]
    directory: str | None
    size: Literal["smoke", "quick", "paper"]
    job: str | None
    device: Literal["cpu", "cuda"]
    plugin: Plugin | None = None
    """The module that declares it, where it is not part of the image."""
    turns: Turns | None = None
    """The turns in which a probe is measured again and again; null where it is measured once."""


@dataclass(frozen=True)
class CommandRequest:
    """One command of the user's own. ``directory`` is its working directory, or null."""

    argv: tuple[str, ...]
    threads: Annotated[int, 1]
    directory: str | None
    throughput: str | None
    """A regular expression, ``json``, or null where no throughput is read."""

    def __post_init__(self) -> None:
        if not isinstance(self.argv, list) or not self.argv or not all(isinstance(word, str) for word in self.argv):
            raise ValueError(f"argv is {self.argv!r}; it must be a list of words")


def parse_spec(text: str) -> Spec:
    """Return the specification of a training. Raises SpecError that names the key, its value and what would do."""
    spec = _parse(Spec, parse_object(text), "the specification")
    if spec.distributed and spec.parallel != "none":
        raise SpecError(f"parallel is {spec.parallel!r} in a distributed job; each of its ranks has one device")
    if spec.parallel == "none" and spec.devices != 1:
        raise SpecError(f"devices is {spec.devices} with parallel 'none'; several need 'parameter-cpu' or 'ddp'")
    if spec.parallel == "ddp" and spec.threads < spec.devices:
        raise SpecError(f"threads is {spec.threads}; ddp needs one for each of its {spec.devices} processes")
    if spec.injury and (spec.distributed or spec.parallel != "none"):
        raise SpecError(f"injury is {spec.injury.kind!r}; only a job on one instance and one device can be injured")
    if spec.injury and spec.injury.share and spec.warmup_steps < 3:
        raise SpecError(f"warmup_steps is {spec.warmup_steps}; an injury takes its size from 3 or more")
    if spec.model_file and (spec.distributed or spec.parallel != "none"):
        raise SpecError("model_file is given; only a job on one instance and one device writes its network")
    if spec.turns:
        _check_turns(spec, spec.turns)
    if spec.epochs:
        _check_epochs(spec, spec.epochs)
    if spec.checkpoint and (spec.epochs is None or spec.parallel != "none"):
        raise SpecError("checkpoint is given; only a job of whole epochs on one device has checkpoints")
    spec.load_workload()
    if spec.data:
        spec.data.load_kind()
    return spec


def _check_turns(spec: Spec, turns: Turns) -> None:
    if spec.steps != (steps := turns.rounds * turns.burst_steps):
        raise SpecError(f"steps is {spec.steps}; {turns.rounds} rounds of {turns.burst_steps} steps are {steps}")
    if spec.parallel == "ddp":
        raise SpecError("turns is given; the processes of ddp take none")


def _check_epochs(spec: Spec, epochs: int) -> None:
    if spec.steps % epochs or spec.warmup_steps:
        raise SpecError(f"steps is {spec.steps} and warmup_steps {spec.warmup_steps}; they must be {epochs} epochs")
    if spec.data is None or spec.turns or spec.distributed:
        raise SpecError("epochs is given; only a job on one instance that reads a data set and takes no turns has them")


def parse_request(text: str) -> Request:
    """Return the request. Raises SpecError that names the key, its value and what would do."""
    return parsed(Request, text, "the request")


def parse_command(text: str) -> CommandRequest:
    """Return the command. Raises SpecError that names the key, its value and what would do."""
    return parsed(CommandRequest, text, "the command")


def parsed(into: type[_Parsed], text: str, name: str) -> _Parsed:
    """Return the object that a text holds. Raises SpecError that names the key, its value and what would do."""
    return _parse(into, parse_object(text), name)


def parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object that a specification is. Raises SpecError for any other text."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise SpecError(f"the specification is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise SpecError("the specification is not a JSON object")
    return given


def _parse(into: type[_Parsed], given: Mapping[str, Any], name: str) -> _Parsed:
    """Return the object with these keys. The annotations of its fields say which values they can have."""
    known = {field.name: field.default is MISSING for field in fields(into)}  # type: ignore[arg-type]  # a dataclass
    if missing := [key for key, needed in known.items() if needed and key not in given]:
        raise SpecError(f"{name} lacks {', '.join(missing)}")
    if unknown := [key for key in given if key not in known]:
        raise SpecError(f"{name} has unknown keys {', '.join(unknown)}; known are {', '.join(known)}")
    hints = get_type_hints(into, include_extras=True)
    try:
        return into(**{key: _value(key, value, hints[key]) for key, value in given.items()})
    except (TypeError, ValueError) as error:
        raise SpecError(f"{name}: {error}") from None


def _value(key: str, value: object, hint: object) -> object:
    """Return the value: a text, one of ``Literal``, a number from the ``N`` of ``Annotated[int, N]`` up, or a part."""
    choices = get_args(hint)
    if type(None) in choices:
        return None if value is None else _value(key, value, choices[0])
    if get_origin(hint) is Literal and value not in choices:
        raise SpecError(f"{key} is {value!r}; it can be {', '.join(choices)}")
    if get_origin(hint) is Annotated and (not isinstance(value, int) or isinstance(value, bool) or value < choices[1]):
        raise SpecError(f"{key} is {value!r}; it must be a whole number of at least {choices[1]}")
    if hint is str and not isinstance(value, str):
        raise SpecError(f"{key} is {value!r}; it must be text")
    if not isinstance(hint, type) or not is_dataclass(hint):
        return value
    if not isinstance(value, dict):
        raise SpecError(f"{key} is {value!r}; it must be null or an object")
    return _parse(hint, value, key)
