"""A claim: one metric of one target against bare metal, as a sentence that can stand alone.

It says what a target costs which model, by how much and how sure that is, on which host, in how many blocks, against
which margin, and what stands in or disturbed. Where the trials decide nothing, it says so first, then why, and the
number last.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.compare.results import Circumstances, ComparedJob, Contrast, Disturbed
from analysis.report.formatting import (
    TOO_NOISY,
    duration,
    ends,
    excluding,
    parting,
    percent,
    reachable,
    sensible,
    times,
)
from analysis.statistics.power import TRIM, trimmed
from analysis.statistics.ratios import slower_by
from analysis.statistics.sequential import LEAST_BLOCKS
from analysis.statistics.tails import SlowTrials
from suite.targets import BASELINE
from suite.units import count, number

_OUTCOMES = {
    "slower": "slower",
    "tail": "within the margin but for slow trials",
    "typical-only": "within the margin for a typical trial only",
    "equivalent": "within the margin",
    "faster": "faster",
    "undecided": "undecided",
    None: "no verdict",
}
OUTCOMES = (*_OUTCOMES.values(), "no number")
_EMULATED = "accelerator:tcg"


@dataclass(frozen=True)
class Claim:
    """One metric of one target against bare metal, with everything that its sentence says."""

    found: Contrast
    what: str
    """The model or the probe, or what stands for several."""
    margin: float
    around: Circumstances
    notes: tuple[str, ...] = ()
    """Substitutes, and marks without which the number must not be read."""

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
    def more_is_faster(self) -> bool:
        return self.found.metric.more_is_faster

    @property
    def withheld(self) -> tuple[str, ...]:
        """Return why there is no verdict, where there is a number."""
        return self.found.verdict.withheld if self.found.verdict else ()

    @property
    def slower(self) -> float | None:
        """Return the share by which the target is slower; negative where it is faster, None without a ratio."""
        if self.found.ratio is None:
            return None
        return slower_by(self.found.ratio, more_is_faster=self.more_is_faster)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval of ``slower``, the lower end first."""
        if self.found.interval is None:
            return None
        low, high = sorted(slower_by(end, more_is_faster=self.more_is_faster) for end in self.found.interval)
        return low, high

    @property
    def outcome(self) -> str:
        """Return which of ``OUTCOMES`` it is."""
        if self.found.ratio is None or self.found.verdict is None:
            return "no number"
        return _OUTCOMES[self.found.verdict.name]

    @property
    def sentence(self) -> str:
        """Return it as a sentence."""
        return f"{self._said()}{self._disturbed()}."

    def _said(self) -> str:
        if not self.found.measured:
            failed = f" ({count(self.found.failed, 'failed trial')})" if self.found.failed else ""
            return f"{self.subject} gave no finished trial of {self.what}{failed}{self._where()}"
        if self.slower is None:
            value = (
                "" if self.found.value is None else f" of {number(self.found.value)} {self.found.metric.unit}".rstrip()
            )
            unknown = f"but nothing comparable on {BASELINE} says at what cost"
            return f"{self.subject} gives {self.what} a {self.metric}{value}{self._where()}, {unknown}"
        if self.withheld:
            known = self.metric == "throughput"  # which the reader expects
            what = f"{self.what} {self._inside()}" if known else f"the {self.metric} of {self.what} {self._inside()}"
            reasons = ", ".join((self._place().removeprefix(f"{self._where()}, "), *self.withheld))
            return f"No verdict yet on {what}{self._where()}: {reasons} ({self._ratio()})"
        verdict = self.found.verdict.name if self.found.verdict else "undecided"
        if verdict == "undecided":
            costs = f"what {lower(self.subject)} costs {self.what}{self._place()}"
            return f"Undecided {costs}: {self._between()}{self._more()}"
        if verdict in ("tail", "typical-only"):
            return self._said_of_tail("pays for slow trials" if verdict == "tail" else "may pay more")
        return self._said_of_cost("within" if verdict == "equivalent" else "beyond")

    def _said_of_tail(self, pays: str) -> str:
        typical = f"A typical trial of {self.what} on {lower(self.subject)} is within {self._margin()} of {BASELINE}"
        queue = f"a long queue of jobs {pays}: {parting(self.found, self._after_stopping)}"
        return f"{typical}{self._place()}, but {queue}"

    def _said_of_cost(self, side: str) -> str:
        low, high = self.interval or (-math.inf, math.inf)
        if side == "within" and low <= 0 <= high:
            none = f"costs {self.what} none of its {self.metric} beyond {self._margin()}"
            return f"{self.subject} {none}{self._place()}: {self._between()}{excluding([self.bound])}"
        direction = "slower" if (self.slower or 0.0) > 0 else "faster"
        verdict = f"{direction}, {side} {self._margin()}{excluding([self.bound])}"
        return f"{self.subject} {self.costs}{self._place()}: {verdict}"

    @property
    def bound(self) -> SlowTrials | None:
        """Return the slow trials of a target that is equivalent, which states a bound on them; None for others."""
        return self.found.slow if self.outcome == _OUTCOMES["equivalent"] else None

    @property
    def _after_stopping(self) -> str:
        return " after stopping" if self.around.decided else ""

    @property
    def subject(self) -> str:
        """Return what is compared with bare metal: ``A podman container``."""
        text = self._inside().removeprefix("in ").removeprefix("on ")
        return f"{text[0].upper()}{text[1:]}"

    def _inside(self) -> str:
        """Return where it ran: ``in a podman container``, ``on bare-metal``."""
        engine = f"{self.around.engine} container".strip()
        guest = "an emulated VM" if _EMULATED in self.notes else "a VM"
        named = {"container": _article(engine), "vm": guest, "container-vm": f"{_article(engine)} in {guest}"}
        text = f"in {named[self.target]}" if self.target in named else f"on {self.target}"
        return f"{text} ({', '.join(self.notes)})" if self.notes else text

    @property
    def costs(self) -> str:
        """Return ``costs resnet50 1.8 % (1.1 to 2.5 %) of its throughput``, or what it gains; needs a ratio."""
        slower = self.slower or 0.0
        sign = 1 if slower >= 0 else -1
        low_high = sorted(sign * end for end in self.interval or ())
        ends_of = [percent(end) for end in low_high]
        interval = f" ({ends_of[0].removesuffix(' %')} to {ends_of[1]}{self._after_stopping})" if low_high else ""
        share = f"{percent(abs(slower))}{interval}"
        if self.more_is_faster:
            text = f"costs {self.what} {share} of its" if sign > 0 else f"gives {self.what} {share} more"
            return f"{text} {self.metric}"
        text = f"adds {share} to" if sign > 0 else f"takes {share} off"
        return f"{text} the {self.metric} of {self.what}"

    def _place(self) -> str:
        return f"{self._where()}, {count(self.found.blocks, 'block')}"

    def _where(self) -> str:
        return on_hosts(self.around.hosts)

    def _margin(self) -> str:
        return f"the margin of {percent(self.margin)}"

    def _ratio(self) -> str:
        if self.found.ratio is None:
            return "no ratio"
        interval = self.found.interval
        return f"ratio {f'{ends(interval)}{self._after_stopping}' if interval else times(self.found.ratio)}"

    def _between(self) -> str:
        if self.interval is None or self.found.interval is None:
            return f"{direction(self.slower or 0.0)}, with no interval"
        if not sensible(self.found.interval):
            return TOO_NOISY
        low, high = self.interval
        return f"between {direction(high)} and {direction(low)}{self._after_stopping}"

    @property
    def more_blocks(self) -> int | None:
        """Return how many more blocks would probably decide it; None where that is not known, or out of reach."""
        return reachable(self.found.verdict.more_blocks) if self.found.verdict else None

    @property
    def lacking_blocks(self) -> int | None:
        """Return how many more blocks a verdict takes, where they are not disturbed; None for more than in reach."""
        blocks = self.found.blocks
        disturbed = [one for side in (self.target, BASELINE) for one in self.around.disturbed.get(side, ())]
        # So many that trimming leaves out those that are disturbed now.
        needed = [blocks * math.ceil(one.spoiled / (TRIM * one.of)) for one in disturbed]
        if not self.withheld:
            return self.more_blocks
        return reachable(max(LEAST_BLOCKS, *needed, blocks + (self.more_blocks or 0)) - blocks)

    @property
    def more_s(self) -> float | None:
        """Return the seconds that these take."""
        return self.more_blocks * self.around.block_s if self.more_blocks and self.around.block_s else None

    def _more(self) -> str:
        if self.more_blocks is None:
            return f"; to decide at {self._margin()} takes more blocks than can be measured here"
        spent = f", {duration(self.more_s)}," if self.more_s else ""
        return f"; about {count(self.more_blocks, 'more block')}{spent} would decide at {self._margin()}"

    def _disturbed(self) -> str:
        """Return which trials of the two sides were disturbed, and how little, unless it withholds the verdict."""
        sides = [one for side in (self.target, BASELINE) for one in self.around.disturbed.get(side, ())]
        by_finding = {one.finding: [other for other in sides if other.finding == one.finding] for one in sides}
        parts = [
            _within_bounds(disturbed, trims=trimmed(self.found.blocks) > 0)
            for finding, disturbed in by_finding.items()
            if not any(why.startswith(finding) for why in self.withheld)
        ]
        return f"; disturbed within bounds: {', '.join(parts)}" if parts else ""


