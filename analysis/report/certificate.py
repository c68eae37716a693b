"""The certificate of a self-test for the terminal."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from analysis.report.formatting import ends, number, times
from suite.selftest.certificate import FACETS, Certificate, InjuryFinding

COLUMNS = ("injury", "on", "known", "found", "phase", "verdict", "")
_NAMES = ("injury", "on", "phase", "verdict")
_LEAST = {"known": 8, "found": 10, "": 9}
"""The widths of the longest words of the other columns."""
_STYLES = {"found": "green", "missed": "red"}


class CertificateTable:
    """A certificate to print on a rich console: a row per finding, and what was not done."""

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in COLUMNS:
            # Names are for looking up: they stay whole, and what has several words is broken between them.
            table.add_column(title, no_wrap=title in _NAMES, min_width=_LEAST.get(title), overflow="fold")
        for one in self.certificate.findings:
            *cells, outcome = cells_of(one)
            table.add_row(*cells, Text(outcome, style=_STYLES.get(outcome.partition(":")[0], "dim")))
        yield table
        yield from map(Text, certificate_lines(self.certificate))


def cells_of(one: InjuryFinding) -> tuple[str, ...]:
    """Return the cells of one finding, as ``COLUMNS`` heads them."""
    low, high = one.truth or (None, None)
    known = "" if low is None or high is None else times(high) if low == high else f"{times(low)} to {times(high)}"
    found = "" if one.ratio is None else f"{one.metric} {times(one.ratio)}x"
    interval = f" ({ends(one.interval)})" if one.interval else ""
    wrong = ", ".join(name for name, right in zip(FACETS, one.facets.values(), strict=True) if right is False)
    outcome = "found" if one.found else f"missed: {one.note or wrong}" if one.judged else one.note
    return one.injury, one.target, known, f"{found}{interval}", one.grown or "-", one.verdict or "-", outcome


def certificate_lines(certificate: Certificate) -> Iterator[str]:
    """Yield what is known of all findings together, and what was not done."""
    for facet in FACETS:
        found, of = certificate.count(facet)
        yield f"{facet} right: {found} of {of}"
    for metric, share in certificate.smallest.items():
        yield f"smallest {metric} effect that {certificate.blocks} blocks show: {number(share * 100)} %"
    for one in certificate.absent:
        yield f"not done: {one.name}: {one.reason}"
    yield certificate.line()
