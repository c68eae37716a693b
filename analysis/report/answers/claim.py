"""A claim: one metric of one target over bare metal, as number, word and reasons.

A reason ends with what is its own in parentheses; what stands before them, several claims can share.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten

from analysis.compare.results import Circumstances, ComparedJob, Contrast, Disturbed
from analysis.compare.verdicts import FAILED_TRIALS
from analysis.report.formatting import (
    TOO_NOISY,
    brief,
    excluded,
    failing,
    hidden,
    parting,
    percent,
    reachable,
    sensible,
)
from analysis.statistics.margins import bounds_of, slower_by
from analysis.statistics.power import TRIM, trimmed
from analysis.statistics.ratios import FAILS_MORE, SIGNIFICANCE
from analysis.statistics.sequential import LEAST_BLOCKS
from analysis.warnings.conditions import who
from suite.targets import CONTAINERS, base_of
from suite.units import count, number

UNDECIDED = "undecided"
NO_VERDICT = "no verdict"
NO_NUMBER = "no number"
_SIDES = {
    FAILS_MORE: "",
    "slower": "beyond",
    "tail": "slow trials are beyond, the typical one is within",
    "typical-only": "slow trials may be beyond, the typical one is within",
    "equivalent": "within",
    "faster": "beyond",
    UNDECIDED: "within or beyond",
}
WORDS = (*_SIDES, NO_VERDICT, NO_NUMBER)
"""The words of claims: the names of verdicts, and those in their place."""
_LONGEST_FAILURE = 120
"""The letters of a failure's message that have room in a reason; ``bench results show`` has all."""
_BASES = {"isolation": "itself alone", "run": "the old run"}


