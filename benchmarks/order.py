"""Simulate runs of equal targets under a drift, or an effect of the place in a block, in two orders of the trials.

    python benchmarks/order.py [--runs 2000] [--seed 1] [--json FILE]

*balanced* is the order of the suite, drawn anew for each run; *by itself* is that of the suite until November 2026,
which drew each block's order by itself, from seed 0 in every run. Trials have normal noise of 0.5 %. With *drift* each
trial is 0.7 % slower than the one before, with *place* all trials of a block but the first are 3 % slower. The second
table has how often the test for dependent blocks finds a correlation from block to block, and what it does to coverage.
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from parts.simulations import parser, show
from parts.validity_samples import Logs

from analysis.statistics.order import DEPENDENCE_LEVEL, dependence
from analysis.statistics.ratios import judge, locate
from suite.plan import balanced
from suite.request.repetitions import MARGIN

NOISE, DRIFT, SLOWER = 0.005, 0.007, math.log(1.03)
ARMS, BLOCKS, CORRELATIONS = (2, 3, 4, 5), (5, 6, 7, 10, 20), (0.0, 0.3, 0.5, 0.7, 0.9)
Order = Callable[[int, int, int], Sequence[int]]
"""Returns the order of the arms: of a run, a block and the number of arms."""
ORDERS: dict[str, Order] = {
    "by itself": lambda _run, block, arms: random.Random(f"0/{block}").sample(range(arms), arms),  # noqa: S311
    "balanced": lambda run, block, arms: balanced(range(arms), block, str(run)),
}
EFFECTS: dict[str, Callable[[Logs, Logs], Logs]] = {
    "none": lambda _trial, place: 0.0 * place,
    "drift": lambda trial, _place: DRIFT * trial,
    "place": lambda _trial, place: SLOWER * np.minimum(place, 1.0),
}
"""What the log time of a trial has beside its noise, by its number in the run and its place in its block."""


def run_of(effect: str, order: str, run: int, arms: int, blocks: int, rng: np.random.Generator) -> Logs:
    """Return the log times of one run, by block and arm."""
    orders = [ORDERS[order](run, block, arms) for block in range(blocks)]
    places = np.argsort(orders, axis=1).astype(np.float64)
    trials = places + arms * np.arange(blocks)[:, None]
    return EFFECTS[effect](trials, places) + rng.normal(0, NOISE, places.shape)


def shares(effect: str, order: str, arms: int, blocks: int, runs: int, seed: int) -> tuple[float, float]:
    """Return how often an interval covers 1, and the share of the runs with a verdict that differs."""
    rng, covered, false = np.random.default_rng((seed, arms, blocks)), [], []
    for run in range(runs):
        times = run_of(effect, order, run, arms, blocks, rng)
        places = [locate(times[:, arm] - times[:, 0]) for arm in range(1, arms)]
        ends = [place.interval for place in places if place and place.interval]
        covered += [low <= 0 <= high for low, high in ends]
        verdicts = judge(places, MARGIN, more_is_faster=False)
        false.append(any(one and one.name in ("slower", "faster") for one in verdicts))
    return float(np.mean(covered)), float(np.mean(false))


def rows(runs: int, seed: int) -> Iterator[list[str]]:
    """Yield coverage and false verdicts, in percent, of each effect and order; the numbers of blocks are columns."""
    for effect in EFFECTS:
        for arms in ARMS:
            for order in ORDERS:
                found = [shares(effect, order, arms, blocks, runs, seed) for blocks in BLOCKS]
                texts = [f"{100 * covers:.1f}, {100 * false:.1f}" for covers, false in found]
                yield [effect, str(arms), order, *texts]


def dependent(runs: int, seed: int) -> Iterator[list[str]]:
    """Yield by length and correlation of series, in percent, how many are called dependent and how many covered."""
    rng = np.random.default_rng(seed)
    for blocks in (10, 12, 16, 20, 40, 86):
        texts = []
        for correlation in CORRELATIONS:
            series = rng.normal(size=(runs, blocks))
            for block in range(1, blocks):
                series[:, block] = correlation * series[:, block - 1] + math.sqrt(1 - correlation**2) * series[:, block]
            intervals = [place.interval for values in series if (place := locate(values)) and place.interval]
            covered = np.mean([low <= 0 <= high for low, high in intervals])
            called = np.mean([dependence(values) <= DEPENDENCE_LEVEL for values in series])
            texts.append(f"{100 * called:.1f}, {100 * covered:.1f}")
        yield [str(blocks), *texts]


def main() -> None:
    options = parser(__doc__, "runs", 2000).parse_args()
    tables = {
        "coverage of 95 % intervals, and false verdicts at 2 %": (
            ["effect", "targets", "order", *(f"{blocks} blocks" for blocks in BLOCKS)],
            list(rows(options.runs, options.seed)),
        ),
        "series called dependent, and coverage of their 95 % intervals": (
            ["blocks", *map(str, CORRELATIONS)],
            list(dependent(options.runs, options.seed)),
        ),
    }
    for title, (heads, lines) in tables.items():
        show(title, heads, lines)
    if options.json:
        options.json.write_text(json.dumps({"runs": options.runs, "seed": options.seed, **tables}))


if __name__ == "__main__":
    main()
