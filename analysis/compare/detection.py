"""Plan the blocks in which a stated difference is detected, from the blocks that there are.

The first blocks of the run itself count in its result, as an internal pilot does (Wittes and Brittain, Statist. Med. 9
(1990) 65). What is then planned is kept: whoever looks again and again finds the moment at which the noise looks small.
A pilot that looked quiet by chance is found out only if enough blocks follow it, or else identical targets are called
different too often: hence at least ``GROWTH`` times its blocks. The numbers come from ``benchmarks/power.py``.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from analysis.compare.convergence import log_ratios
from analysis.load.records import Records
from analysis.statistics.power import blocks_needed
from analysis.statistics.ratios import detectable_share, detection_level, locate
from analysis.statistics.sequential import LEAST_BLOCKS, Decision
from suite.plan import Detection

PILOT_BLOCKS = 10
GROWTH = 2


def plan_detection(
    records: Records, difference: float, *, least: int, most: int, source: Literal["pilot", "earlier"]
) -> Detection | None:
    """Return the blocks that detect a difference, as a share, of whichever ratio takes most of them.

    The records are those of the pilot, or of earlier runs. Of a pilot, a ratio with fewer than ``LEAST_BLOCKS`` blocks
    is left out; of earlier runs every ratio needs ``PILOT_BLOCKS``. None if there is nothing to plan from.
    """
    found = []
    for family in log_ratios(records, "throughput").values():
        for name, values in family.items():
            place = locate(np.asarray(values))
            measured = 0 if place is None else place.n
            if source == "earlier" and measured < PILOT_BLOCKS:
                return None
            if place is None or place.deviation is None or measured < LEAST_BLOCKS:
                continue
            freedom, level = place.degrees_of_freedom, detection_level(len(family))
            needed = blocks_needed(math.log1p(difference), place.deviation, freedom, level=level, least=LEAST_BLOCKS)
            found.append((math.inf if needed is None else needed, place.deviation, name, place, len(family)))
    if not found:
        return None
    needed_most, deviation, name, place, members = max(found, key=lambda each: each[:2])
    if source == "pilot":
        least = max(least, GROWTH * PILOT_BLOCKS)
    blocks = int(min(max(needed_most, least), most))
    return Detection(
        difference=difference,
        needed=None if math.isinf(needed_most) else int(needed_most),
        blocks=blocks,
        detectable=detectable_share(place, members, blocks),
        source=source,
        measured=place.n,
        ratio=name,
        deviation=math.expm1(deviation),
    )


def should_stop_detecting(
    records: Callable[[], Records], difference: float, blocks: int, *, least: int, most: int
) -> Decision:
    """Decide whether the ``blocks`` complete blocks of a run are those that its pilot plans; for a cell of a sweep."""
    pilot = min(PILOT_BLOCKS, most)
    if blocks < pilot:
        return Decision(False, f"the pilot of {pilot} blocks is not complete", None, pilot - blocks)
    found = plan_detection(pilot_of(records()), difference, least=least, most=most, source="pilot")
    if found is None:
        return Decision(True, "no target has enough ratios to plan from", None, 0)
    reason = f"its pilot plans {found.blocks} blocks to detect {difference:.2%}"
    if found.capped:
        reason = f"{found.blocks} blocks are the most asked for; {difference:.2%} takes {found.needed or 'far more'}"
    return Decision(blocks >= found.blocks, reason, None, max(found.blocks - blocks, 0))


def pilot_of(records: Records) -> Records:
    """Return the records of the blocks that are the pilot of their run."""
    return replace(records, trials=records.trials[records.trials["block"] < PILOT_BLOCKS])
