"""Simulate runs ``--until decided``: how often the verdict that a run ends with is false, and how long they are.

    python benchmarks/deciding.py [--runs 2000] [--seed 1]

A run has one target whose true ratio is known, and ends at the first look that decides, or after the most blocks. False
is a verdict on a ratio that lies on the margin, where any is, and on a ratio elsewhere one of the other side. Beside it
stands a run that looks after every block at a level of 5 %, as whoever repeats ``bench compare`` does.
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from analysis.statistics.ratios import judge, locate
from analysis.statistics.sequential import LEAST_BLOCKS, looks, should_stop_deciding

Logs = npt.NDArray[np.float64]
MARGIN, DEVIATION, MOST_BLOCKS = 0.05, 0.05, 100
TRUTHS = {"identical": 0.0, "half the margin": 0.5, "on the margin": 1.0, "twice the margin": 2.0}
NOISES: dict[str, Callable[[np.random.Generator], Logs]] = {
    "normal": lambda rng: rng.normal(0, DEVIATION, MOST_BLOCKS),
    "heavy tails": lambda rng: DEVIATION / math.sqrt(3) * rng.standard_t(3, MOST_BLOCKS),
}


def by_looks(values: Logs) -> int:
    """Return the blocks after which a run ``--until decided`` ends."""
    for blocks in looks(LEAST_BLOCKS, MOST_BLOCKS):
        if should_stop_deciding([{"target": values[:blocks]}], MARGIN, max_blocks=MOST_BLOCKS).stop:
            return blocks
    return MOST_BLOCKS


def after_every_block(values: Logs) -> int:
    """Return the blocks after which a run ends that looks after every block, at the level of one look."""
    return next((n for n in range(LEAST_BLOCKS, MOST_BLOCKS) if verdict(values[:n]) != "undecided"), MOST_BLOCKS)


def verdict(values: Logs) -> str:
    """Return what ``bench compare`` says of the blocks."""
    (judged,) = judge([locate(values)], MARGIN)
    return judged.name if judged else "undecided"


def false(name: str, truth: float) -> bool:
    """Return whether a verdict is false; ``truth`` is the distance from 1, in margins."""
    inside = name == "equivalent"
    return name != "undecided" and (truth == 1.0 or inside == (truth > 1.0))


def row(noise: str, truth: float, stop: Callable[[Logs], int], runs: int, seed: int) -> list[str]:
    """Return how many blocks the runs had on average, how many were decided, and how many falsely."""
    rng = np.random.default_rng(seed)
    blocks, names = [], []
    for _ in range(runs):
        values = NOISES[noise](rng) - truth * math.log1p(MARGIN)
        blocks.append(min(stop(values), MOST_BLOCKS))
        names.append(verdict(values[: blocks[-1]]))
    decided = sum(name != "undecided" for name in names) / runs
    wrong = sum(false(name, truth) for name in names) / runs
    return [f"{np.mean(blocks):.0f}", f"{decided:.0%}", f"{wrong:.1%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    heads = ("noise", "truth", "blocks", "decided", "false", "every block: blocks", "decided", "false")
    table = Table(*heads, title=f"margin {MARGIN:.0%}, deviation {DEVIATION:.0%}", title_justify="left")
    for noise in NOISES:
        for name, truth in TRUTHS.items():
            found = [row(noise, truth, stop, options.runs, options.seed) for stop in (by_looks, after_every_block)]
            table.add_row(noise, name, *(value for each in found for value in each))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
