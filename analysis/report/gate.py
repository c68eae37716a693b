"""A regression between two runs: the answer first, then a table of its rows."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import cast

from analysis.compare.matching import place_of, switches_of
from analysis.compare.regression import EXIT_CODES, Change, Regression
from analysis.compare.results import Circumstances
from analysis.report.answers.answer import Answer, AnswerRow, formed, row_of
from analysis.report.answers.claim import Claim
from analysis.report.document import answer_elements
from analysis.report.elements import Element, Head, Line, Styled, Table
from analysis.report.formatting import ends, percent, times
from analysis.statistics.power import POWER
from analysis.statistics.ratios import Verdict
from analysis.statistics.two_samples import LEAST_RUNS
from suite.job.profiles import PROFILES
from suite.units import count, number

_COLUMNS = ("old", "new", "ratio", "95 % interval", "slower by", "outcome")
_CAPTION = (
    "old, new: trimmed geometric mean over the blocks; slower by: share of a rate that is lost, of a time that is added"
)


def gate_document(regression: Regression, new: Path | None = None) -> Iterator[Element]:
    """Yield a regression: the answer, the rows, and what else differs. ``new`` is the directory of the new run."""
    if regression.outcome:
        answered = answer(regression, new)
        yield from answer_elements(answered)
        for name in regression.added:
            yield Line(f"{name} was finished in the new run only, and is compared with nothing", label="warning")
        if regression.spread_unknown:
            yield Line(f"the spread between runs is unknown: {LEAST_RUNS} old runs or more show it", label="warning")
    # Those that decide come first, those that fail nothing last.
    changes = sorted(regression.changes, key=lambda change: (*EXIT_CODES, None).index(change.outcome))
    rows = tuple((Head(change.name), _cells(change)) for change in changes)
    table = Table("", "", tuple(map(Head, _COLUMNS)), rows, _CAPTION, compact=True).only(
        *range(6 if regression.outcome else 5)
    )
    # The narrower form leaves out the values, and a gate's outcome is in all forms.
    yield replace(table, narrower=table.only(*range(2, len(table.columns))))
    for detail, names in _details(regression, answered.why).items() if regression.outcome else ():
        yield Line(f"{'; '.join(names)}: {detail}", label="cannot tell")
    targets: dict[str, dict[str, None]] = {}
    # Without a bound both runs were pooled before, and the warnings of that comparison name what changed.
    for change in regression.changes if regression.outcome else ():
        for text in change.notes:
            targets.setdefault(text, {})[place_of(change.target, switches_of(change.arm))] = None
    for text, changed in targets.items():
        yield Line(f"{text} on {', '.join(changed)}: it may explain a difference", label="changed")


def _details(regression: Regression, why: str) -> dict[str, list[str]]:
    """Return the details of rows that cannot tell, with their names, where the answer has them not."""
    details: dict[str, list[str]] = {}
    for claim in _claims(regression):
        for reason in claim.why if claim.word == "cannot tell" else ():
            detail = reason.partition(" (")[2].removesuffix(")")
            if detail and detail not in why:
                details.setdefault(detail, []).append(claim.change.name)
    return details


def _cells(change: Change) -> tuple[str | Styled, ...]:
    interval = ends(change.interval) if change.interval else f"{change.blocks} block"
    outcome = Styled(change.outcome or "", change.outcome if change.outcome in ("slower", "cannot tell") else "")
    values = (f"{number(value or 0.0)} {change.metric.unit}" for value in (change.old, change.value))
    return (*values, f"{times(change.ratio or 1.0)}x", interval, percent(change.slower), outcome)


def answer(regression: Regression, new: Path | None = None) -> Answer:
    """Return the answer of a gate: the rows that decide it first, each with its outcome as its word."""
    rows = [row_of(claim, claim.change.name) for claim in _claims(regression)]
    rows += [AnswerRow(missing.name, "incomplete", why=(missing.why,)) for missing in regression.missing]
    order: list[str] = [*EXIT_CODES]
    rows.sort(key=lambda row: order.index(row.word))
    if not rows:
        return Answer((), "nothing to compare: no row is in both runs", _next(regression, new), ())
    return formed(rows, order, [_next(regression, new)], shortened=rows[:1])


def _claims(regression: Regression) -> "Iterator[_GateClaim]":
    bound = regression.fail_above or 0.0
    judged = filter(attrgetter("verdict"), regression.changes)
    return (_GateClaim(change, change.model, bound, Circumstances()) for change in judged)


class _GateClaim(Claim):
    """A row of the new run over the old ones, judged by the bound of the gate."""

    @property
    def change(self) -> Change:
        return cast(Change, self.found)

    @property
    def word(self) -> str:
        return str(self.change.outcome)

    @property
    def why(self) -> tuple[str, ...]:
        change, verdict = self.change, self.change.verdict or Verdict(None, None)
        bound, runs = f"the bound of {percent(self.margin)}", ""
        if change.spread:
            runs = f"; runs of the same differ by {percent(change.spread)}, standard deviation"
        if self.word != "cannot tell":
            return (f"{'beyond' if self.word == 'slower' else 'within'} {bound} ({self.costs}{runs})",)
        if verdict.withheld:
            return verdict.withheld
        share = verdict.detectable
        seen = "not even a tenfold slowdown" if share is None else f"a slowdown of {percent(share)}"
        old, new = change.samples
        shown = f"{old} against {count(new, 'block')} could have shown {seen}, power {POWER:.0%}"
        if verdict.more_blocks:
            side = "each" if change.spread is None else "the new"
            runs += f"; {count(verdict.more_blocks, 'more block')} in {side} run would decide"
        return (f"within or beyond {bound} ({shown}{runs})",)


_NEXT = {
    "slower": "bench compare{} --explain (where the time goes)",
    "incomplete": "bench results show{} (the failures in full)",
    "not slower": "bench report{} (one page)",
}


def _next(regression: Regression, new: Path | None) -> str:
    where = f" {shlex.quote(str(new))}" if new else ""
    if regression.outcome in _NEXT:
        return _NEXT[regression.outcome].format(where)
    rows = regression.of("cannot tell")
    if any(change.job.profile in PROFILES and not PROFILES[change.job.profile].decides for change in rows):
        return "both runs with --profile quick"
    lacking = [*map(attrgetter("verdict.more_blocks"), rows)]
    if None in lacking:
        return f"a quieter machine, another profile, or --fail-above over {percent(regression.fail_above or 0.0)}"
    more, side = max(filter(None, lacking), default=1), "each" if regression.spread_unknown else "the new"
    extended = f"bench run --continue{where or ' RUN'} --blocks {more + max(change.samples[1] for change in rows)}"
    return f"about {count(more, 'more block')} in {side} run: {extended}"
