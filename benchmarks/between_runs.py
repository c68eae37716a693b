"""Simulate the gate where runs of the same thing differ, to see its false alarms and the slow-downs that it misses.

    python benchmarks/between_runs.py [--runs 2000] [--blocks 6] [--seed 1]

Throughputs have a deviation of 1 % from block to block, and of ``spread`` from run to run. The noise of runs is that
of ``history.py``; that of blocks is the same, or normal if runs are ``lasting``. The bound is 5 %.

alarms   the share of gates that call a new run slower, if its level is that of the old runs, and if it is 5 % slower
missed   the share that call it not slower if it is 5 % slower: the bound is one that both may pass in 2.5 %
found    the share that call it slower if it is 10 % slower

Then ``bench compare --by host``: two hosts that are equally fast, with some runs of each. ``covers`` is the share of
95 % intervals that hold the truth, ``false`` that of verdicts ``slower`` or ``faster`` at a margin of 2 %; first by the
spread between runs, then as if all runs of a host were one.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from itertools import product

import numpy as np
from history import NOISES, NoiseName, raw

from analysis.statistics.margins import log_slower_by
from analysis.statistics.ratios import Location, judge, locate
from analysis.statistics.two_samples import difference, shift
from suite.request.repetitions import MARGIN

BOUND, BLOCK_NOISE, FAR = 0.05, 0.01, 0.1
SPREADS, BASELINES = (0.0, 0.01, 0.03), (1, 3, 5, 14)
SIDES = ((1, 1), (2, 2), (3, 1), (3, 3), (5, 5))


def outcomes(
    noise: NoiseName, spread: float, baselines: int, blocks: int, runs: int, seed: int
) -> Iterator[tuple[float, float]]:
    """Yield the ends of the interval of each gate, of the logarithm by which a run that is as fast is slower."""
    rng = np.random.default_rng(seed)
    for _ in range(runs):
        levels = raw(rng, noise, baselines + 1) * spread
        inside = raw(rng, "normal" if noise == "lasting" else noise, (baselines + 1) * blocks).reshape(-1, blocks)
        *old, new = levels[:, None] + inside * BLOCK_NOISE
        change = shift(list(old), [new])
        half = change.half_width if change else None
        if change and half is not None:
            yield -change.centre - half, -change.centre + half


def rates(
    noise: NoiseName, spread: float, baselines: int, blocks: int = 6, runs: int = 2000, seed: int = 1
) -> dict[str, float]:
    """Return the shares of wrong answers, and of slow-downs found."""
    bound, far = (-log_slower_by(share, more_is_faster=True) for share in (BOUND, FAR))
    counts: Counter[str] = Counter()
    for low, high in outcomes(noise, spread, baselines, blocks, runs, seed):
        counts["same"] += low > bound
        counts["at the bound"] += low > 0
        counts["missed"] += high < 0
        counts["found"] += low + far > bound
    return {name: counts[name] / runs for name in ("same", "at the bound", "missed", "found")}


def of_hosts(
    spread: float, sides: tuple[int, int], blocks: int = 6, runs: int = 2000, seed: int = 1
) -> dict[str, float]:
    """Return how often intervals between two equal hosts cover, and how often a verdict is false."""
    rng = np.random.default_rng(seed)
    counts: Counter[str] = Counter()
    for _ in range(runs):
        levels = rng.normal(0, spread, sum(sides))
        nights = levels[:, None] + rng.normal(0, BLOCK_NOISE, (sum(sides), blocks))
        base, own = list(nights[: sides[0]]), list(nights[sides[0] :])
        pooled = difference(*filter(None, (locate(np.concatenate(side)) for side in (base, own))))
        for name, place in (("", shift(base, own)), (" as one", pooled)):
            counts["covers" + name] += _covers(place)
            (verdict,) = judge([place], MARGIN)
            counts["false" + name] += verdict is not None and verdict.name in ("slower", "faster")
    return {name: counts[name] / runs for name in ("covers", "false", "covers as one", "false as one")}


def _covers(place: Location | None) -> bool:
    return place is not None and place.half_width is not None and abs(place.centre) <= place.half_width


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"| noise | spread of runs | {' | '.join(f'{count} old' for count in BASELINES)} |")
    for noise, spread in product(NOISES, SPREADS):
        cells = []
        for baselines in BASELINES:
            shares = rates(noise, spread, baselines, options.blocks, options.runs, options.seed)
            cells.append(", ".join(f"{share * 100:.1f}" for share in shares.values()))
        print(f"| {noise} | {spread:.0%} | {' | '.join(cells)} |", flush=True)
    print(f"| spread of runs | {' | '.join(f'{base} and {own} runs' for base, own in SIDES)} |")
    for spread in SPREADS:
        cells = []
        for sides in SIDES:
            shares = of_hosts(spread, sides, options.blocks, options.runs, options.seed)
            cells.append(", ".join(f"{share * 100:.1f}" for share in shares.values()))
        print(f"| {spread:.0%} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
