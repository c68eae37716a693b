"""What the worker is asked to probe, checked key by key."""

import dataclasses
import json
from dataclasses import dataclass

from worker.spec import SpecError

PROBES = ("disk", "memory", "network", "cpu", "syscall")
SIZES = ("smoke", "quick", "paper")
CHOICES = {"probe": PROBES, "size": SIZES, "device": ("cpu", "cuda")}


@dataclass(frozen=True)
class Request:
    """One probe. ``directory`` and ``job``, a fio job file's text, are of the disk probe; null elsewhere."""

    probe: str
    threads: int
    directory: str | None
    size: str
    job: str | None
    device: str


def parse_request(text: str) -> Request:
    """Raises SpecError that names the key, its value and what would do."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise SpecError(f"the specification is not JSON: {error}") from None
    known = {field.name for field in dataclasses.fields(Request)}
    if not isinstance(given, dict) or set(given) != known:
        raise SpecError(f"the specification of a probe is an object with the keys {', '.join(sorted(known))}")
    for key, choices in CHOICES.items():
        if given[key] not in choices:
            raise SpecError(f"{key} is {given[key]!r}; it can be {', '.join(choices)}")
    threads = given["threads"]
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise SpecError(f"threads is {threads!r}; it must be a whole number of at least 1")
    for key in ("directory", "job"):
        if given[key] is not None and not isinstance(given[key], str):
            raise SpecError(f"{key} is {given[key]!r}; it must be text or null")
    return Request(**given)
