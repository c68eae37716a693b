"""The specification that the worker is given, checked key by key."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from worker.distributed.membership import Membership
from worker.errors import SpecError, parse_object
from worker.members import Plugin, load_member, parse_plugin
from worker.workloads.workload import Workload

CHOICES = {
    "recipe": ("reference", "tuned"),
    "device": ("cpu", "cuda"),
    "parallel": ("none", "parameter-cpu", "ddp"),
}
DATA_CHOICES = {
    "kind": ("imagenet", "imagefolder", "cifar10", "mnist"),
    "decoder": ("auto", "simplejpeg", "pillow"),
}
INJURIES = ("late-step", "late-batch", "page-faults", "held-memory")
LEAST = {"batch": 1, "image_px": 1, "warmup_steps": 0, "steps": 1, "threads": 1, "seed": 0, "devices": 1}


@dataclass(frozen=True)
class Data:
    """A data set, and how it is read. ``loader_workers`` are of all of the job's processes together."""

    kind: str
    directory: str
    loader_workers: int
    decoder: str


@dataclass(frozen=True)
class StepInjury:
    """What ``bench selftest`` adds: ``late-step`` sleeps while it computes, ``late-batch`` while it waits for data."""

    kind: str
    share: float = 0.0
    """The time to add, as a share of all measured steps."""
    every: int = 1
    """The steps of which one bears the time of all."""
    held_bytes: int = 0
    """The memory that ``held-memory`` touches and keeps to the end."""


@dataclass(frozen=True)
class Spec:
    """One training job. ``batch`` is per device, ``threads`` for all of the job's processes together."""

    workload: str
    """Where the workload is declared: ``module:attribute``."""
    batch: int
    image_px: int
    warmup_steps: int
    steps: int
    threads: int
    recipe: str
    seed: int
    device: str
    devices: int
    parallel: str
    data: Data | None = None
    """None where data are drawn."""
    distributed: Membership | None = None
    """This rank's view of the job it is part of; None for a job on one instance."""
    plugin: Plugin | None = None
    """The workload's module, where it is not part of the image."""
    injury: StepInjury | None = None
    """What is added on purpose; None but in a self-test."""

    def load_workload(self) -> Workload:
        """Return the workload's declaration. Raises SpecError where there is none."""
        return load_member("workload", self.workload, self.plugin, Workload)


def parse_spec(text: str) -> Spec:
    """Return the specification. Raises SpecError that names the key, its value and what would do."""
    given = parse_object(text)
    parts = {key: given.pop(key, None) for key in ("data", "distributed", "plugin", "injury")}
    _check_keys(given, Spec, "the specification", optional=tuple(parts))
    _check_choices(given, CHOICES)
    for key, least in LEAST.items():
        _check_least(key, given[key], least)
    spec = Spec(
        **given,
        data=_parse_data(parts["data"]),
        distributed=_parse_membership(parts["distributed"]),
        plugin=parse_plugin(parts["plugin"]),
        injury=_parse_injury(parts["injury"]),
    )
    _check_parallel(spec)
    _check_injury(spec)
    spec.load_workload()
    return spec


def _parse_data(given: object) -> Data | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise SpecError(f"data is {given!r}; it must be null or an object")
    _check_keys(given, Data, "data")
    _check_choices(given, DATA_CHOICES)
    _check_least("loader_workers", given["loader_workers"], 0)
    directory = given["directory"]
    if not isinstance(directory, str) or not directory.startswith("/"):
        raise SpecError(f"directory is {directory!r}; it must be an absolute path")
    return Data(**given)


def _parse_membership(given: object) -> Membership | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise SpecError(f"distributed is {given!r}; it must be null or an object")
    _check_keys(given, Membership, "distributed", optional=("timeout_s", "join_timeout_s"))
    try:
        return Membership(**given)
    except (TypeError, ValueError) as error:
        raise SpecError(f"distributed: {error}") from None


def _parse_injury(given: object) -> StepInjury | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise SpecError(f"injury is {given!r}; it must be null or an object")
    _check_keys(given, StepInjury, "injury", optional=("share", "every", "held_bytes"))
    _check_choices(given, {"kind": INJURIES})
    return StepInjury(**given)


def _check_keys(given: Mapping[str, object], into: type, name: str, *, optional: tuple[str, ...] = ()) -> None:
    known = [field.name for field in dataclasses.fields(into)]
    if missing := [key for key in known if key not in given and key not in optional]:
        raise SpecError(f"{name} lacks {', '.join(missing)}")
    if unknown := [key for key in given if key not in known]:
        raise SpecError(f"{name} has unknown keys {', '.join(unknown)}; known are {', '.join(known)}")


def _check_choices(given: Mapping[str, object], choices_of: Mapping[str, tuple[str, ...]]) -> None:
    for key, choices in choices_of.items():
        if given[key] not in choices:
            raise SpecError(f"{key} is {given[key]!r}; it can be {', '.join(choices)}")


def _check_least(key: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(f"{key} is {value!r}; it must be a whole number of at least {least}")


def _check_parallel(spec: Spec) -> None:
    if spec.distributed and spec.parallel != "none":
        raise SpecError(f"parallel is {spec.parallel!r} in a distributed job; each of its ranks has one device")
    if spec.parallel == "none" and spec.devices != 1:
        raise SpecError(f"devices is {spec.devices} with parallel 'none'; several need 'parameter-cpu' or 'ddp'")
    if spec.parallel == "ddp" and spec.threads < spec.devices:
        raise SpecError(f"threads is {spec.threads}; ddp needs one for each of its {spec.devices} processes")


def _check_injury(spec: Spec) -> None:
    if spec.injury and (spec.distributed or spec.parallel != "none"):
        raise SpecError(f"injury is {spec.injury.kind!r}; only a job on one instance and one device can be injured")
    if spec.injury and spec.injury.share and spec.warmup_steps < 3:
        raise SpecError(f"warmup_steps is {spec.warmup_steps}; an injury takes its size from 3 or more")
