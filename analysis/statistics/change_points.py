"""Change points of a series of runs: where its level changed, by E-divisive.

The series is split where the energy distance between the two sides is largest, and each side is split again (Matteson
and James, J. Am. Statist. Assoc. 109 (2014) 334). MongoDB (Daly et al., ICPE 2020) and Hunter (Fleming et al., ICPE
2023) watch performance tests so. A split is a candidate if none of ``ORDERS`` random orders of the runs splits as well;
most series without a change are done after a few orders (Besag and Clifford, Biometrika 78 (1991) 301).

Nights are not exchangeable: a slow one is followed by slow ones. So each candidate is held, between its neighbours,
against ``DRAWS`` of weather, made of the same runs, of which ``STAYS`` stays from run to run (the sieve bootstrap:
Buehlmann, Bernoulli 3 (1997) 123). The weakest that is matched is dropped; the others are placed and tested anew.
``benchmarks/history.py`` measures what it finds, and how often there is nothing to find.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter
from scipy.spatial.distance import pdist

LEAST_RUNS = 5
"""The fewest runs between two change points: below, a change is not told from a few slow nights."""
ORDERS = 99
DRAWS = 999
_ROUNDING = 1e-9
"""Equal splits count as chance; their sums differ by this share at most."""
STAYS = 0.5
"""The share of its noise that a run may hand on to the next. Weather that lasts longer is a change of the level."""

Numbers = npt.NDArray[np.float64]


def change_points(values: Numbers) -> list[int]:
    """Return the places of the first values of each new level, in order; the same for the same values."""
    rng = np.random.default_rng(len(values))
    candidates = _split(values, 0, len(values), rng)
    changes = _placed(values, candidates)
    while changes:
        draws = [_weather_until_matched(part, rng) for part in _around(values, changes)]
        weakest = int(np.argmin(draws))
        if draws[weakest] == DRAWS:
            break
        others = [*changes[:weakest], *changes[weakest + 1 :]]
        changes = _placed(values, others)
    return changes


def _around(values: Numbers, changes: list[int]) -> list[Numbers]:
    """Return the runs around each change, from the one before it to the one after it."""
    ends = [0, *changes, len(values)]
    neighbours = zip(ends, ends[2:], strict=False)
    return [values[low:high] for low, high in neighbours]


def _placed(values: Numbers, changes: list[int]) -> list[int]:
    """Place each change anew between its neighbours: the first were placed while the series still held the others."""
    changes = sorted(changes)
    parts = _around(values, changes)
    places = set()
    for begin, part in zip([0, *changes], parts, strict=False):
        size, _ = _best(part)
        places.add(begin + size)
    return sorted(places)


def _weather_until_matched(values: Numbers, rng: np.random.Generator) -> int:
    """Return how many times weather was made of the runs before it split as well; ``DRAWS`` if it never did."""
    _, observed = _best(values)
    threshold = observed * (1 - _ROUNDING)
    added = values[1:] - STAYS * values[:-1]
    added = np.append(added, rng.choice(added)) - added.mean()
    for draw in range(DRAWS):
        fresh = rng.permutation(added)
        fresh[0] /= math.sqrt(1 - STAYS**2)  # weather has been there before the first run
        weather = lfilter([1], [1, -STAYS], fresh)
        _, distance = _best(weather)
        if distance >= threshold:
            return draw
    return DRAWS


def _split(values: Numbers, low: int, high: int, rng: np.random.Generator) -> list[int]:
    """Return the change points between two places, in the order in which they are found."""
    if high - low < 2 * LEAST_RUNS:
        return []
    part = values[low:high]
    size, observed = _best(part)
    if not observed > 0:
        return []
    threshold = observed * (1 - _ROUNDING)
    for _ in range(ORDERS):
        _, distance = _best(rng.permutation(part))
        if distance >= threshold:
            return []
    middle = low + size
    earlier = _split(values, low, middle, rng)
    later = _split(values, middle, high, rng)
    return [middle, *earlier, *later]


def _best(values: Numbers) -> tuple[int, float]:
    """Return the split with the largest energy distance, scaled by the sizes of its sides, and that distance."""
    n = len(values)
    # The sum of each value's distances to those after it, and to those before.
    distances = pdist(values[:, None], "cityblock")
    counts = np.arange(n - 1, 0, -1)
    begins = counts.cumsum() - counts
    after = np.append(np.add.reduceat(distances, begins), 0.0)
    before = _distances_to_all(values) - after
    sizes = np.arange(LEAST_RUNS, n - LEAST_RUNS + 1)
    left = before.cumsum()[sizes - 1]
    right = after[::-1].cumsum()[n - sizes - 1]
    between = before.sum() - left - right
    right_n = n - sizes
    across = 2 * between / (sizes * right_n)
    inside_left = 2 * left / (sizes * (sizes - 1))
    inside_right = 2 * right / (right_n * (right_n - 1))
    energy = across - inside_left - inside_right
    scaled = energy * sizes * right_n / n
    best = int(scaled.argmax())
    return int(sizes[best]), float(scaled[best])


def _distances_to_all(values: Numbers) -> Numbers:
    """Return the sum of each value's distances to all: in ascending order it is one of ranks and of running sums."""
    n = len(values)
    ranks = np.arange(1, n + 1)
    order = values.argsort()
    ascending = values[order]
    sums = ascending.cumsum()
    distances = np.empty_like(values)
    distances[order] = ascending * (2 * ranks - n) + sums[-1] - 2 * sums
    return distances
