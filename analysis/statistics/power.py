"""The power of a run: which difference so many blocks detect, how many blocks a difference takes, what is trimmed.

Blocks detect a difference d if a one-sided t test of their trimmed mean wins with a chance of ``POWER`` where the
truth is d away from the bound. With the deviation sigma of a block known, it is (t_level + z_power) sigma / sqrt(n).
But it is estimated, with ``freedom`` degrees of freedom, and to put the estimate s in its place promises too much: a
small pilot that happens to look quiet plans too few blocks (Browne, Statist. Med. 14 (1995) 1933; Kieser and Wassmer,
Biom. J. 38 (1996) 941; ``benchmarks/power.py``). Averaged over s, the test wins if (Z + t_level) / (s / sigma) is at
most c, and that fraction is noncentral t: c is its quantile at ``POWER``. As in the procedure of Stein (Ann. Math.
Statist. 16 (1945) 243), the promise then holds however few blocks s comes from.
"""

import math
from bisect import bisect_left
from collections.abc import Callable

from scipy import special

POWER = 0.8
MOST_BLOCKS = 10_000
"""A difference that takes more blocks is out of reach."""
TRIM = 0.15
"""The share of the blocks that is trimmed at each end: at least one block, of five or more."""


def trimmed(n: int, trim: float = TRIM) -> int:
    """Return how many of ``n`` values are trimmed at each end."""
    if not trim or n < 5:
        return 0
    return max(1, int(trim * n))


def degrees_of_freedom(n: int, trim: float = TRIM) -> int:
    """Return the degrees of freedom of the trimmed mean of ``n`` values."""
    return n - 2 * trimmed(n, trim) - 1


def detectable(deviation: float, freedom: float, blocks: int, *, level: float, power: float = POWER) -> float:
    """Return the difference of log ratios that ``blocks`` blocks detect by a one-sided test at ``level``.

    ``deviation``: the standard deviation of a block's log ratio, estimated with ``freedom`` degrees of freedom.
    Infinite for a single block.
    """
    tested = degrees_of_freedom(blocks)
    if tested < 1:
        return math.inf
    errors = errors_detected(freedom, tested, level=level, power=power)
    return errors * deviation / math.sqrt(blocks)


def errors_detected(freedom: float, tested: float, *, level: float, power: float = POWER) -> float:
    """Return the difference that a test with ``tested`` degrees of freedom detects, in standard errors.

    ``freedom``: the degrees of freedom of the deviation from which the standard error is known.
    """
    critical = special.stdtrit(tested, 1 - level)
    return float(special.nctdtrit(freedom, critical, power))


def blocks_needed(
    difference: float,
    deviation: float,
    freedom: float,
    *,
    level: float,
    power: float = POWER,
    least: int = 2,
) -> int | None:
    """Return how many blocks, ``least`` or more, detect a difference of log ratios; None above ``MOST_BLOCKS``."""

    def suffice(blocks: int) -> bool:
        return detectable(deviation, freedom, blocks, level=level, power=power) <= difference

    return fewest(suffice, least)


def fewest(suffice: Callable[[int], bool], least: int) -> int | None:
    """Return the fewest blocks, ``least`` or more, that suffice; None above ``MOST_BLOCKS``."""
    numbers = range(least, MOST_BLOCKS + 1)
    needed = least + bisect_left(numbers, True, key=suffice)
    if needed > MOST_BLOCKS:
        return None
    return needed
