"""The simulation: sweeps of a family, judged by the suite's own rules and by those of other tools."""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from parts.simulations import blocks_until
from parts.validity_rules import RULES, hyperfine
from parts.validity_samples import FAMILIES, TRUTH, Family, Logs

from analysis.statistics.ratios import SIGNIFICANCE, VerdictName, judge, locate
from analysis.statistics.tails import qualified, tail_of
from suite.request.repetitions import MARGIN

SIZES = (5, 10, 20, 40)
MOST_BLOCKS = 120


@dataclass(frozen=True)
class Row:
    """The shares of one family and size; of sweeps, or of the ratios in them."""

    noise: str
    size: str
    blocks: float
    typical_covers: float
    expected_covers: float
    false_verdicts: float
    """The share of the sweeps with a verdict that is not true."""
    differs_at_no_margin: float
    """The share of the sweeps that call the identical target different at a margin of nothing."""
    identical: dict[str, float]
    """The verdicts on the identical target."""
    slow_beyond_chance: float
    """The share of the targets with slow trials beyond chance, each test by itself."""
    plain_in_spite: float
    """The share of the identical targets that are plainly ``equivalent`` in spite of slow trials beyond chance."""
    bound_covers: float
    """The share of the targets whose bound on slow trials is not below their true share."""
    others: dict[str, float]
    """The share of the sweeps in which another tool's rule calls the identical target different."""


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
            self._note("typical covers", low <= shift + typical <= high)
            low, high = tail.expected.interval
            self._note("expected covers", low <= shift + expected <= high)
            false |= self._is_false(verdict.name, shift + typical, shift + expected)
            beyond = tail.slow.p <= SIGNIFICANCE
            self._note("slow beyond chance", beyond)
            self._note("bound covers", tail.slow.excluded >= (self.family.slow_share or 0))
            if name == "identical":
                self.verdicts[verdict.name] += 1
                self._note("plain in spite", beyond and verdict.name == "equivalent")
        self._note("false", false)
        strict = judge(places, 0.0)[0]
        self._note("no margin", strict is not None and strict.name in ("slower", "faster"))

    def _note(self, what: str, found: bool) -> None:
        self.shares.setdefault(what, []).append(bool(found))

    def _is_false(self, name: VerdictName, typical: float, expected: float) -> bool:
        bound = math.log1p(MARGIN)
        return {
            "slower": typical <= bound,
            "faster": typical >= -bound,
            "equivalent": max(abs(typical), abs(expected)) > bound,
            "typical-only": abs(typical) > bound,
            "tail": self.family.alike,
            "undecided": False,
        }[name]

    def row(self, size: str, others: dict[str, float]) -> Row:
        share = {what: float(np.mean(found)) for what, found in self.shares.items()}
        sweeps = self.verdicts.total()
        return Row(
            noise=self.family.name,
            size=size,
            blocks=float(np.mean(self.blocks)),
            typical_covers=share["typical covers"],
            expected_covers=share["expected covers"],
            false_verdicts=share["false"],
            differs_at_no_margin=share["no margin"],
            identical={name: count / sweeps for name, count in self.verdicts.items()},
            slow_beyond_chance=share["slow beyond chance"],
            plain_in_spite=share["plain in spite"],
            bound_covers=share["bound covers"],
            others=others,
        )


@dataclass(frozen=True)
class Task:
    """One family at one size, or ``--until`` its precision where ``blocks`` is None."""

    place: int
    blocks: int | None
    sweeps: int
    seed: int

    def __call__(self) -> Row:
        family = FAMILIES[self.place]
        rng = np.random.default_rng((self.seed, self.place, self.blocks or 0))
        count = Count(family)
        base, own = family.blocks(rng, self.sweeps, self.blocks or MOST_BLOCKS)
        for one, other in zip(base, own, strict=True):
            end = self.blocks or blocks_until(
                {name: other[:, place] - one for place, name in enumerate(TRUTH)}, family.until
            )
            count.add(one[:end], other[:end])
        if self.blocks is None:
            return count.row(f"until {family.until:.0%}", {})
        samples = {"": (base, own[..., 0]), " in a row": family.in_a_row(rng, self.sweeps, self.blocks)}
        others = {
            name + order: float(rule(*both).mean()) for order, both in samples.items() for name, rule in RULES.items()
        }
        others["hyperfine covers"] = 1 - float(hyperfine(*samples[""], family.expected).mean())
        return count.row(f"{self.blocks} blocks", others)


def row_of(task: Task) -> Row:
    """Run a task; a pool of processes needs a function for it."""
    return task()