@dataclass(frozen=True)
class Claim:
    """One metric of one target over bare metal, with everything that makes it readable alone."""

    found: Contrast
    what: str
    """The model or the probe, or what stands for several."""
    around: Circumstances
    notes: tuple[str, ...] = ()
    """Substitutes, and marks without which the number must not be read."""
    failure: str = ""
    """Why the target's trials failed, as most of them say."""

    @property
    def job(self) -> ComparedJob:
        return self.found.job

    @property
    def target(self) -> str:
        return self.found.target

    @property
    def metric(self) -> str:
        return self.found.metric.name

    @property
    def margin(self) -> float | None:
        """Return the margin that it was judged by; None where nothing was judged."""
        return self.found.verdict.margin if self.found.verdict else None

    @property
    def withheld(self) -> tuple[str, ...]:
        return self.found.verdict.withheld if self.found.verdict else ()

    @property
    def equivalent_at(self) -> float | None:
        """Return a wider margin at which an undecided claim is decided already; None without one."""
        undecided = self.word == UNDECIDED and not hidden(self.found)
        if self.found.verdict and undecided:
            return self.found.verdict.equivalent_at
        return None

    @property
    def slower(self) -> float | None:
        """Return the share by which the target is slower; negative where it is faster, None without a ratio."""
        if self.found.ratio is None:
            return None
        return slower_by(self.found.ratio, more_is_faster=self.found.metric.more_is_faster)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval of ``slower``, the lower end first."""
        if self.found.interval is None:
            return None
        more_is_faster = self.found.metric.more_is_faster
        low, high = sorted(slower_by(end, more_is_faster=more_is_faster) for end in self.found.interval)
        return low, high

    @property
    def subject(self) -> str:
        """Return what is compared with bare metal: ``container (podman)``, ``vm (accelerator:tcg)``."""
        engine = self.around.engine if self.target in CONTAINERS else ""
        details = ", ".join(filter(None, (engine, *self.notes)))
        return f"{self.target} ({details})" if details else self.target

    @property
    def _base(self) -> str:
        return base_of(self.target)

    @property
    def base(self) -> str:
        return _BASES.get(self.found.kind) or ", ".join(self.found.base) or self._base.replace("-", " ")

    @property
    def over(self) -> str:
        """Return what the ratio is to; empty if it is not shown."""
        return "" if self.found.ratio is None or hidden(self.found) else self.base

    @property
    def value(self) -> str:
        """Return the ratio, or why it is not shown; the value where it is over nothing, a dash without any."""
        contrast = self.found
        if not contrast.measured:
            return "-"
        why_not = hidden(contrast)
        if why_not:
            return why_not
        if contrast.ratio is None:
            if contrast.value is None:
                return "-"
            return f"{number(contrast.value)} {contrast.metric.unit}".rstrip()
        return brief(contrast.ratio)

    @property
    def span(self) -> str:
        """Return the interval of the ratio: ``(0.975 to 0.989)``; empty without one that is shown."""
        interval = self.found.interval
        after = " after stopping" if self.around.decided else ""
        if self.found.runs and self.found.spread is None:
            after = " in these runs alone"
        if not self.over or not interval:
            return ""
        return f"({' to '.join(map(brief, interval))}{after})"

    @property
    def word(self) -> str:
        if self.found.ratio is None:
            return NO_NUMBER
        if self.found.verdict:
            return self.found.verdict.name or NO_VERDICT
        return UNDECIDED

    @property
    def failed(self) -> str:
        """Return ``6 of 20 failed (12 to 54 %), none on bare metal, p = 0.016``; empty if no trial failed."""
        if self.found.failures:
            return failing(self.found.failures, self.base)
        return ""

    @property
    def awaits_blocks(self) -> bool:
        """Return whether more blocks may decide it."""
        return self.word in (UNDECIDED, NO_VERDICT) and not self.awaits_repair

    @property
    def awaits_repair(self) -> bool:
        """Return whether failed trials alone leave it open: more blocks decide nothing until fewer fail."""
        if self.word == NO_VERDICT:
            return all(reason.startswith(FAILED_TRIALS) for reason in self.withheld)
        return self.word == FAILS_MORE or (self.word == NO_NUMBER and self.found.failed > 0)

    @property
    def why(self) -> tuple[str, ...]:
        """Return the reasons of the word, the one that decides first."""
        decided = self.found.ratio is not None and not self.withheld
        return (*self._reasons(), *(self._disturbed() if decided else ()))

    def _reasons(self) -> Iterator[str]:
        if not self.found.measured:
            yield self._unfinished()
        elif self.slower is None:
            yield f"no {self._base} trial to compare with"
        elif self.withheld:
            yield from self.withheld
            if any(reason.startswith(FAILED_TRIALS) for reason in self.withheld):
                yield from self._failures()
        elif self.word == FAILS_MORE:
            yield f"it fails more often than {self.base}, and the ratio is that of trials that finished ({self.costs})"
            yield from self._failures()
        else:
            details = "; ".join(filter(None, (self.costs, *self._of_tail(), *self._of_runs())))
            yield f"{self._side} the margin of {percent(self.margin or 0.0)} ({details}){self._not_yet}"
            if self.equivalent_at:
                yield f"already equivalent at {percent(self.equivalent_at)}"

    @property
    def _side(self) -> str:
        """Return on which side of the margin the ratio is, as far as its interval tells."""
        side = self._undecided_side
        if side:
            return f"its interval is {side}"
        return _SIDES[self.word]

    @property
    def _undecided_side(self) -> str:
        """Return ``within`` or ``beyond`` where an undecided ratio has its whole interval there; else empty."""
        interval = self.found.interval
        if self.word != UNDECIDED or interval is None or self.margin is None:
            return ""
        low, high = interval
        least, most = bounds_of(self.margin).ratios
        if least < low and high < most:
            return "within"
        if high < least or most < low:
            return "beyond"
        return ""

    @property
    def _not_yet(self) -> str:
        """Return why an interval on one side of the margin is no verdict yet; empty for any other."""
        verdict = self.found.verdict
        if not self._undecided_side or verdict is None or verdict.p is None:
            return ""
        of_several = "one of several comparisons"
        if verdict.level < SIGNIFICANCE:
            of_several = "a run that looks again and again"
        return f", which is not yet enough for {of_several} (p = {verdict.p:.2g}, at most {verdict.level:.2g})"

    def _failures(self) -> Iterator[str]:
        if self.failure:
            yield f"{self.target} failed: {shorten(self.failure, _LONGEST_FAILURE, placeholder=' ...')}"

    def _unfinished(self) -> str:
        """Return that no trial finished, how many failed, and why."""
        if not self.found.failed:
            return "no trial finished"
        why = ""
        if self.failure:
            why = f": {shorten(self.failure, _LONGEST_FAILURE, placeholder=' ...')}"
        return f"no trial finished ({self.found.failed} failed{why})"

    def _of_tail(self) -> Iterator[str]:
        if self.word in ("tail", "typical-only"):
            yield parting(self.found)
        elif self.word == "equivalent" and self.found.slow:
            yield f"excluded: {excluded(self.found.slow)}"

    def _of_runs(self) -> Iterator[str]:
        if self.found.runs and self.found.spread is not None:
            yield f"runs of the same differ by {percent(self.found.spread)}, standard deviation"

    @property
    def costs(self) -> str:
        """Return the interval as a loss: ``1.1 to 2.5 % slower``, ``3 % slower to 1 % faster``; needs a ratio."""
        if self.found.interval and not sensible(self.found.interval):
            return TOO_NOISY
        low, high = self.interval or (self.slower or 0.0, self.slower or 0.0)
        if low * high < 0 or abs(high) > 1 or abs(low) > 1:
            return f"{direction(high)} to {direction(low)}"
        least, most = sorted((abs(low), abs(high)))
        if least == most:
            span = percent(most)
        else:
            span = f"{percent(least).removesuffix(' %')} to {percent(most)}"
        return f"{span} {'slower' if (self.slower or 0.0) > 0 else 'faster'}"

    @property
    def more_blocks(self) -> int | None:
        """Return how many more blocks would probably decide it; None where that is not known, or out of reach."""
        if self.found.verdict:
            return reachable(self.found.verdict.more_blocks)
        return None

    @property
    def lacking_blocks(self) -> int | None:
        """Return how many more blocks a verdict takes, where they are not disturbed; None for more than in reach."""
        if not self.withheld:
            return self.more_blocks
        blocks = self.found.blocks
        needed = max(LEAST_BLOCKS, blocks + (self.more_blocks or 0))
        for disturbance in self._disturbances:
            # So many that trimming leaves out those that are disturbed now.
            needed = max(needed, blocks * math.ceil(disturbance.spoiled / (TRIM * disturbance.of)))
        return reachable(needed - blocks)

    @property
    def more_s(self) -> float | None:
        if self.more_blocks and self.around.block_s:
            return self.more_blocks * self.around.block_s
        return None

    @property
    def _disturbances(self) -> list[Disturbed]:
        """Return the disturbances of the trials of either side."""
        disturbed = self.around.disturbed
        return [*disturbed.get(self.target, ()), *disturbed.get(self._base, ())]

    def _disturbed(self) -> Iterator[str]:
        by_finding: dict[str, list[Disturbed]] = defaultdict(list)
        for disturbance in self._disturbances:
            by_finding[disturbance.finding].append(disturbance)
        for disturbed in by_finding.values():
            yield _within_bounds(disturbed, trims=trimmed(self.found.blocks) > 0)


def _within_bounds(disturbed: Sequence[Disturbed], *, trims: bool) -> str:
    """Return one kind of disturbance that withholds nothing, on one side or on both."""
    first = disturbed[0]
    trials = sum(disturbance.trials for disturbance in disturbed)
    of = sum(disturbance.of for disturbance in disturbed)
    noticed = f"{first.noticed} " if first.noticed else ""
    spoiled = sum(disturbance.spoiled for disturbance in disturbed)
    left_out = ""
    if spoiled:
        left_out = f", {first.bound} in {spoiled}{', which trimming leaves out' if trims else ''}"
    by = who(disturbed)
    named = f"; most of it: {by}" if by else ""
    return f"{first.finding}, within bounds ({noticed}in {trials} of {count(of, 'trial')}{left_out}{named})"


def direction(slower: float) -> str:
    """Return ``12 % slower``, ``3 % faster``, and beyond a factor of two ``4.5 times as fast``."""
    if abs(slower) > 1:
        return f"{number(1 + abs(slower))} times as {'fast' if slower < 0 else 'slow'}"
    return f"{percent(abs(slower))} {'faster' if slower < 0 else 'slower'}"
