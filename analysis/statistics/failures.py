"""The statistics of trials that fail: they have no value, and are not missing at random.

A trial that times out is one of the slowest. The trials that finish then look alike on both sides, and say nothing of
those that did not. Sources:

- More failures than the base? McNemar's exact test, Psychometrika 12 (1947) 153, on blocks in which one side failed.
- Shares, and their difference: Clopper and Pearson, Biometrika 26 (1934) 404; the ends of a difference are those of two
  shares at half the level each (Bonferroni), so that it covers whatever the two have to do with each other.

``benchmarks/failures.py`` measures how often verdicts are false if slow trials time out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import special

from analysis.statistics.power import TRIM
from analysis.statistics.ratios import CONFIDENCE, FAILS_MORE, SIGNIFICANCE, Verdict, VerdictName, holm

_HIDDEN_BY_OWN = ("equivalent", "typical-only", "faster", "not slower")
"""The verdicts that trials of the target which finished cannot carry for those that failed: they may have been slow."""
_HIDDEN_BY_BASE = ("equivalent", "typical-only", "slower", "tail")
_BOTH_ENDS = (1 + CONFIDENCE) / 2


def more_often(own: int, base: int) -> float:
    """Return the chance of so many of the events on the own side if both sides had them equally often, one-sided."""
    if own:
        return float(special.bdtrc(own - 1, own + base, 0.5))
    return 1.0


def most(events: int, n: int, confidence: float = CONFIDENCE) -> float:
    """Return the share of ``n`` trials that events have at most, one-sided."""
    if events < n:
        return float(special.betaincinv(events + 1, n - events, confidence))
    return 1.0


def least(events: int, n: int, confidence: float = CONFIDENCE) -> float:
    """Return the share of ``n`` trials that events have at least, one-sided."""
    return 1 - most(n - events, n, confidence)


@dataclass(frozen=True)
class Failures:
    """The failed trials of a target and of its base, in the ``n`` blocks that hold a trial of both."""

    own: int
    """The blocks in which the target's trial failed, and the base's did not."""
    base: int
    """The blocks in which the base's trial failed, and the target's did not."""
    both: int
    n: int

    @property
    def of_own(self) -> int:
        return self.own + self.both

    @property
    def of_base(self) -> int:
        return self.base + self.both

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval of the share of the target's trials that fail."""
        return least(self.of_own, self.n, _BOTH_ENDS)

    @property
    def high(self) -> float:
        return most(self.of_own, self.n, _BOTH_ENDS)

    @property
    def p(self) -> float:
        """The chance of so many of the failures on the target if both failed equally often."""
        return more_often(self.own, self.base)

    @property
    def most_more(self) -> float:
        """The share by which the target fails more often than the base at most, at ``CONFIDENCE``, one-sided."""
        return most(self.own, self.n, _BOTH_ENDS) - least(self.base, self.n, _BOTH_ENDS)


NONE_FAILED = Failures(0, 0, 0, 0)


def count_failures(own: npt.NDArray[np.bool_], base: npt.NDArray[np.bool_]) -> Failures:
    """Count the failed trials of both sides, each given by block."""
    return Failures(
        int((own & ~base).sum()),
        int((base & ~own).sum()),
        int((own & base).sum()),
        len(own),
    )


def may_hide(name: VerdictName, failures: Failures, margin: float) -> bool:
    """Return whether failed trials may have been so slow that the verdict on the others would be false.

    More failed trials on one side than trimming leaves out at each end hide the typical trial there. One more than the
    base had is enough against ``equivalent`` and ``typical-only``, which speak of all trials, until the difference of
    the shares is shown to be within the margin.
    """
    trimmed = TRIM * failures.n
    if name in _HIDDEN_BY_OWN and failures.own > trimmed:
        return True
    if name in _HIDDEN_BY_BASE and failures.base > trimmed:
        return True
    if name not in ("equivalent", "typical-only"):
        return False
    return failures.own > failures.base and failures.most_more > margin


def failing_more(verdicts: Sequence[Verdict | None], failures: Sequence[Failures | None]) -> list[Verdict | None]:
    """Return the verdicts of one family, with ``fails more`` for targets that fail more often than their base.

    At 5 % and Holm-adjusted. A target that is slower in spite of its missing trials stays so.
    """
    levels = holm([of_arm.p if of_arm else np.nan for of_arm in failures])
    renamed: list[Verdict | None] = []
    for verdict, level in zip(verdicts, levels, strict=True):
        if verdict and verdict.name != "slower" and level <= SIGNIFICANCE:
            renamed.append(replace(verdict, name=FAILS_MORE, p=level, more_blocks=None))
        else:
            renamed.append(verdict)
    return renamed
