"""A rerun and earlier records as elements of a document: whether it agrees with them, then every number of both."""

from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter

from analysis.compare.rerun import OVER_BASE
from analysis.compare.results import Circumstances, Comparison
from analysis.load.metrics import METRICS
from analysis.report.answers.answer import Answer, formed, row_of
from analysis.report.answers.claim import NO_NUMBER, NO_VERDICT, UNDECIDED, WORDS, Claim
from analysis.report.answers.next_step import measure
from analysis.report.elements import Element, Line
from analysis.report.formatting import margins, percent, rows_by_key
from analysis.report.sweeps.by import by_document, job_on
from suite.request.next_step import NextStep

_NAME = attrgetter("name")
_AGREES = "equivalent"
_OPEN = (UNDECIDED, NO_VERDICT, NO_NUMBER)
_NOTHING = "nothing to compare: times of other machines differ with these, and no target was measured with bare metal"


def rerun_document(
    comparison: Comparison,
    further: Callable[[int], NextStep | None],
    *,
    elsewhere: bool,
) -> Iterator[Element]:
    """Yield whether a rerun agrees with earlier records; ``elsewhere``: those of other machines, by ratios alone.

    ``further`` returns the command that goes on with the rerun to a number of blocks.
    """
    deciding = set(map(_NAME, OVER_BASE))
    if not elsewhere:
        deciding.update(map(_NAME, METRICS[:2]))
    claims = []
    for row in rows_by_key(comparison):
        if row.verdict and row.metric.name in deciding:
            claims.append(Claim(row, row.model, Circumstances()))
    yield Line(_sentence(claims, margins(comparison)), "strong")
    yield from by_document(comparison, _answer(claims, further))


def _sentence(claims: list[Claim], margin: str) -> str:
    """Return whether the rerun agrees, and how many numbers have each word."""
    words = Counter(claim.word for claim in claims)
    counted = ", ".join(f"{words[word]} {word}" for word in WORDS if words[word])
    still_open = words[UNDECIDED] + words[NO_VERDICT] + words[NO_NUMBER]
    differing = len(claims) - still_open - words[_AGREES]
    if differing:
        verdict = "The rerun differs from the earlier records"
    elif still_open or not claims:
        verdict = "Whether the rerun agrees with the earlier records is open"
    else:
        verdict = "The rerun agrees with the earlier records"
    at_wider = ""
    wider = _agrees_at(claims)
    if wider:
        at_wider = f", and at {percent(wider)} it agrees"
    return f"{verdict} (margin {margin}){at_wider}: {counted or 'no number'}"


def _agrees_at(claims: list[Claim]) -> float | None:
    """Return the wider margin at which every number agrees already; None without one, and where all do as it is."""
    still_open = [claim for claim in claims if claim.word != _AGREES]
    decided_at = [claim.equivalent_at for claim in still_open if claim.equivalent_at]
    if len(decided_at) < len(still_open):
        return None
    return max(decided_at, default=None)


def _answer(claims: list[Claim], further: Callable[[int], NextStep | None]) -> Answer:
    if not claims:
        return Answer((), _NOTHING, None, ())
    answers = []
    still_open = []
    for claim in claims:
        job = job_on(claim.found.arm)
        answers.append(row_of(claim, f"{job}: {claim.metric}"))
        if claim.word in _OPEN:
            still_open.append(claim)
    in_order = sorted(answers, key=lambda row: (row.word == _AGREES, row.word in _OPEN))
    blocks = _blocks_needed(still_open)
    step = further(blocks) if blocks else None
    return formed(in_order, WORDS, step, (), in_order[:3])


def _blocks_needed(still_open: list[Claim]) -> int | None:
    """Return how many blocks of the rerun may decide what is open; None if no number in reach does."""
    lacking = [claim.lacking_blocks for claim in still_open]
    profiles = [claim.job.profile for claim in still_open]
    if not still_open or None in lacking or not measure(profiles):
        return None
    measured_blocks = max(claim.found.blocks for claim in still_open)
    most_lacking = max(filter(None, lacking), default=1)
    return measured_blocks + most_lacking
