"""Simulate runs ``--until decided``: how often each verdict is given, and how long the runs are.

    python benchmarks/deciding.py [--runs 4000] [--seed 1] [--json FILE]

A run has one target whose true ratio is known, and ends at the first look that decides, or after the most blocks; the
verdict is that of ``bench compare``. On a ratio that lies on the margin both verdicts are false, and either side is to
hold 5 %. Beside it stand two other rules: the same looks at one level of 1 %, with the verdict at 5 % where the run
ends undecided (the suite's until 2026), and looks after every block at 5 %, as whoever repeats ``bench compare`` has
them.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from parts.simulations import parser, show
from power import located
from scipy import special

from analysis.statistics.margins import bounds_of
from analysis.statistics.ratios import SIGNIFICANCE
from analysis.statistics.sequential import LEAST_BLOCKS, level_after, looks

Logs = npt.NDArray[np.float64]
MARGIN, DEVIATION, MOST_BLOCKS = 0.05, 0.05, 100
TRUTHS = {"identical": 0.0, "half the margin": 0.5, "on the margin": 1.0, "twice the margin": 2.0}


def _bimodal(rng: np.random.Generator, shape: tuple[int, ...]) -> Logs:
    # Either trial of a block is in one of two modes, twice their own deviation apart.
    modes: Logs = np.subtract(rng.integers(0, 2, shape), rng.integers(0, 2, shape), dtype=np.float64)
    return rng.normal(0, math.sqrt(0.5), shape) + modes


NOISES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Logs]] = {
    "normal": lambda rng, shape: rng.normal(0, 1, shape),
    "heavy tails": lambda rng, shape: rng.standard_t(3, shape) / math.sqrt(3),
    # The difference of two exponential times.
    "skewed": lambda rng, shape: rng.laplace(0, math.sqrt(0.5), shape),
    "bimodal": _bimodal,
}
"""The noise of a block's log ratio, with a deviation of 1; both of its trials have the same."""


@dataclass(frozen=True)
class Rule:
    """The blocks after which a run looks, with the level of each look; the last is where it ends."""

    name: str
    looks: Sequence[int]
    levels: Sequence[float]


_LOOKS = [*(look for look in looks(LEAST_BLOCKS, MOST_BLOCKS) if look < MOST_BLOCKS), MOST_BLOCKS]
_EVERY = range(LEAST_BLOCKS, MOST_BLOCKS + 1)
RULES = (
    Rule("until decided", _LOOKS, [level_after(blocks, LEAST_BLOCKS) for blocks in _LOOKS]),
    Rule("at 1 %", _LOOKS, [0.01] * (len(_LOOKS) - 1) + [SIGNIFICANCE]),
    Rule("every block", _EVERY, [SIGNIFICANCE] * len(_EVERY)),
)


@dataclass(frozen=True)
class Ends:
    """How runs ended: the mean of their blocks, and the shares with a verdict within and beyond the margin."""

    blocks: float
    within: float
    beyond: float
    covers: float
    """The share of the runs whose interval of 95 %, after the last block, covers the truth."""

    @property
    def texts(self) -> tuple[str, ...]:
        return f"{self.blocks:.0f}", f"{self.within:.1%}", f"{self.beyond:.1%}", f"{self.covers:.1%}"


def levels(values: Logs, blocks: int, truth: float) -> Logs:
    """Return the levels at which the first blocks of each run are within the margin, beyond it, and at the truth."""
    place, bounds = located(values[:, :blocks]), bounds_of(MARGIN)
    from_margin = np.maximum(place.centres - bounds.high, bounds.low - place.centres) / place.errors
    from_truth = np.abs(place.centres - truth) / place.errors
    within, beyond, apart = (special.stdtr(place.freedom, far) for far in (from_margin, -from_margin, -from_truth))
    return np.array([within, 2 * beyond, 2 * apart])


def ends(rule: Rule, found: dict[int, Logs]) -> Ends:
    """Return how runs end by a rule; ``found`` holds their ``levels``."""
    holds = np.array([found[look][:2] <= level for look, level in zip(rule.looks, rule.levels, strict=True)])
    decided = holds.any(axis=1)
    last = np.where(decided.any(axis=0), decided.argmax(axis=0), len(rule.looks) - 1)
    within, beyond = (holds[last, side, np.arange(len(last))].mean() for side in (0, 1))
    blocks = np.array(rule.looks)[last]
    covered = [found[look][2, run] > SIGNIFICANCE for run, look in enumerate(blocks)]
    return Ends(float(blocks.mean()), float(within), float(beyond), float(np.mean(covered)))


def simulated(noise: str, truth: float, runs: int, seed: int, rules: Sequence[Rule] = RULES) -> list[Ends]:
    """Return how runs end by each rule; ``truth`` is the distance of the true ratio from 1, in margins."""
    ratio = truth * bounds_of(MARGIN).low
    values = DEVIATION * NOISES[noise](np.random.default_rng(seed), (runs, MOST_BLOCKS)) + ratio
    found = {look: levels(values, look, ratio) for look in dict.fromkeys(look for rule in rules for look in rule.looks)}
    return [ends(rule, found) for rule in rules]


def main() -> None:
    options = parser(__doc__, "runs", 4000).parse_args()
    heads = (head for rule in RULES for head in (f"{rule.name}: blocks", "within", "beyond", "covers"))
    found = {
        (noise, name): simulated(noise, truth, options.runs, options.seed)
        for noise in NOISES
        for name, truth in TRUTHS.items()
    }
    rows = ((*key, *(text for one in ends for text in one.texts)) for key, ends in found.items())
    show(f"margin {MARGIN:.0%}, deviation {DEVIATION:.0%}", ("noise", "truth", *heads), rows)
    if options.json:
        told = [{"noise": noise, "truth": name, "ends": [*map(asdict, ends)]} for (noise, name), ends in found.items()]
        options.json.write_text(json.dumps({"runs": options.runs, "seed": options.seed, "rows": told}))


if __name__ == "__main__":
    main()
