"""The findings of the audit as lines."""

from collections.abc import Iterator

from analysis.audit.audit import Audit
from analysis.audit.findings import grouped
from analysis.load.records import Records
from analysis.report.elements import Line


def audit_document(found: Audit, records: Records) -> Iterator[Line]:
    """Yield a finding of each kind and run, worst first, with what to do; then how many there are."""
    for warning in records.warnings:
        yield Line(warning.message, label="unusable")
    for group in grouped(found.findings):
        first = group.first
        count = f" ({len(group.findings)} records)" if len(group.findings) > 1 else ""
        yield Line(first.kind + count, "strong", label=first.severity)
        yield Line(f"{first.where}:", indent=2)
        yield Line(first.what, indent=2)
        yield Line(first.advice, "dim", indent=4)
    refused = len({finding.where for finding in found.refused})
    named = len(found.findings) - len(found.refused)
    yield Line(f"{found.records} records, {refused} refused, {named} named findings", "strong")
