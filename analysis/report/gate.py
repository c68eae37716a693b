"""A regression between two runs: the answer first, then a table of its rows."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import cast

from analysis.compare.matching import REFUSED, Missing, place_of, switches_of
from analysis.compare.regression import EXIT_CODES, FAILED, Change, Regression
from analysis.compare.results import Circumstances
from analysis.load.plans import extendable, plan_of
from analysis.report.answers.answer import Answer, AnswerRow, formed, row_of
from analysis.report.answers.claim import Claim
from analysis.report.answers.next_step import explaining, extending, failures_of, measure
from analysis.report.document import answer_elements
from analysis.report.elements import CommandLine, Element, Head, Heading, Line, Styled, Table
from analysis.report.formatting import ends, percent, reachable, signed, times
from analysis.statistics.counts import MeanDifference
from analysis.statistics.failures import Failures
from analysis.statistics.power import POWER
from analysis.statistics.ratios import FAILS_MORE, Verdict
from analysis.statistics.two_samples import LEAST_RUNS
from suite.request.next_step import LABEL as NEXT_LABEL
from suite.request.next_step import NextStep, bench
from suite.units import count, number

_COLUMNS = ("old", "new", "ratio", "95 % interval", "slower by", "outcome")
_CAPTION = (
    "old, new: trimmed geometric mean over the blocks; slower by: share of a rate that is lost, of a time that is added"
)

MEANINGS: Mapping[str, str] = {
    "slower": "a number is slower by more than the bound",
    "fails more": "more trials fail than in the old runs",
    "incomplete": "nothing is slower, but the new run lacks something that the old one has",
    "cannot tell": "nothing is slower, but the blocks are too few, too noisy or disturbed to exclude it",
    "not slower": "every number excludes a slowdown of the bound",
}
"""The outcomes of a gate in words."""
_SUMMARISED = 3
"""The rows of a summary."""


def gate_document(regression: Regression) -> Iterator[Element]:
    """Yield a regression: the answer, the rows, and what else differs."""
    if regression.outcome:
        answered = answer(regression)
        yield from answer_elements(answered)
        for name in regression.added:
            yield Line(f"{name} was finished in the new run only, and is compared with nothing", label="warning")
        yield from _of_runs(regression)
    yield _rows_table(regression)
    # Without a bound both runs were pooled before, and the warnings of that comparison name what changed.
    if regression.outcome:
        for detail, names in _details(regression, answered.why).items():
            yield Line(f"{'; '.join(names)}: {detail}", label="cannot tell")
        for text, targets in _changed_facts(regression).items():
            yield Line(f"{text} on {', '.join(targets)}: it may explain a difference", label="changed")


def _rows_table(regression: Regression) -> Table:
    """Return the rows: those that decide come first, those that fail nothing last."""
    order = [*EXIT_CODES, None]
    changes = sorted(regression.changes, key=lambda change: order.index(change.outcome))
    rows = []
    for change in changes:
        rows.append((Head(change.name), _cells(change)))
    heads = tuple(map(Head, _COLUMNS))
    whole = Table("", "", heads, tuple(rows), _CAPTION, compact=True)
    column_count = 6 if regression.outcome else 5
    table = whole.only(*range(column_count))
    # The narrower form leaves out the values, and a gate's outcome is in all forms.
    narrower = table.only(*range(2, column_count))
    return replace(table, narrower=narrower)


def _changed_facts(regression: Regression) -> dict[str, list[str]]:
    """Return the facts that changed between the runs, with the targets on which they did."""
    targets: dict[str, dict[str, None]] = {}
    for change in regression.changes:
        place = place_of(change.target, switches_of(change.arm))
        for text in change.notes:
            targets.setdefault(text, {})[place] = None
    return {text: list(of_text) for text, of_text in targets.items()}


def _of_runs(regression: Regression) -> Iterator[Line]:
    if regression.spread_unknown:
        yield Line(f"the spread between runs is unknown: {LEAST_RUNS} old runs or more show it", label="warning")


def _details(regression: Regression, why: str) -> dict[str, list[str]]:
    """Return the details of rows that cannot tell, with their names, where the answer has them not."""
    details: dict[str, list[str]] = {}
    for claim in _claims(regression):
        if claim.word == "cannot tell":
            for reason in claim.why:
                detail = reason.partition(" (")[2].removesuffix(")")
                if detail and detail not in why:
                    details.setdefault(detail, []).append(claim.change.name)
    return details


def _cells(change: Change) -> tuple[str | Styled, ...]:
    if change.difference:
        return _cells_of_count(change)
    interval = f"{change.blocks} block"
    if change.interval:
        interval = ends(change.interval)
    return (
        *_values(change),
        f"{times(change.ratio or 1.0)}x",
        interval,
        percent(change.slower or 0.0),
        _outcome(change),
    )


def _cells_of_count(change: Change) -> tuple[str | Styled, ...]:
    """Return the cells of a metric that can be zero: a difference in place of a ratio."""
    difference = change.difference or MeanDifference(0.0, None, 1.0, 0)
    interval = "-"
    if difference.interval:
        interval = " to ".join(map(signed, difference.interval))
    slower = "-" if change.slower is None else percent(change.slower)
    return (*_values(change), signed(difference.mean), interval, slower, _outcome(change))


def _values(change: Change) -> tuple[str, str]:
    unit = change.metric.unit
    old = f"{number(change.old)} {unit}"
    new = f"{number(change.value or 0.0)} {unit}"
    return old.rstrip(), new.rstrip()


def _outcome(change: Change) -> Styled:
    word = change.outcome or ""
    style = word if word in ("slower", FAILS_MORE, "cannot tell") else ""
    return Styled(word, style)


def answer(regression: Regression) -> Answer:
    """Return the answer of a gate: the rows that decide it first, each with its outcome as its word."""
    rows = judged_rows(regression)
    if not rows:
        return Answer((), "nothing to compare: no row is in both runs", _next(regression), ())
    return formed(rows, [*EXIT_CODES], _next(regression), shortened=rows[:1])


def judged_rows(regression: Regression) -> list[AnswerRow]:
    """Return a row for everything that the gate judged or lacks, each with its outcome as its word, the worst first."""
    rows = [row_of(claim, claim.change.name) for claim in _claims(regression)]
    rows += [AnswerRow(missing.name, "incomplete", why=(missing.why,)) for missing in regression.missing]
    order: list[str] = [*EXIT_CODES]
    return sorted(rows, key=lambda row: order.index(row.word))


def gate_summary(regression: Regression) -> Iterator[Element]:
    """Yield a regression in about ten lines: outcome, exit code, the rows that decide it, why, and what to do next."""
    answered = answer(regression)
    rows = judged_rows(regression)
    yield Heading(f"{regression.outcome} (exit code {regression.exit_code})", MEANINGS[rows[0].word])
    shown = []
    for row in rows[:_SUMMARISED]:
        outcome = Styled(row.word, row.word)
        shown.append((Head(row.subject), (row.number, outcome)))
    yield Table("", "", (Head("new / old"), Head("outcome")), tuple(shown))
    others = rows[_SUMMARISED:]
    if others:
        counts = Counter(row.word for row in others)
        more = ", ".join(f"{rows_of_word} {word}" for word, rows_of_word in counts.items())
        yield Line(more, label="other rows")
    yield Line(answered.why, label="why")
    yield from _of_runs(regression)
    if answered.next:
        yield CommandLine(str(answered.next), NEXT_LABEL)


def _claims(regression: Regression) -> "Iterator[_GateClaim]":
    judged = filter(attrgetter("verdict"), regression.changes)
    for change in judged:
        claim = _FailedClaim if change.metric == FAILED else _GateClaim
        yield claim(change, change.model, Circumstances())


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
        change = self.change
        verdict = self.change.verdict or Verdict(None, None)
        bound = f"the bound of {percent(self.margin or 0.0)}"
        sides = {"slower": "beyond", "not slower": "within"}
        if change.difference:
            side = sides.get(self.word, "within or beyond")
            old, new = _values(change)
            return verdict.withheld or (f"{side} {bound} ({new} after {old})",)
        runs = self._about_runs
        if self.word != "cannot tell":
            side = sides.get(self.word, "within")
            return (f"{side} {bound} ({self.costs}{runs})",)
        if verdict.withheld:
            return verdict.withheld
        share = verdict.detectable
        seen = "not even a tenfold slowdown"
        if share is not None:
            seen = f"a slowdown of {percent(share)}"
        old_blocks, new_blocks = change.samples
        shown = f"{old_blocks} against {count(new_blocks, 'block')} could have shown {seen}, power {POWER:.0%}"
        if verdict.more_blocks:
            side = "each" if change.spread is None else "the new"
            runs += f"; {count(verdict.more_blocks, 'more block')} in {side} run would decide"
        return (f"within or beyond {bound} ({shown}{runs})",)

    @property
    def _about_runs(self) -> str:
        """Return how much runs of the same differ, and that the CPU time of others explains no loss."""
        parts = []
        if self.change.spread:
            parts.append(f"; runs of the same differ by {percent(self.change.spread)}, standard deviation")
        if self.change.beside_load:
            parts.append("; other work disturbed the trials, and took too little CPU time to explain it")
        return "".join(parts)


class _FailedClaim(_GateClaim):
    """The share of the failed trials of a row."""

    @property
    def failed(self) -> str:
        """Return ``3 of 8 failed (9 to 76 %), none of 8 before, p = 0.2`` of the row of failed trials."""
        change = self.change
        verdict = change.verdict or Verdict(None, None)
        of_old, of_new = change.samples
        old = round(change.old / 100 * of_old)
        failed = round((change.value or 0.0) / 100 * of_new)
        new = Failures(failed, 0, 0, of_new)
        low = percent(new.low).removesuffix(" %")
        share = f"{low} to {percent(new.high)}"
        before = f"{old or 'none'} of {of_old} before, p = {verdict.p or 0.0:.2g}"
        return f"{new.own or 'none'} of {of_new} failed ({share}), {before}"

    @property
    def why(self) -> tuple[str, ...]:
        if self.word == "fails more":
            return ("more trials fail than before",)
        if self.word == "not slower":
            return ("no more trials fail than before",)
        return (f"more trials may fail than before, by over {percent(self.margin or 0.0)}",)


def _next(regression: Regression) -> NextStep | None:
    """Return the command that explains the outcome, or that measures what the rows lack."""
    new = regression.places[-1:]
    match regression.outcome:
        case "slower":
            return explaining(new)
        case "incomplete":
            return _completing(regression)
        case "fails more":
            return failures_of(new)
        case "not slower":
            if new:
                return bench("report", *new, decides="one page")
            return None
        case _ if all(row.left_open_by_failures for row in regression.of("cannot tell")):
            return failures_of(new)
        case _:
            return _extending(regression)


def _completing(regression: Regression) -> NextStep | None:
    """Return the command that measures what the new run lacks or, where trials failed, shows why."""
    if not regression.places:
        return None
    *olds, new = regression.places
    failing = next((missing for missing in regression.missing if missing.failed_in), None)
    if failing:
        run = olds[-1] if failing.failed_in == "old" else new
        return _failing_in(run, failing)
    lacking = [missing.blocks for missing in regression.missing]
    if None not in lacking and extendable([new]):
        blocks = max(filter(None, lacking), default=0)
        return _continuing(new, blocks)
    planned = plan_of(olds[-1]) if olds else None
    if planned and planned.request:
        return bench(*planned.request.command()[1:], decides="another run of all that the old one has")
    return bench("results", "list", *regression.places[-2:], decides="what each run has")


def _failing_in(run: Path, missing: Missing) -> NextStep | None:
    """Return the command that shows why trials of a run failed, or do not count."""
    if REFUSED in missing.why:
        return bench("audit", run, decides="why its records do not count")
    return failures_of([run])


def _continuing(run: Path, blocks: int) -> NextStep | None:
    """Return the command after which a run has so many blocks; None for one without a plan."""
    plan = plan_of(run)
    if not plan:
        return None
    if blocks > plan.blocks:
        return extending(run, blocks - plan.blocks)
    return bench("run", "--continue", run, decides="what has never run")


def _extending(regression: Regression) -> NextStep | None:
    """Return the command that extends the new run, or the old one where each side lacks blocks and it has fewer."""
    rows = regression.of("cannot tell")
    lacking = [reachable(row.verdict.more_blocks) if row.verdict else None for row in rows]
    if not regression.places or None in lacking or not measure(row.job.profile for row in rows):
        return None
    more = max(filter(None, lacking), default=1)
    *olds, new = regression.places
    if not (regression.spread_unknown and olds):
        return extending(new, more)
    # Each side is extended to the same number of blocks, in two steps.
    old_blocks = max(row.samples[0] for row in rows)
    new_blocks = max(row.samples[1] for row in rows)
    wanted = max(old_blocks, new_blocks) + more
    if new_blocks <= old_blocks:
        return extending(new, wanted - new_blocks)
    return extending(olds[-1], wanted - old_blocks)
