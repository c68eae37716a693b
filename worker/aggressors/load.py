"""What an aggressor does, one step after the other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

PROGRAM_STEP_S = 0.25
"""How often it is looked at what a program beside the worker (fio, iperf3) has done: that is its step."""


@dataclass(frozen=True)
class Load:
    """``step`` takes one step and returns the work that it did, in ``unit``; None where the place cannot tell."""

    unit: str
    step: Callable[[], float | None]
    facts: Mapping[str, object] = field(default_factory=dict)
    """Of torch, as fields of ``records.Environment``; empty where torch has no part in it."""
