"""The meaning of "10 % slower": the one definition of verdicts, gates, figures, forecasts and stop rules.

A share is the difference of a ratio from 1: a rate that loses a tenth (0.9) is 10 % slower, and so is a time that adds
a tenth (1.1). A margin of 10 % therefore reaches from 0.9 to 1.1. It is not symmetric, in two ways:

- Ratios are judged by their logarithms, and on that scale 0.9 lies farther from 1 than 1.1 does (0.105 and 0.095). What
  is to be within a share, or detected, whichever its direction, is held against the nearer of the two.
- A rate of 0.9 takes 1.11 times as long: just within 10 % by its throughput, and beyond 10 % by its time.
"""

import math
from dataclasses import dataclass

WIDER_MARGINS = (0.03, 0.05, 0.1, 0.2)
"""The margins at which a ratio is judged that is undecided at a narrower one."""


def slower_by(ratio: float, *, more_is_faster: bool) -> float:
    """Return the share by which a ratio is slower: what a rate loses, what a time adds. Negative is faster."""
    return 1 - ratio if more_is_faster else ratio - 1


def log_slower_by(share: float, *, more_is_faster: bool) -> float:
    """Return the logarithm of the ratio that is slower by a share; that of a rate is negative."""
    return math.log1p(-share if more_is_faster else share)


def log_difference(share: float) -> float:
    """Return the distance from 1, as a logarithm, at which a difference of this share is reached in one direction.

    It is the nearer one: a ratio that is so far from 1 in either direction differs by less than the share, or just by
    it.
    """
    return math.log1p(share)


def share_of(log_difference: float) -> float:
    """Return the share that ``log_difference`` takes. A difference of it in the other direction lies farther from 1."""
    return math.expm1(log_difference)


@dataclass(frozen=True)
class Bounds:
    """The ratios within a margin, as logarithms."""

    low: float
    high: float

    def beyond(self, log_ratio: float) -> float:
        """Return how far a ratio lies beyond the nearer bound; negative within the margin."""
        return max(log_ratio - self.high, self.low - log_ratio)

    @property
    def ratios(self) -> tuple[float, float]:
        return math.exp(self.low), math.exp(self.high)


def bounds_of(margin: float) -> Bounds:
    """Return the ends of a margin, a share below 1: a difference that does not matter."""
    return Bounds(math.log1p(-margin), math.log1p(margin))