def _within_bounds(disturbed: Sequence[Disturbed], *, trims: bool) -> str:
    """Return one kind of disturbance that withholds nothing, on one side or on both."""
    first, trials, of = disturbed[0], sum(one.trials for one in disturbed), sum(one.of for one in disturbed)
    noticed = f" ({first.noticed})" if first.noticed else ""
    spoiled = sum(one.spoiled for one in disturbed)
    left_out = f", {first.bound} in {spoiled}{', which trimming leaves out' if trims else ''}" if spoiled else ""
    return f"{first.finding}{noticed} in {trials} of {of} trials{left_out}"


def on_hosts(hosts: Iterable[str]) -> str:
    """Return `` on host vm``: a host's name alone may read as a target."""
    return f" on host {' and '.join(hosts)}" if hosts else ""


def direction(slower: float) -> str:
    """Return ``12 % slower``, ``3 % faster``, and beyond a factor of two ``4.5 times as fast``."""
    if abs(slower) > 1:
        return f"{number(1 + abs(slower))} times as {'fast' if slower < 0 else 'slow'}"
    return f"{percent(abs(slower))} {'faster' if slower < 0 else 'slower'}"


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def lower(text: str) -> str:
    """Return a sentence as part of another."""
    return text[0].lower() + text[1:]
