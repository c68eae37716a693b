"""The findings of the audit for the terminal and for other programs."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.text import Text

from analysis.audit.audit import Audit
from analysis.audit.findings import grouped
from analysis.load.records import Records
from analysis.report.formatting import one_line

_STYLES = {"refused": "red", "named": "yellow"}


class AuditList:
    """An audit to print on a rich console: a finding of each kind and run, worst first, with what to do."""

    def __init__(self, found: Audit, records: Records) -> None:
        self.found = found
        self.records = records

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        for warning in self.records.warnings:
            yield Text("unusable  ", style="red").append(one_line(warning.message), style="default")
        for group in grouped(self.found.findings):
            first = group.first
            count = f" ({len(group.findings)} records)" if len(group.findings) > 1 else ""
            yield Text(f"{first.severity}  ", style=_STYLES[first.severity]).append(first.kind + count, style="bold")
            for line in (f"{first.where}:", first.what):
                yield Padding(Text(one_line(line)), (0, 0, 0, 2), expand=False)
            yield Padding(Text(one_line(first.advice), style="dim"), (0, 0, 0, 4), expand=False)
        refused = len({one.where for one in self.found.refused})
        yield Text(f"{self.found.records} records, {refused} refused, {self._named()} named findings", style="bold")

    def _named(self) -> int:
        return len(self.found.findings) - len(self.found.refused)
