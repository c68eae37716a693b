"""The tail of the measured steps of a trial: a synchronous cluster waits for its slowest step."""

from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json

STEP_COLUMNS = ("step_p99_s", "step_tail")
"""The 99th percentile of the steps, and that over their median."""
StepTail = tuple[float | None, float | None]
NO_STEPS: StepTail = (None, None)
_ELAPSED = b'"elapsed_s":'


def step_tail(elapsed_s: Iterable[Any] | None) -> StepTail:
    """Return the values of ``STEP_COLUMNS``; ``NO_STEPS`` of what are no times: the rest of a record counts without.

    Each percentile is the time of one step, with no interpolation.
    """
    try:
        steps = sorted(elapsed_s or ())
        p50, p99 = steps[(len(steps) - 1) // 2], steps[(99 * len(steps) - 1) // 100]
        return p99, p99 / p50 if p50 > 0 else None
    except (TypeError, IndexError):
        return NO_STEPS


def step_tail_in(steps: bytes) -> StepTail:
    """Return the same of the text of a record's steps."""
    try:
        begin = steps.index(b"[", steps.index(_ELAPSED))
        return step_tail(from_json(steps[begin : steps.index(b"]", begin) + 1]))
    except ValueError:
        return NO_STEPS
