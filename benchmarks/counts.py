"""Simulate counts and amounts that are often zero, to see how often a difference is false, and what intervals cover.

    python benchmarks/counts.py [--runs 1000] [--seed 1] [--json FILE]

A trial is interrupted as often as a Poisson process says, the target's ``times`` as often as bare metal's; ``lost`` is
the work that each interruption takes, evenly between none and 6 steps. Bare metal has ``mean`` interruptions.

differs   the share of runs that call the two different at 5 %: false where times is 1
covers    the 95 % interval holds the true difference; without an interval (few blocks, nothing but zeros) it does
Poisson   the share that the exact test of two Poisson counts (Przyborowski and Wilenski, Biometrika 31 (1940) 313)
          calls different, which takes the lost steps for independent
no zeros  the false verdicts of the ratio of the blocks without a zero: equivalent if times is 2, else a difference
"""

import json
from collections import Counter
from itertools import product
from typing import Literal

import numpy as np
import numpy.typing as npt
from parts.simulations import parser, show
from scipy import stats

from analysis.statistics.counts import inside_blocks
from analysis.statistics.ratios import SIGNIFICANCE, judge, locate
from suite.request.repetitions import MARGIN

KINDS: tuple[Literal["count", "lost"], ...] = ("count", "lost")
MEANS, TIMES, BLOCKS = (0.1, 0.5, 2.0), (1.0, 2.0), (10, 20, 40)
_MOST_LOST = 6.0
COLUMNS = ("differs", "covers", "Poisson", "no zeros")


def drawn(
    rng: np.random.Generator, kind: Literal["count", "lost"], mean: float, blocks: int
) -> npt.NDArray[np.float64]:
    """Return what the trials of one side count or lose, by block."""
    interruptions = rng.poisson(mean, blocks)
    if kind == "count":
        return interruptions.astype(np.float64)
    return np.array([rng.uniform(0, _MOST_LOST, number).sum() for number in interruptions])


def rates(
    kind: Literal["count", "lost"], mean: float, times: float, blocks: int, runs: int = 1000, seed: int = 1
) -> dict[str, float]:
    rng = np.random.default_rng((seed, KINDS.index(kind), int(mean * 10), int(times), blocks))
    truth = mean * (times - 1) * (1 if kind == "count" else _MOST_LOST / 2)
    counts: Counter[str] = Counter()
    for _ in range(runs):
        base, own = drawn(rng, kind, mean, blocks), drawn(rng, kind, mean * times, blocks)
        found = inside_blocks(own - base)
        if found is None:
            continue
        counts["differs"] += found.p <= SIGNIFICANCE
        counts["covers"] += found.interval is None or found.interval[0] <= truth <= found.interval[1]
        totals = round(own.sum()), round(base.sum())
        counts["Poisson"] += sum(totals) > 0 and stats.binomtest(totals[0], sum(totals)).pvalue <= SIGNIFICANCE
        both = (base > 0) & (own > 0)
        (verdict,) = judge([locate(np.log(own[both] / base[both]))], MARGIN)
        false = ("equivalent",) if times > 1 else ("slower", "faster")
        counts["no zeros"] += verdict is not None and verdict.name in false
    return {name: counts[name] / runs for name in COLUMNS}


def main() -> None:
    options = parser(__doc__, "runs", 1000).parse_args()
    rows = []
    for kind, mean, times, blocks in product(KINDS, MEANS, TIMES, BLOCKS):
        found = rates(kind, mean, times, blocks, options.runs, options.seed)
        rows.append({"kind": kind, "mean": mean, "times": times, "blocks": blocks, **found})
    texts = []
    for row in rows:
        shares = (f"{row[name]:.1%}" for name in COLUMNS)
        texts.append((str(row["kind"]), f"{row['mean']:g}", f"{row['times']:g}", f"{row['blocks']}", *shares))
    show("counts with zeros", ("kind", "mean", "times", "blocks", *COLUMNS), texts)
    if options.json:
        options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
