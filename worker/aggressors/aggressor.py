"""An aggressor that trains nothing: how its load is opened, and what the host must know of it beforehand.

The host reads declarations, and has no torch: an aggressor that needs torch imports it inside its functions, which run
in the target alone. An aggressor of another package is one module, of which the text is sent into the target.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from worker.probes.probe import writes_nothing
from worker.spec import Request


@dataclass(frozen=True)
class AggressorLoad:
    """The work of an aggressor, one step after the other.

    ``step`` takes one step and returns the work that it did, in ``unit``; None where the place cannot tell.
    """

    unit: str
    step: Callable[[], float | None]
    facts: Mapping[str, object] = field(default_factory=dict)
    """What torch says of itself, as fields of ``records.Environment``; empty where torch has no part in it."""


@dataclass(frozen=True)
class Aggressor:
    """The declaration of an aggressor. ``opened`` gives the load, and ends it with the block."""

    name: str
    opened: Callable[[Request], AbstractContextManager[AggressorLoad]]
    written_bytes: Callable[[str, str | None], int | None] = writes_nothing
    """How many bytes it writes to the data disk, by the profile; see ``worker.probes.probe.Probe``."""
