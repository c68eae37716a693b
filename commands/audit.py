"""``bench audit``: every record and run held against itself."""

import sys
from pathlib import Path

import click

from analysis.audit.audit import audit as audit_records
from analysis.audit.findings import Finding
from analysis.load.records import load
from analysis.report.audit_list import audit_document
from analysis.report.rows import WarningOutput, warning_outputs
from analysis.report.terminal import Terminal
from commands.latest import latest
from commands.output import Output
from suite.untrusted.console import PlainConsole


class AuditOutput(Output):
    """Every finding of the audit, worst first, and the files that are no records."""

    runs: tuple[Path, ...]
    records: int
    findings: tuple[Finding, ...]
    warnings: tuple[WarningOutput, ...]


@click.command()
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path))
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
    records = load(list(directories) or [latest()], warm_ups=True)
    result = audit_records(records)
    if as_json:
        AuditOutput(runs=tuple(records.directories), warnings=warning_outputs(records.warnings), **vars(result)).tell()
    else:
        PlainConsole().print(Terminal(audit_document(result, records)))
    if result.refused:
        sys.exit(1)
