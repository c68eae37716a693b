"""Preemption: a machine is taken away at random moments, as clouds do with spot instances."""

from suite.errors import RequestError
from suite.part import Part, Seconds
from suite.units import parse_duration_s

_EXAMPLE = "write it as mean=1h or mean=1h,notice=30s"


class Preemption(Part):
    """Preemptions at the moments of a Poisson process."""

    mean_s: Seconds
    """The mean time between two."""
    notice_s: Seconds = 0.0
    """The time from the notice until the machine is gone."""


def parse_preemption(text: str) -> Preemption:
    """Return the preemption of ``"mean=1h,notice=30s"``. Raises RequestError for other text."""
    pairs = (part.strip().partition("=")[::2] for part in text.split(","))
    parts = dict(pairs)
    if "mean" not in parts or parts.keys() - {"mean", "notice"}:
        raise RequestError(f"{text!r} is not a preemption", remedy=_EXAMPLE)
    try:
        fields = {f"{name}_s": parse_duration_s(value) for name, value in parts.items()}
        return Preemption(**fields)
    except RequestError as error:
        raise RequestError(f"{text!r}: {error.message}", remedy=_EXAMPLE) from error
