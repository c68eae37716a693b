"""The simulation: sweeps of a family, judged by the suite's own rules and by those of other tools."""

from collections import Counter
from typing import Any

import numpy as np
from parts.simulations import blocks_until
from parts.validity_rules import RULES, hyperfine
from parts.validity_samples import FAMILIES, TRUTH, Family, Logs

from analysis.statistics.margins import bounds_of
from analysis.statistics.ratios import SIGNIFICANCE, VerdictName, judge, locate
from analysis.statistics.tails import qualified, tail_of
from suite.request.repetitions import MARGIN

SIZES = (5, 10, 20, 40)
MOST_BLOCKS = 120


Row = dict[str, Any]
"""One family and size: ``noise``, ``size``, the mean number of ``blocks``, the verdicts on the ``identical`` target,
how often the rules of ``others`` call that one different, and the shares that ``Count`` notes."""


class Count:
    """Counts what the sweeps of one family and size show."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.shares: dict[str, list[bool]] = {}
        self.verdicts: Counter[str] = Counter()
        self.blocks: list[int] = []

    def add(self, base: Logs, own: Logs) -> None:
        """Judge one sweep by the suite's own rules, all its targets as one family of comparisons."""
        blocks = len(base)
        self.blocks.append(blocks)
        ratios = [own[:, place] - base for place in range(len(TRUTH))]
        places = [locate(values) for values in ratios]
        tails = [tail_of(values, base, more_is_faster=False) for values in ratios]
        judged = qualified(judge(places, MARGIN, more_is_faster=False), places, tails, MARGIN)
        typical, expected = self.family.typical(blocks), self.family.expected
        false = False
        for name, shift, place, tail, verdict in zip(TRUTH, TRUTH.values(), places, tails, judged, strict=True):
            assert place and place.interval and tail and verdict and verdict.name  # noqa: S101, PT018
            low, high = place.interval
            self._note("typical_covers", low <= shift + typical <= high)
            low, high = tail.expected.interval
            self._note("expected_covers", low <= shift + expected <= high)
            false |= self._is_false(verdict.name, shift + typical, shift + expected)
            beyond = tail.slow.p <= SIGNIFICANCE
            self._note("slow_beyond_chance", beyond)  # each test by itself
            self._note("bound_covers", tail.slow.excluded >= (self.family.slow_share or 0))
            if name == "identical":
                self.verdicts[verdict.name] += 1
                self._note("plain_in_spite", beyond and verdict.name == "equivalent")
        self._note("false_verdicts", false)
        strict = judge(places, 0.0)[0]
        self._note("differs_at_no_margin", strict is not None and strict.name in ("slower", "faster"))

    def _note(self, what: str, found: bool) -> None:
        self.shares.setdefault(what, []).append(bool(found))

    def _is_false(self, name: VerdictName, typical: float, expected: float) -> bool:
        bounds = bounds_of(MARGIN)
        return {
            "slower": typical <= bounds.high,
            "faster": typical >= bounds.low,
            "equivalent": max(bounds.beyond(typical), bounds.beyond(expected)) > 0,
            "typical-only": bounds.beyond(typical) > 0,
            "tail": self.family.alike,
            "undecided": False,
            "fails more": False,
        }[name]

    def row(self, size: str, others: dict[str, float]) -> Row:
        return {
            "noise": self.family.name,
            "size": size,
            "blocks": float(np.mean(self.blocks)),
            **{what: float(np.mean(found)) for what, found in self.shares.items()},
            "identical": {name: count / self.verdicts.total() for name, count in self.verdicts.items()},
            "others": others,
        }


def row_of(place: int, blocks: int | None, sweeps: int, seed: int) -> Row:
    """Simulate one family at one size, or ``--until`` its precision where ``blocks`` is None."""
    family = FAMILIES[place]
    rng = np.random.default_rng((seed, place, blocks or 0))
    count = Count(family)
    base, own = family.blocks(rng, sweeps, blocks or MOST_BLOCKS)
    for one, other in zip(base, own, strict=True):
        end = blocks or blocks_until({name: other[:, arm] - one for arm, name in enumerate(TRUTH)}, family.until)
        count.add(one[:end], other[:end])
    if blocks is None:
        return count.row(f"until {family.until:.0%}", {})
    samples = {"": (base, own[..., 0]), " in a row": family.in_a_row(rng, sweeps, blocks)}
    others = {
        name + order: float(rule(*both).mean()) for order, both in samples.items() for name, rule in RULES.items()
    }
    others["hyperfine covers"] = 1 - float(hyperfine(*samples[""], family.expected).mean())
    return count.row(f"{blocks} blocks", others)
