"""Finds the differences of two tables of facts, and of hosts: records of unequal ones are not samples of one thing.

A host is a factor of its blocks: all trials of a block run on one host, and a ratio is formed inside a block.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from suite.job.envelope import GIB

MEMORY_TOLERANCE = 0.02
"""Control groups round, and firmware keeps a little memory: not the same on every machine of a kind."""
UNKNOWN = "unknown"


def gib(value: object) -> str:
    if isinstance(value, int | float):
        return f"{value / GIB:.4g} GiB"
    return str(value)


def machine_of(machine_id: str | None, hostname: str | None) -> str:
    """Return what tells machines apart: the ID; of one whose ID is unknown, the name is all that is known."""
    return machine_id or hostname or UNKNOWN


@dataclass(frozen=True)
class FactRule:
    label: str = ""
    """Its name in messages; empty for its path, with spaces."""
    counts: Callable[[Any], Any] | None = None
    """Returns the part of a value that counts."""
    tolerance: float = 0.0
    """The share of the smaller of two numbers by which they may differ."""
    text: Callable[[Any], str] = str

    def agree(self, first: Any, second: Any) -> bool:  # noqa: ANN401 (any value of JSON)
        """Return whether two values agree; one that is null on one side differs."""
        if first is None or second is None:
            return first is second
        if self.counts:
            first = self.counts(first)
            second = self.counts(second)
        if isinstance(first, list) and isinstance(second, list):
            return len(first) == len(second) and all(map(self.agree, first, second))
        if not self.tolerance:
            return bool(first == second)
        return bool(abs(first - second) <= self.tolerance * min(abs(first), abs(second)))

    def shown(self, value: object) -> str:
        if value is None:
            return UNKNOWN
        return self.text(value)


class Differing(NamedTuple):
    path: str
    first: Any
    second: Any
    rule: FactRule

    @property
    def label(self) -> str:
        return self.rule.label or self.path.replace("_", " ")

    def between(self, first: str, second: str) -> str:
        """Return ``memory: a 64 GiB, b 32 GiB``, given the two names."""
        return f"{self.label}: {first} {self.rule.shown(self.first)}, {second} {self.rule.shown(self.second)}"

    @property
    def against(self) -> str:
        """Return ``memory 64 GiB against 32 GiB``."""
        return f"{self.label} {self.rule.shown(self.first)} against {self.rule.shown(self.second)}"


_EXACT = FactRule()


def differ(
    first: Mapping[str, Any], second: Mapping[str, Any], rules: Mapping[str, FactRule] | None = None
) -> Iterator[Differing]:
    """Yield the facts that differ, in the order of the first table; absent and None are both unknown.

    The first of the ``rules`` whose pattern matches a path holds for it; without one, values must be equal.
    """
    for path in dict.fromkeys((*first, *second)):
        matching = (rule for pattern, rule in (rules or {}).items() if fnmatchcase(path, pattern))
        rule = next(matching, _EXACT)
        values = first.get(path), second.get(path)
        if not rule.agree(*values):
            yield Differing(path, *values, rule)


def flattened(part: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values in objects inside each other, by dotted paths; lists are values."""
    flat: dict[str, Any] = {}
    for name, value in part.items():
        flat |= flattened(value, f"{path}{name}.") if isinstance(value, Mapping) else {path + name: value}
    return flat


class Host(BaseModel):
    """The facts that must be equal on two hosts, as records hold it in ``environment.host``; None if unknown."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    hostname: str | None = None
    """Its name, for people."""
    machine_id: str | None = None
    cpu_model: str | None = None
    cpus: int | None = None
    """The number of CPUs that the suite may use."""
    memory_bytes: int | None = None
    kernel: str | None = None
    mitigations: tuple[tuple[str, str], ...] | None = None

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Host":
        """Make a host from fields of ``records.Environment``; others are ignored. Raises ValueError for other types."""
        flaws = facts.get("mitigations")
        cpus = facts.get("cpus")
        if not isinstance(flaws, dict | None) or not isinstance(cpus, list | None):
            raise ValueError("mitigations must be an object and cpus a list")
        counted = {"mitigations": flaws and tuple(sorted(flaws.items())), "cpus": cpus and len(cpus)}
        return cls.model_validate({**facts, **counted})

    @property
    def name(self) -> str:
        return self.hostname or "a host without a name"

    @property
    def machine(self) -> str:
        return machine_of(self.machine_id, self.hostname)


_OF_HOST = {
    "cpu_model": FactRule("CPU model"),
    "cpus": FactRule("CPUs"),
    "memory_bytes": FactRule("memory", tolerance=MEMORY_TOLERANCE, text=gib),
}


def differences(hosts: Iterable[Host]) -> tuple[str, ...]:
    """Return the differences of hosts from the first: ``memory: a 64 GiB, b 32 GiB``. Empty if they are equal.

    A value that only one host knows counts as a difference.
    """
    distinct = list(dict.fromkeys(hosts))
    return tuple(dict.fromkeys(text for host in distinct[1:] for text in _between(distinct[0], host)))


def _between(first: Host, second: Host) -> Iterator[str]:
    keys = {"cpu_model", "cpus", "memory_bytes", "kernel"}
    second_fields = second.model_dump(include=keys)
    facts = differ(first.model_dump(include=keys), second_fields, _OF_HOST)
    yield from (fact.between(first.name, second.name) for fact in facts)
    flaws = sorted(fact.path for fact in differ(dict(first.mitigations or ()), dict(second.mitigations or ())))
    if flaws:
        yield f"mitigations of {', '.join(flaws)}: not the same on {first.name} and {second.name}"
