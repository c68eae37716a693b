"""The stop rule of a run that goes on ``--until`` a precision: a pure decision, taken between blocks.

Stopping as soon as an interval is narrow enough stops where the noise happened to look small, and the interval then
covers too rarely: 88 to 95 % of the time, depending on noise and precision, when it was simulated. Simons (Ann. Math.
Statist. 39 (1968) 1946) showed that the sequential procedure of Chow and Robbins (Ann. Math. Statist. 36 (1965) 457)
keeps its coverage when a fixed number of further samples is taken after it would have stopped. These are
``EXTRA_BLOCKS``; their number, and the coverage with them, come from simulation (``benchmarks/validity.py``). The
interval of all blocks is then the ordinary one, so that ``compare`` needs to know nothing about how a run was ended.

A run ``--until decided`` looks for verdicts, which are false too often where somebody looks for them after every block
(Armitage, McPherson and Rowe, J. R. Statist. Soc. A 132 (1969) 235). So it looks rarely, each time after a third more
blocks, and every look has another level: each spends ``SPENT_BY_A_LOOK`` of what its predecessors have left of
``TO_SPEND`` (alpha spending, Lan and DeMets, Biometrika 70 (1983) 659). A function of the share of the most blocks, as
those of O'Brien and Fleming or of Pocock are, would have to know that number: a run that continues raises it, and a
budget ends earlier. This one needs none, so that a verdict keeps its level wherever a run ends and goes on. The levels
are those of normal means. By the t of few blocks a side is false up to a third more often (4.4 % in place of the 3.4 %
that twelve looks spend), for which the rest of 5 % is kept (``benchmarks/deciding.py``).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from analysis.statistics.margins import log_difference, share_of
from analysis.statistics.ratios import Location, Samples, judge, locate

EXTRA_BLOCKS = 8
LEAST_BLOCKS = 5
TO_SPEND = 0.04
SPENT_BY_A_LOOK = 0.15
_GRID = np.linspace(-8.0, 8.0, 401)


@dataclass(frozen=True)
class Decision:
    """The decision whether to stop, and its reason as a sentence for people.

    ``half_width`` is that of the widest of the requested intervals now, as a share. ``at_least`` is how many more
    blocks are certainly needed (0 when it stops), ``expected`` how many it takes by the noise so far; None if unknown.
    """

    stop: bool
    reason: str
    half_width: float | None
    at_least: int
    expected: int | None = None
    decided: bool = False
    """Whether it stops because every comparison has a verdict."""


def should_stop(log_ratios: Mapping[str, Samples], half_width: float, *, max_blocks: int) -> Decision:
    """Decide whether the blocks so far are enough.

    ``log_ratios``: for each requested interval, by its name, log(target / bare metal) per block in the order of the
    run; NaN where a trial failed. ``half_width``: 0.02 for 2 %.
    """
    blocks = max((len(values) for values in log_ratios.values()), default=0)
    widest, name = _widest(log_ratios, blocks)
    now = None if widest is None else share_of(widest)
    if blocks >= max_blocks:
        return _ended(max_blocks, now)
    bound = log_difference(half_width)
    # The first number of blocks after which every interval was narrow enough.
    counts = range(LEAST_BLOCKS, blocks + 1)
    first = next((n for n in counts if (width := _widest(log_ratios, n)[0]) is not None and width <= bound), None)
    if first is None:
        # The width falls with the root of the number of blocks.
        if not widest:
            lacking = None
        else:
            lacking = max(1, math.ceil(blocks * (widest / bound) ** 2) - blocks) + EXTRA_BLOCKS
        return Decision(
            False,
            f"{name} is not yet within {half_width:.1%}",
            now,
            EXTRA_BLOCKS + 1,
            lacking,
        )
    if blocks < first + EXTRA_BLOCKS:
        more = first + EXTRA_BLOCKS - blocks
        return Decision(
            False,
            f"narrow enough since block {first}; {more} more keep the coverage",
            now,
            more,
            more,
        )
    if widest is None or widest > bound:
        return Decision(False, f"{name} is again wider than {half_width:.1%}", now, 1)
    return Decision(True, f"every interval is within {half_width:.1%}", now, 0)


def should_stop_deciding(families: Iterable[Mapping[str, Samples]], margin: float, *, max_blocks: int) -> Decision:
    """Decide whether every comparison has a verdict at the margin, a share; the arguments are as in ``should_stop``.

    The ratios of a family are judged together. It is looked only after the blocks that ``looks`` gives.
    """
    undecided: dict[str, int | None] = {}
    blocks = 0
    for family in families:
        undecided.update(_undecided(family, margin))
        blocks = max([blocks, *map(len, family.values())])
    if blocks >= max_blocks:
        return _ended(max_blocks, None)
    if not undecided and blocks in looks(LEAST_BLOCKS, blocks):
        return Decision(
            True,
            f"every comparison is decided at a margin of {margin:.1%}",
            None,
            0,
            decided=True,
        )
    following = next(look for look in looks(LEAST_BLOCKS, max(2 * blocks, LEAST_BLOCKS)) if look > blocks)
    if not undecided:
        return Decision(False, f"the next look is at {following}", None, following - blocks)
    more = undecided.values()
    reason = f"no verdict yet on {', '.join(undecided)} at a margin of {margin * 100:.3g} %"
    return Decision(
        False,
        reason,
        None,
        following - blocks,
        None if None in more else max(filter(None, more)),
    )


def _undecided(family: Mapping[str, Samples], margin: float) -> Iterator[tuple[str, int | None]]:
    """Yield the ratios of a family that are undecided or have too few blocks, and how many more would decide."""
    places = [locate(values) for values in family.values()]
    verdicts = judge(places, margin, level=level_of(places, LEAST_BLOCKS))
    for name, location, verdict in zip(family, places, verdicts, strict=True):
        if location is None or verdict is None or location.n < LEAST_BLOCKS:
            yield name, None
        elif verdict.name == "undecided":
            yield name, verdict.more_blocks


def _ended(max_blocks: int, half_width: float | None) -> Decision:
    return Decision(
        True,
        f"the most blocks requested ({max_blocks}) are measured",
        half_width,
        0,
    )


def looks(least: int, most: int) -> Iterator[int]:
    """Yield the numbers of blocks after which verdicts are looked for, up to the first at ``most`` or above."""
    look = least
    yield look
    while look < most:
        look += max(2, look // 3)
        yield look


def level_of(places: Sequence[Location | None], least: int) -> float:
    """Return the level of verdicts on these ratios, of a run that began to look after ``least`` blocks."""
    return level_after(
        max((location.n for location in places if location), default=least),
        least,
    )


def level_after(blocks: int, least: int) -> float:
    """Return the level of a look after so many blocks, or of the next one, where the first is after ``least``."""
    return _look(tuple(looks(least, blocks)))[0]


@lru_cache(maxsize=1000)
def _look(after: tuple[int, ...]) -> tuple[float, npt.NDArray[np.float64]]:
    """Return the one-sided level of the last of the looks after so many blocks, and the density of what they leave.

    The density is that of the undecided means whose truth lies on the bound, in units of their error.
    """
    step = _GRID[1] - _GRID[0]
    if len(after) == 1:
        density = np.exp(-(_GRID**2) / 2) / math.sqrt(2 * math.pi)
    else:
        kept = math.sqrt(after[-2] / after[-1])
        added = math.sqrt(1 - kept**2)
        moves = np.exp(-(((_GRID[:, None] - kept * _GRID) / added) ** 2) / 2)
        density = moves @ _look(after[:-1])[1] * step / (added * math.sqrt(2 * math.pi))
    beyond = (np.cumsum(density[::-1])[::-1] - density / 2) * step
    spent = TO_SPEND * SPENT_BY_A_LOOK * (1 - SPENT_BY_A_LOOK) ** (len(after) - 1)
    bound = float(np.interp(-spent, -beyond, _GRID))
    return float(special.ndtr(-bound)), density * np.clip((bound - _GRID) / step + 0.5, 0, 1)


def _widest(log_ratios: Mapping[str, Samples], blocks: int) -> tuple[float | None, str]:
    """Return the widest half width after the first ``blocks``, and its name; None if an interval cannot be formed."""
    widths: list[tuple[float, str]] = []
    for name, values in log_ratios.items():
        location = locate(values[:blocks])
        # A target with fewer good trials than blocks has the coverage of its own number.
        if location is None or location.half_width is None or location.n < LEAST_BLOCKS:
            return None, name
        widths.append((location.half_width, name))
    return max(widths) if widths else (None, "no ratio")
