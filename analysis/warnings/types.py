"""The one type of all warnings, with advice: what a reader must know, shown in every form of the results."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Touched:
    """The numbers that a warning is about: those of a target of a job, of one model or of all."""

    job: object
    target: str
    model: str = ""


@dataclass(frozen=True)
class AnalysisWarning:
    """A finding, and advice on what to do about it. ``kind`` is stable, for programs."""

    kind: str
    finding: str
    advice: str
    where: str = ""
    """The target and its trials, if several targets can share the finding: ``notices`` tells that once."""
    touches: tuple[Touched, ...] = ()
    """The numbers that it stands at; empty where it is about none, or about all."""

    @property
    def message(self) -> str:
        return f"{self.finding}: {self.where}" if self.where else self.finding


def skipped_record(
    path: str | Path, reason: str, advice: str = "remove the file, or run that trial again"
) -> AnalysisWarning:
    """Warn of a file among the records that could not be used. The others are."""
    return AnalysisWarning("skipped-record", f"{path} is left out: {reason}", advice)


def notices(warnings: Iterable[AnalysisWarning], jobs: Collection[object]) -> list[AnalysisWarning]:
    """Return the warnings for a reader: what several targets share once, without the name of the only job."""
    noticed: dict[object, AnalysisWarning] = {}
    for notice in warnings:
        key = notice.finding if notice.where else id(notice)
        before = noticed.get(key)
        noticed[key] = replace(
            notice,
            finding=f"{before.message}; {notice.where}" if before else notice.message,
            where="",
        )
    prefix = f"{next(iter(jobs))}: " if len(jobs) == 1 else ""
    return [replace(warning, finding=warning.finding.removeprefix(prefix)) for warning in noticed.values()]
