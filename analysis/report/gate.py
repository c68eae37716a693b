"""A regression between two runs: the answer first, then a table of its rows, and why some cannot tell."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from analysis.compare.matching import place_of, switches_of
from analysis.compare.regression import EXIT_CODES, Change, Regression
from analysis.report.elements import Element, Head, Line, Styled, Table
from analysis.report.formatting import ends, percent, times
from analysis.statistics.power import POWER
from analysis.statistics.ratios import CONFIDENCE, Verdict
from analysis.statistics.two_samples import LEAST_RUNS
from suite.units import count, number

_COLUMNS = ("old", "new", "ratio", "95 % interval", "slower by", "outcome")
_CAPTION = (
    "old, new: trimmed geometric mean over the blocks; slower by: share of a rate that is lost, of a time that is added"
)


def gate_document(found: Regression) -> Iterator[Element]:
    """Yield a regression: the answer, what is missing, the rows, and why some of them cannot tell."""
    if found.outcome:
        yield Line(answer(found), "strong")
        for missing in found.missing:
            yield Line(f"{missing.name}: {missing.why}", label="missing")
        for name in found.added:
            yield Line(f"{name} was finished in the new run only, and is compared with nothing", label="warning")
        if found.spread_unknown:
            yield Line(f"the spread between runs is unknown: {LEAST_RUNS} old runs or more show it", label="warning")
    # Those that decide come first, those that fail nothing last.
    changes = sorted(found.changes, key=lambda change: (*EXIT_CODES, None).index(change.outcome))
    yield _table(changes, judged=found.outcome is not None)
    reasons: dict[str, list[str]] = {}
    for change in found.of("cannot tell"):
        reasons.setdefault(_why(change), []).append(change.name)
    for why, names in reasons.items():
        yield Line(f"{'; '.join(names)}: {why}", label="cannot tell")
    targets: dict[str, dict[str, None]] = {}
    # Without a bound both runs were pooled before, and the warnings of that comparison name what changed.
    for change in found.changes if found.outcome else ():
        for text in change.notes:
            targets.setdefault(text, {})[place_of(change.target, switches_of(change.arm))] = None
    for text, changed in targets.items():
        yield Line(f"{text} on {', '.join(changed)}: it may explain a difference", label="changed")


def _table(changes: list[Change], *, judged: bool) -> Table:
    """Return a row per change; the narrower form leaves out the values, and a gate's outcome is in all forms."""
    rows = [(Head(change.name), _cells(change)) for change in changes]
    forms = [
        Table("", "", tuple(map(Head, _COLUMNS[begin:end])), tuple((head, cells[begin:end]) for head, cells in rows))
        for begin, end in ((0, 6 if judged else 5), (2, 6 if judged else 5))
    ]
    whole, narrower = (replace(form, caption=_CAPTION, compact=True) for form in forms)
    return replace(whole, narrower=narrower)


def _cells(change: Change) -> tuple[str | Styled, ...]:
    interval = ends(change.interval) if change.interval else f"{change.blocks} block"
    outcome = Styled(change.outcome or "", change.outcome if change.outcome in ("slower", "cannot tell") else "")
    values = (f"{number(value or 0.0)} {change.metric.unit}" for value in (change.old, change.value))
    return (*values, f"{times(change.ratio or 1.0)}x", interval, percent(change.slower), outcome)


def _why(change: Change) -> str:
    """Return why a row cannot tell, and what would."""
    verdict = change.verdict or Verdict(None, None)
    share = verdict.detectable
    seen = "not even a tenfold slowdown" if share is None else f"a slowdown of {percent(share)}"
    old, new = change.samples
    reasons = verdict.withheld or (f"{old} against {count(new, 'block')} could have shown {seen} (power {POWER:.0%})",)
    more = f"; {_blocks(verdict.more_blocks, change)} would tell" if verdict.more_blocks else ""
    runs = f"; runs of the same differ by {percent(change.spread)} (standard deviation)" if change.spread else ""
    return f"{', '.join(reasons)}{more}{runs}"


def answer(found: Regression) -> str:
    """Return the outcome of a gate as a sentence that names what decided it."""
    bound = percent(found.fail_above or 0)
    match found.outcome:
        case "slower":
            names = "; ".join(f"{one.name} by {percent(one.slower)}" for one in found.of("slower"))
            return f"Slower by more than {bound}: {names}."
        case "incomplete":
            lacks = ", ".join(dict.fromkeys(one.name for one in found.missing)) or "anything to compare"
            return f"Incomplete: the new run lacks {lacks}."
        case "cannot tell":
            rows = found.of("cannot tell")
            others = f" (and {count(len(rows) - 1, 'other')})" if len(rows) > 1 else ""
            return f"Cannot tell whether {rows[0].name}{others} is slower by more than {bound}: {_advice(rows)}."
    rows = found.of("not slower")
    return f"Not slower: all {len(rows)} rows exclude a slowdown of {bound} ({CONFIDENCE:.0%} intervals)."


def _advice(rows: Sequence[Change]) -> str:
    if reasons := dict.fromkeys(reason for one in rows if one.verdict for reason in one.verdict.withheld):
        return "; ".join(reasons)
    more = [one.verdict.more_blocks for one in rows if one.verdict and one.verdict.more_blocks is not None]
    if len(more) < len(rows):
        return "no number of blocks would tell"
    return f"about {_blocks(max(more), *rows)} would tell"


def _blocks(more: int, *rows: Change) -> str:
    """Return how many blocks are needed besides, and where: those of several old runs are what they are."""
    return f"{count(more, 'more block')} in {'each' if any(one.spread is None for one in rows) else 'the new'} run"
