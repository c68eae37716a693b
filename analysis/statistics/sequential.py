"""The stop rule of a run that goes on ``--until`` a precision: a pure decision, taken between blocks.

Stopping as soon as an interval is narrow enough stops where the noise happened to look small, and the interval then
covers too rarely: 88 to 95 % of the time, depending on noise and precision, when it was simulated. Simons (Ann. Math.
Statist. 39 (1968) 1946) showed that the sequential procedure of Chow and Robbins (Ann. Math. Statist. 36 (1965) 457)
keeps its coverage when a fixed number of further samples is taken after it would have stopped. These are
``EXTRA_BLOCKS``; their number, and the coverage with them, come from simulation (``benchmarks/validity.py``). The
interval of all blocks is then the ordinary one, so that ``compare`` needs to know nothing about how a run was ended.

A run ``--until decided`` looks for verdicts, which are false too often where somebody looks for them after every block
(Armitage, McPherson and Rowe, J. R. Statist. Soc. A 132 (1969) 235). So it looks rarely, each time after a third more
blocks, and asks at each look for a level of ``LOOK_LEVEL`` in place of 5 %, as a group-sequential test with constant
levels does (Pocock, Biometrika 64 (1977) 191). The level comes from simulation (``benchmarks/deciding.py``).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from analysis.statistics.ratios import Samples, Verdict, judge, locate
from suite.errors import RequestError

EXTRA_BLOCKS = 8
LEAST_BLOCKS = 5
LOOK_LEVEL = 0.01


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


def should_stop(
    log_ratios: Mapping[str, Samples], half_width: float, *, min_blocks: int = LEAST_BLOCKS, max_blocks: int
) -> Decision:
    """Decide whether the blocks so far are enough.

    ``log_ratios``: for each requested interval, by its name, log(target / bare metal) per block in the order of the
    run; NaN where a trial failed. ``half_width``: 0.02 for 2 %. Raises RequestError for bounds that make no sense.
    """
    _check(half_width, min_blocks, max_blocks)
    blocks = max((len(values) for values in log_ratios.values()), default=0)
    widest, name = _widest(log_ratios, blocks)
    now = None if widest is None else math.expm1(widest)
    if blocks >= max_blocks:
        return Decision(True, f"the most blocks asked for ({max_blocks}) are measured", now, 0)
    bound = math.log1p(half_width)
    first = _settled(log_ratios, bound, max(min_blocks, LEAST_BLOCKS), blocks)
    if first is None:
        # The width falls with the root of the number of blocks.
        lacking = None if not widest else max(1, math.ceil(blocks * (widest / bound) ** 2) - blocks) + EXTRA_BLOCKS
        return Decision(False, f"{name} is not yet within {half_width:.1%}", now, EXTRA_BLOCKS + 1, lacking)
    if blocks < first + EXTRA_BLOCKS:
        left = first + EXTRA_BLOCKS - blocks
        return Decision(False, f"narrow enough since block {first}; {left} more keep the coverage", now, left, left)
    if widest is None or widest > bound:
        return Decision(False, f"{name} is again wider than {half_width:.1%}", now, 1)
    return Decision(True, f"every interval is within {half_width:.1%}", now, 0)


def should_stop_deciding(
    families: Iterable[Mapping[str, Samples]], margin: float, *, min_blocks: int = LEAST_BLOCKS, max_blocks: int
) -> Decision:
    """Decide whether every comparison has a verdict at the margin, a share; the arguments are as in ``should_stop``.

    The ratios of a family are judged together. It is looked only after the blocks that ``looks`` gives.
    """
    verdicts: dict[str, Verdict | None] = {}
    blocks = 0
    for family in families:
        places = [locate(np.asarray(values)) for values in family.values()]
        blocks = max([blocks, *map(len, family.values())])
        judged = judge(places, margin)
        enough = [place is not None and place.n >= LEAST_BLOCKS for place in places]
        verdicts |= {name: one if n else None for name, one, n in zip(family, judged, enough, strict=True)}
    if blocks >= max_blocks:
        return Decision(True, f"the most blocks asked for ({max_blocks}) are measured", None, 0)
    undecided = {name: one for name, one in verdicts.items() if not (one and _holds(one))}
    least = max(min_blocks, LEAST_BLOCKS)
    if verdicts and not undecided and blocks in looks(least, blocks):
        return Decision(True, f"every comparison is decided at a margin of {margin:.1%}", None, 0)
    following = next(look for look in looks(least, max(2 * blocks, least)) if look > blocks)
    known = [one.more_blocks if one else None for one in undecided.values()]
    lacking = None if None in known or not known else max(filter(None, known))
    names = ", ".join(undecided) or "no ratio"
    reason = f"{names} undecided at a margin of {margin:.1%}" if undecided else f"the next look is at {following}"
    return Decision(False, reason, None, following - blocks, lacking)


def looks(least: int, most: int) -> Iterator[int]:
    """Yield the numbers of blocks after which verdicts are looked for, up to the first at ``most`` or above."""
    look = least
    yield look
    while look < most:
        look += max(2, look // 3)
        yield look


def _holds(verdict: Verdict) -> bool:
    return verdict.name != "undecided" and verdict.p is not None and verdict.p <= LOOK_LEVEL


def _check(half_width: float, min_blocks: int, max_blocks: int) -> None:
    if not 0 < half_width < 1:
        raise RequestError(f"--until {half_width:.3g}: not a share between 0 and 1", remedy="write it as 2%")
    if not 0 < min_blocks <= max_blocks:
        raise RequestError(
            f"--min-blocks {min_blocks} and --max-blocks {max_blocks}", remedy="ask for 0 < min-blocks <= max-blocks"
        )


def _widest(log_ratios: Mapping[str, Samples], blocks: int) -> tuple[float | None, str]:
    """Return the widest half width after the first ``blocks``, and its name; None if an interval cannot be formed."""
    widths: list[tuple[float, str]] = []
    for name, values in log_ratios.items():
        place = locate(np.asarray(values[:blocks]))
        # A target with fewer good trials than blocks has the coverage of its own number.
        if place is None or place.half_width is None or place.n < LEAST_BLOCKS:
            return None, name
        widths.append((place.half_width, name))
    return max(widths) if widths else (None, "no ratio")


def _settled(log_ratios: Mapping[str, Samples], bound: float, first: int, blocks: int) -> int | None:
    """Return the first number of blocks after which every interval was narrow enough."""
    for count in range(first, blocks + 1):
        widest, _ = _widest(log_ratios, count)
        if widest is not None and widest <= bound:
            return count
    return None
