"""Findings of the audit: what contradicts itself, where, and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from analysis.warnings.types import AnalysisWarning

Severity = Literal["refused", "named"]
"""``refused``: the record takes part in nothing. ``named``: a reader should know it."""


@dataclass(frozen=True)
class Finding:
    """One finding. ``where`` is the file of a record, or the directory of a run for what concerns all of it."""

    kind: str
    severity: Severity
    where: Path
    what: str
    advice: str


@dataclass(frozen=True)
class FindingGroup:
    """The findings of one kind in one run, for a line of a list or a warning."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        """The finding that stands for all."""
        return self.findings[0]

    @property
    def warning(self) -> AnalysisWarning:
        """The group as a warning of a comparison."""
        first, more = self.first, len(self.findings) - 1
        refused = first.severity == "refused"
        others = f" (and {more} other record{'s' * (more > 1)} for the same reason)" if more else ""
        message = f"{first.where}{' is left out' if refused else ''}: {first.what}{others}"
        keep = "; --force keeps it, with a mark" if refused else ""
        return AnalysisWarning(f"audit-{first.kind}", message, first.advice + keep)


def grouped(findings: Iterable[Finding]) -> list[FindingGroup]:
    """Return findings of one kind and run together, those that refuse first."""
    groups: dict[tuple[str, str, Path], list[Finding]] = {}
    for one in findings:
        run = one.where.parents[1] if one.where.suffix == ".json" and one.where.parent.name == "trials" else one.where
        groups.setdefault((one.severity, one.kind, run), []).append(one)
    ordered = sorted(groups.items(), key=lambda group: group[0][0] != "refused")
    return [FindingGroup(tuple(found)) for _, found in ordered]


@dataclass(frozen=True)
class Kind:
    """A kind of finding: makes findings that differ in their place and words alone."""

    name: str
    severity: Severity
    advice: str

    def at(self, where: Path | str, what: str) -> Finding:
        """Return a finding of this kind."""
        return Finding(self.name, self.severity, Path(where), what, self.advice)


AGAIN = "the file was changed, or the suite has a fault: run the trial again, and report it if it comes back"
"""Advice for a record that contradicts itself."""
