"""Change points of a series of runs: where its level changed, by E-divisive.

The series is split where the energy distance between the two sides is largest, and each side is split again (Matteson
and James, J. Am. Statist. Assoc. 109 (2014) 334). MongoDB (Daly et al., ICPE 2020) and Hunter (Fleming et al., ICPE
2023) watch performance tests so. A split counts if none of ``PERMUTATIONS`` random orders of the runs splits as well:
the level of that test is 1 / (``PERMUTATIONS`` + 1) whatever the noise is, as long as runs are exchangeable, and most
series without a change are done after a few orders (Besag and Clifford, Biometrika 78 (1991) 301).
``benchmarks/history.py`` measures what it finds, and how often there is nothing to find.
"""

import numpy as np
import numpy.typing as npt

LEAST_RUNS = 3
"""The fewest runs between two change points: below, a change is not told from a few noisy runs."""
PERMUTATIONS = 999

Numbers = npt.NDArray[np.float64]


def change_points(values: Numbers) -> list[int]:
    """Return where the level changes: the places of the first values of each new level, in order.

    The same values give the same places: the orders are drawn from a generator of their own.
    """
    distances = np.abs(values[:, None] - values[None, :])
    found = sorted(_split(distances, 0, len(values), np.random.default_rng(len(values))))
    # The first split was placed while the series still held the others; between its neighbours it is placed better.
    ends = [0, *found, len(values)]
    neighbours = zip(ends, ends[2:], strict=False)
    return sorted({low + _best(distances[low:high, low:high])[0] for low, high in neighbours})


def _split(distances: Numbers, low: int, high: int, rng: np.random.Generator) -> list[int]:
    """Return the change points between two places, in the order in which they are found."""
    if high - low < 2 * LEAST_RUNS:
        return []
    own = distances[low:high, low:high]
    place, observed = _best(own)
    if not observed > 0 or _matched_by_chance(own, observed, rng):
        return []
    middle = low + place
    return [middle, *_split(distances, low, middle, rng), *_split(distances, middle, high, rng)]


def _matched_by_chance(distances: Numbers, observed: float, rng: np.random.Generator) -> bool:
    """Return whether any random order of the runs splits as well as the one that was observed."""
    for _ in range(PERMUTATIONS):
        order = rng.permutation(len(distances))
        # Equal splits count as chance; their sums differ by rounding.
        if _best(distances[np.ix_(order, order)])[1] >= observed * (1 - 1e-9):
            return True
    return False


def _best(distances: Numbers) -> tuple[int, float]:
    """Return the split with the largest energy distance, scaled by the sizes of its sides, and that distance."""
    n = len(distances)
    before = np.tril(distances).sum(axis=1)  # of each value to those before it
    after = distances.sum(axis=1) - before
    sizes = np.arange(LEAST_RUNS, n - LEAST_RUNS + 1)
    left = before.cumsum()[sizes - 1]
    right = after[::-1].cumsum()[n - sizes - 1]
    between = before.sum() - left - right
    rest = n - sizes
    energy = 2 * between / (sizes * rest) - 2 * left / (sizes * (sizes - 1)) - 2 * right / (rest * (rest - 1))
    scaled = energy * sizes * rest / n
    place = int(scaled.argmax())
    return int(sizes[place]), float(scaled[place])
