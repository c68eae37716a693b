"""The specification that the worker is given, checked key by key."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass

MODELS = ("inception_v3", "resnet50", "alexnet")
CHOICES = {
    "model": MODELS,
    "recipe": ("reference", "tuned"),
    "device": ("cpu", "cuda"),
    "parallel": ("none", "parameter-cpu", "ddp"),
}
LEAST = {"batch": 1, "image_px": 1, "warmup_steps": 0, "steps": 1, "threads": 1, "seed": 0, "devices": 1}


class SpecError(Exception):
    """The specification cannot be run as it is written."""


@dataclass(frozen=True)
class Spec:
    """One training job. ``batch`` is per device, ``threads`` for all of the job's processes together."""

    model: str
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


def parse_spec(text: str) -> Spec:
    """Raises SpecError that names the key, its value and what would do."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise SpecError(f"the specification is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise SpecError("the specification is not a JSON object")
    known = [field.name for field in dataclasses.fields(Spec)]
    if missing := [key for key in known if key not in given]:
        raise SpecError(f"the specification lacks {', '.join(missing)}")
    if unknown := [key for key in given if key not in known]:
        raise SpecError(f"the specification has unknown keys {', '.join(unknown)}; known are {', '.join(known)}")
    _check_values(given)
    spec = Spec(**given)
    _check_parallel(spec)
    return spec


def _check_values(given: Mapping[str, object]) -> None:
    for key, choices in CHOICES.items():
        if given[key] not in choices:
            raise SpecError(f"{key} is {given[key]!r}; it can be {', '.join(choices)}")
    for key, least in LEAST.items():
        value = given[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SpecError(f"{key} is {value!r}; it must be a whole number of at least {least}")


def _check_parallel(spec: Spec) -> None:
    if spec.parallel == "none" and spec.devices != 1:
        raise SpecError(f"devices is {spec.devices} with parallel 'none'; several need 'parameter-cpu' or 'ddp'")
    if spec.parallel == "ddp" and spec.threads < spec.devices:
        raise SpecError(f"threads is {spec.threads}; ddp needs one for each of its {spec.devices} processes")
