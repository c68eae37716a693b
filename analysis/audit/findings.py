"""Findings of the audit: contradictions, where they are, and what to do."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from analysis.warnings.types import AnalysisWarning

Severity = Literal["refused", "named"]
"""``refused``: the record takes part in nothing. ``named``: it is mentioned."""


@dataclass(frozen=True)
class Finding:
    """One finding. ``where`` is the file of a record, or the directory of a run for what concerns all of it."""

    kind: str
    severity: Severity
    where: Path
    what: str
    advice: str


def grouped(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return findings of one kind and run together, those that refuse first."""
    groups: dict[tuple[str, str, Path], list[Finding]] = {}
    for finding in findings:
        where = finding.where
        run = where
        if where.suffix == ".json" and where.parent.name == "trials":
            run = where.parents[1]
        groups.setdefault((finding.severity, finding.kind, run), []).append(finding)
    return sorted(groups.values(), key=lambda members: members[0].severity != "refused")


def warning_of(group: Sequence[Finding]) -> AnalysisWarning:
    """Return the findings of one kind in one run as one warning."""
    first = group[0]
    more = len(group) - 1
    refused = first.severity == "refused"
    others = ""
    if more:
        others = f" (and {more} other record{'s' * (more > 1)} for the same reason)"
    message = f"{first.where}{' is left out' if refused else ''}: {first.what}{others}"
    keep = "; --force keeps it, with a mark" if refused else ""
    return AnalysisWarning(f"audit-{first.kind}", message, first.advice + keep)


AGAIN = "the file was changed, or the suite has a fault: run the trial again, and report it if it comes back"
"""Advice for a record that contradicts itself."""


@dataclass(frozen=True)
class Kind:
    """A kind of finding; its findings differ in their place and words alone."""

    name: str
    severity: Severity = "refused"
    advice: str = AGAIN

    def at(self, where: Path | str, what: str) -> Finding:
        return Finding(self.name, self.severity, Path(where), what, self.advice)
