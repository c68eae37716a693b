"""The one type of all warnings, with advice: what a reader must know, shown in every form of the results."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AnalysisWarning:
    """A finding, and advice on what to do about it. ``kind`` is stable, for programs."""

    kind: str
    finding: str
    advice: str
    where: str = ""
    """The target and its trials, if several targets can share the finding: ``notices`` tells that once."""

    @property
    def message(self) -> str:
        return f"{self.finding}: {self.where}" if self.where else self.finding

    def as_json(self) -> dict[str, str]:
        return {"kind": self.kind, "message": self.message, "advice": self.advice}


def skipped_record(
    path: str | Path, reason: str, advice: str = "remove the file, or run that trial again"
) -> AnalysisWarning:
    """Warn of a file among the records that could not be used. The others are."""
    return AnalysisWarning("skipped-record", f"{path} is left out: {reason}", advice)


def notices(warnings: Iterable[AnalysisWarning], jobs: Collection[object]) -> list[tuple[str, str]]:
    """Return messages and advice as a reader should see them: what several targets share is said once.

    A message does not name its job if ``jobs`` has only one.
    """
    told: dict[object, tuple[str, str]] = {}
    for found in warnings:
        key = found.finding if found.where else id(found)
        message = f"{told[key][0]}; {found.where}" if key in told else found.message
        told[key] = message, found.advice
    prefix = f"{next(iter(jobs))}: " if len(jobs) == 1 else ""
    return [(message.removeprefix(prefix), advice) for message, advice in told.values()]
