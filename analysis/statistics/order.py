"""Tests of a ratio by the order of its blocks, and of the trials in them.

- Dependence: the rank version of von Neumann's ratio, Bartels, J. Am. Statist. Assoc. 77 (1982) 40, with his beta
  distribution, which keeps its level from ten values on, whatever their noise. One-sided: only blocks that resemble the
  one before make an interval too narrow. ``benchmarks/order.py`` has level and power.
- Place in the block: least squares of the log ratios on the places between both trials, with Student's t.
"""

import math

import numpy as np
import pandas as pd
from scipy import special

from analysis.statistics.ratios import Location, Samples

LEAST_TO_DEPEND = 10
DEPENDENCE_LEVEL = 0.01
"""The fewest blocks that are tested, and the share of independent series that may be called dependent."""


def dependence(values: Samples) -> float:
    """Return the level at which values resemble the one before; NaN for too few, and for equal ones."""
    n = len(values)
    ranks = pd.Series(values).rank().to_numpy()
    deviations = ranks - (n + 1) / 2
    spread = float((deviations**2).sum())
    if n < LEAST_TO_DEPEND or spread == 0:
        return math.nan
    numerator = 5 * n * (n + 1) * (n - 1) ** 2
    denominator = 2 * (n - 2) * (5 * n**2 - 2 * n - 9)
    shape = numerator / denominator - 0.5
    steps = np.diff(ranks)
    neumann_ratio = float((steps**2).sum()) / spread
    return float(special.betainc(shape, shape, neumann_ratio / 4))


def place_effect(log_ratios: Samples, later: Samples) -> Location | None:
    """Return what one place in a block adds to the logarithm of its later trial; None where that cannot be seen.

    ``later``: by how many places the trial of the target came after that of bare metal.
    """
    n = len(later)
    if n < 3 or np.ptp(later) == 0:
        return None
    (slope, _), covariance = np.polyfit(later, log_ratios, 1, cov=True)
    standard_error = math.sqrt(covariance[0, 0])
    return Location(float(slope), standard_error, n - 2, n)
