"""``bench audit``: every record and run held against itself."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from analysis.audit.audit import Audit
from analysis.audit.audit import audit as audit_records
from analysis.audit.findings import Finding, grouped
from analysis.load.records import Records, load
from analysis.report.elements import Line
from analysis.report.rows import WarningOutput, warning_outputs
from analysis.report.terminal import Terminal
from commands.output import Output
from commands.paths import RunPath, with_packs
from commands.run.options import latest
from suite.results.runs import runs_and_sweeps
from suite.untrusted.console import PlainConsole


class AuditOutput(Output):
    """Every finding of the audit, worst first, and the files that are no records."""

    runs: tuple[Path, ...]
    records: int
    findings: tuple[Finding, ...]
    warnings: tuple[WarningOutput, ...]


@click.command()
@click.argument("directories", nargs=-1, type=RunPath())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def audit(directories: tuple[Path, ...], as_json: bool) -> None:
    """Check every record and run for consistency. Default: the latest run in results/.

    docs/method/audit.md lists the checks of sums, plan, times and digests, with their bounds. bench compare and bench
    report run them too, and leave out refused records.

    Exit codes: 0 nothing is refused; 1 records are refused; 2 the request was wrong.

    \b
    Examples:
      bench audit
      bench audit results/night
      bench audit results/sweep --json
    """
    unpacked = with_packs(directories)
    places = list(runs_and_sweeps(unpacked))
    records = load(places or [latest()], warm_ups=True)
    result = audit_records(records)
    if as_json:
        audit_output(result, records).tell()
    else:
        PlainConsole().print(Terminal(_lines(result, records)))
    if result.refused:
        sys.exit(1)


def audit_output(audited: Audit, records: Records) -> AuditOutput:
    return AuditOutput(
        runs=tuple(records.directories),
        records=audited.records,
        findings=audited.findings,
        warnings=warning_outputs(records.warnings),
    )


def _lines(audited: Audit, records: Records) -> Iterator[Line]:
    """Yield a finding of each kind and run, worst first, with what to do; then how many there are."""
    for warning in records.warnings:
        yield Line(warning.message, label="unusable")
    for first, *others in grouped(audited.findings):
        title = first.kind
        if others:
            title += f" ({len(others) + 1} records)"
        yield Line(title, "strong", label=first.severity)
        yield Line(f"{first.where}:", indent=2)
        yield Line(first.what, indent=2)
        yield Line(first.advice, "dim", indent=4)
    refused = {finding.where for finding in audited.refused}
    named = len(audited.findings) - len(audited.refused)
    yield Line(f"{audited.records} records, {len(refused)} refused, {named} named findings", "strong")
