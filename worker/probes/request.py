"""The request for a probe or an aggressor, checked key by key."""

import dataclasses
from dataclasses import dataclass

from worker.errors import SpecError, parse_object
from worker.members import Plugin, parse_plugin

SIZES = ("smoke", "quick", "paper")
CHOICES = {"size": SIZES, "device": ("cpu", "cuda")}


@dataclass(frozen=True)
class Request:
    """One probe, or one aggressor that trains nothing. ``job`` is the text of a fio job file, or null."""

    member: str
    """Where the probe is declared: ``module:attribute``."""
    threads: int
    directory: str | None
    size: str
    job: str | None
    device: str
    plugin: Plugin | None = None
    """The probe's module, where it is not part of the image."""


def parse_request(text: str) -> Request:
    """Return the request. Raises SpecError that names the key, its value and what would do."""
    given = parse_object(text)
    known = {field.name for field in dataclasses.fields(Request)} - {"plugin"}
    if set(given) - {"plugin"} != known:
        raise SpecError(f"the specification of a probe is an object with the keys {', '.join(sorted(known))}")
    for key, choices in CHOICES.items():
        if given[key] not in choices:
            raise SpecError(f"{key} is {given[key]!r}; it can be {', '.join(choices)}")
    threads = given["threads"]
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise SpecError(f"threads is {threads!r}; it must be a whole number of at least 1")
    plugin = parse_plugin(given.pop("plugin", None))
    for key in ("directory", "job"):
        if given[key] is not None and not isinstance(given[key], str):
            raise SpecError(f"{key} is {given[key]!r}; it must be text or null")
    return Request(**given, plugin=plugin)
