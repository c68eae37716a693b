"""The certificate of a self-test as a document."""

from collections.abc import Iterator

from analysis.report.elements import Cell, Element, Head, Notes, Styled, Table
from analysis.report.formatting import ends, times
from suite.selftest.certificate import FACETS, Certificate, InjuryFinding
from suite.units import count, number


def certificate_document(certificate: Certificate) -> Iterator[Element]:
    """Yield a row per finding, and what was not done."""
    # Names are for looking up: they stay whole, and what has several words is broken between them.
    names = {"on": False, "known": True, "found": True, "phase": False, "verdict": False, "": True}
    columns = tuple(Head(name, wraps=wraps) for name, wraps in names.items())
    rows = tuple((Head(finding.injury), cells_of(finding)) for finding in certificate.findings)
    yield Table("injury", "", columns, rows, compact=True)
    yield Notes(tuple(certificate_lines(certificate)))


def cells_of(finding: InjuryFinding) -> tuple[Cell, ...]:
    """Return the cells of a finding after its injury."""
    known = " to ".join(dict.fromkeys(map(times, finding.truth or ())))
    found = "" if finding.ratio is None else f"{finding.metric} {times(finding.ratio)}x"
    interval = f" ({ends(finding.interval)})" if finding.interval else ""
    wrong = ", ".join(name for name, right in zip(FACETS, finding.facets.values(), strict=True) if right is False)
    outcome = Styled(finding.note, "dim")
    if finding.found:
        outcome = Styled("found", "found")
    elif finding.judged:
        outcome = Styled(f"missed: {finding.note or wrong}", "missed")
    return finding.target, known, f"{found}{interval}", finding.grown or "-", finding.verdict or "-", outcome


def certificate_lines(certificate: Certificate) -> Iterator[str]:
    """Yield what is known of all findings together, and what was not done."""
    for facet in FACETS:
        found, of = certificate.count(facet)
        yield f"{facet} right: {found} of {of}"
    for metric, share in certificate.smallest.items():
        yield f"smallest {metric} effect that {count(certificate.blocks, 'block')} show: {number(share * 100)} %"
    for one in certificate.absent:
        yield f"not done: {one.name}: {one.reason}"
    yield certificate.line()
