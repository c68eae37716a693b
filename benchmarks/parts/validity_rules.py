"""The verdicts of other tools on the same samples, by the rules that their documentation and sources describe.

pyperf     ``compare_to`` calls a difference significant when a two-sample, two-sided Student t test of all values of
           one against all of the other is, at 95 % (pyperf.readthedocs.io). It gives no interval of the ratio.
hyperfine  reports the ratio of the two means, plus or minus a standard deviation propagated from those of the two
           samples (``relative_speed`` in its source). A reader takes 1.05 +- 0.02 as a difference.
asv        ``compare`` calls a difference significant by a Mann-Whitney U test at a level of 0.002, or, where the
           samples are too few for the test to reach it, where the two 99 % confidence intervals of the medians do not
           overlap (asv.readthedocs.io, ``is_different`` in its source). A nonparametric interval of five values is
           infinite at 99 %. The factor of 1.1 below which it then hides a difference is not applied here.

None of them forms ratios inside blocks: each takes all trials of one target before those of the next.
"""

import numpy as np
import numpy.typing as npt
from parts.validity_samples import Logs
from scipy import special, stats

Found = npt.NDArray[np.bool_]


def pyperf(base: Logs, own: Logs) -> Found:
    """Return the sweeps in which a difference is significant."""
    one, other = np.exp(base), np.exp(own)
    n = one.shape[1]
    error = np.sqrt((one.var(axis=1, ddof=1) + other.var(axis=1, ddof=1)) / n)
    found: Found = np.abs(other.mean(axis=1) - one.mean(axis=1)) > error * special.stdtrit(2 * n - 2, 0.975)
    return found


def hyperfine(base: Logs, own: Logs, truth: float = 0.0) -> Found:
    """Return the sweeps in which the ratio lies further from the truth than its propagated deviation."""
    one, other = np.exp(base), np.exp(own)
    ratio = other.mean(axis=1) / one.mean(axis=1)
    parts = [sample.std(axis=1, ddof=1) / sample.mean(axis=1) for sample in (one, other)]
    found: Found = np.abs(ratio - np.exp(truth)) > ratio * np.hypot(*parts)
    return found


def asv(base: Logs, own: Logs) -> Found:
    """Return the sweeps in which the samples are statistically different."""
    n = base.shape[1]
    if 1 / special.binom(2 * n, n) >= 0.002:
        return np.zeros(len(base), dtype=np.bool_)
    found: Found = stats.mannwhitneyu(base, own, axis=1, method="exact" if n <= 20 else "asymptotic").pvalue < 0.002
    return found


RULES = {"pyperf": pyperf, "hyperfine": hyperfine, "asv": asv}
