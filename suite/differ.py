"""The one way to find in what two tables of facts differ."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from suite.job.envelope import GIB

MEMORY_TOLERANCE = 0.02
"""Control groups round, and firmware keeps a little memory: not the same on every machine of a kind."""
UNKNOWN = "unknown"


def gib(value: object) -> str:
    """Return bytes as ``2 GiB``."""
    return f"{value / GIB:.4g} GiB" if isinstance(value, int | float) else str(value)


@dataclass(frozen=True)
class FactRule:
    """How a fact is compared and shown."""

    label: str = ""
    """Its name in messages; empty for its path, with spaces."""
    counts: Callable[[Any], Any] | None = None
    """Returns the part of a value that counts."""
    tolerance: float = 0.0
    """The share of the smaller of two numbers by which they may differ."""
    text: Callable[[Any], str] = str
    lenient: bool = False
    """Whether a value that one side does not know agrees with any."""

    def agree(self, one: Any, other: Any) -> bool:  # noqa: ANN401 (any value of JSON)
        """Return whether two values agree; a value that only one side knows differs."""
        if one is None or other is None:
            return one is other or self.lenient
        left, right = (self.counts(one), self.counts(other)) if self.counts else (one, other)
        if not self.tolerance:
            return bool(left == right)
        return bool(abs(left - right) <= self.tolerance * min(abs(left), abs(right)))

    def shown(self, value: object) -> str:
        """Return a value as messages show it."""
        return UNKNOWN if value is None else self.text(value)


class Differing(NamedTuple):
    """One fact in which two tables differ."""

    path: str
    one: Any
    other: Any
    rule: FactRule

    @property
    def label(self) -> str:
        return self.rule.label or self.path.replace("_", " ")

    def between(self, one: str, other: str) -> str:
        """Return ``memory: a 64 GiB, b 32 GiB`` of two that are called so."""
        return f"{self.label}: {one} {self.rule.shown(self.one)}, {other} {self.rule.shown(self.other)}"

    @property
    def against(self) -> str:
        """Return ``memory 64 GiB against 32 GiB``."""
        return f"{self.label} {self.rule.shown(self.one)} against {self.rule.shown(self.other)}"


_EXACT = FactRule()


def differ(
    one: Mapping[str, Any], other: Mapping[str, Any], rules: Mapping[str, FactRule] | None = None
) -> Iterator[Differing]:
    """Yield the facts that differ, in the order of the first table; absent and None are both unknown.

    The first of the ``rules`` whose pattern matches a path holds for it; without one, values must be equal.
    """
    for path in dict.fromkeys((*one, *other)):
        rule = next((rule for pattern, rule in (rules or {}).items() if fnmatchcase(path, pattern)), _EXACT)
        if not rule.agree(one.get(path), other.get(path)):
            yield Differing(path, one.get(path), other.get(path), rule)


def flattened(part: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values in objects inside each other, by dotted paths; lists are values."""
    flat: dict[str, Any] = {}
    for name, value in part.items():
        flat |= flattened(value, f"{path}{name}.") if isinstance(value, Mapping) else {path + name: value}
    return flat
