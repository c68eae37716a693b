"""A probe: what measures one cost of a layer, and what the host must know of it beforehand.

The host reads declarations, and has no torch: a probe that needs torch imports it inside its functions, which run in
the target alone. A probe of another package is one module, of which the text is sent into the target.
"""

from collections.abc import Callable
from dataclasses import dataclass

from worker.probes.reading import Measured
from worker.spec import Request


def writes_nothing(size: str, job: str | None) -> None:
    """Return None: the probe needs no room on the data disk."""
    del size, job


@dataclass(frozen=True)
class Probe:
    """The declaration of a probe. ``measure`` raises ProbeError where nothing can be measured."""

    name: str
    measure: Callable[[Request], Measured]
    computes: bool = False
    """Whether it computes with torch, which is then given the threads of the envelope."""
    takes_job: bool = False
    """Whether the user can give it a fio job file."""
    in_turns: bool = False
    """Whether it can be measured again and again, in turns with others, and leaves nothing behind that they would meet
    in theirs."""
    written_bytes: Callable[[str, str | None], int | None] = writes_nothing
    """How many bytes it writes to the data disk, by the profile and the user's job file; None for none."""
