"""Compatibility of hosts: records of unequal ones are not samples of one thing.

A host is a factor of its blocks: all trials of a block run on one host, and a ratio is formed inside a block.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict

from suite.differ import MEMORY_TOLERANCE, FactRule, differ, gib


class Host(BaseModel):
    """The facts that must be equal on two hosts, as records hold it in ``environment.host``; None if unknown."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    hostname: str | None = None
    cpu_model: str | None = None
    cpus: int | None = None
    """The number of CPUs that the suite may use."""
    memory_bytes: int | None = None
    kernel: str | None = None
    mitigations: tuple[tuple[str, str], ...] | None = None

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Host":
        """Make a host from fields of ``records.Environment``; others are ignored. Raises ValueError for other types."""
        flaws, cpus = facts.get("mitigations"), facts.get("cpus")
        if not isinstance(flaws, dict | None) or not isinstance(cpus, list | None):
            raise ValueError("mitigations must be an object and cpus a list")
        counted = {"mitigations": flaws and tuple(sorted(flaws.items())), "cpus": cpus and len(cpus)}
        return cls.model_validate({**facts, **counted})

    @property
    def name(self) -> str:
        return self.hostname or "a host without a name"


_RULES = {
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
    facts = differ(first.model_dump(include=keys), second.model_dump(include=keys), _RULES)
    yield from (fact.between(first.name, second.name) for fact in facts)
    flaws = sorted(fact.path for fact in differ(dict(first.mitigations or ()), dict(second.mitigations or ())))
    if flaws:
        yield f"mitigations of {', '.join(flaws)}: not the same on {first.name} and {second.name}"
