"""The audit of loaded records, and what a comparison may use after it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from analysis.audit.course import CHANGED, course
from analysis.audit.files import NO_MANIFEST, UNLISTED, files
from analysis.audit.findings import Finding, grouped
from analysis.audit.inside import inside
from analysis.audit.limits import limits
from analysis.audit.missing import gaps, missing
from analysis.audit.parts import parts
from analysis.audit.planned import plan_of, planned
from analysis.audit.sums import sums
from analysis.load.records import Records
from suite.errors import RequestError
from suite.job.job import Job

_NOT_COMPARED = (NO_MANIFEST.name, UNLISTED.name, CHANGED.name)
"""Kinds that a comparison passes over: what cannot be checked, and changes, for which it looks over all runs itself."""


@dataclass(frozen=True)
class Audit:
    """The findings on records, those that refuse first."""

    findings: tuple[Finding, ...]
    records: int

    @property
    def refused(self) -> tuple[Finding, ...]:
        """The findings for which records are left out."""
        return tuple(one for one in self.findings if one.severity == "refused")


def audit(records: Records, *, every_digest: bool = True) -> Audit:
    """Hold every record, and every run as a whole, against itself."""
    evidence = records.evidence
    found = list(_inside(evidence[evidence["ok"].astype(bool)]))
    directories = evidence["path"].map(lambda path: str(Path(path).parents[1]))
    found += gaps(evidence, directories)
    for run in records.directories:
        trials = evidence[directories == str(run)]
        if len(trials):
            plan = plan_of(run)
            found += planned(run, trials, plan)
            found += course(run, trials, plan.trial_timeout_s if plan else None)
        found += files(run, every_digest=every_digest)
    unique = dict.fromkeys(found)
    return Audit(tuple(sorted(unique, key=lambda one: one.severity != "refused")), len(evidence))


def _inside(ok: pd.DataFrame) -> Iterator[Finding]:
    jobs = {text: Job.model_validate_json(text.text) for text in ok["job"].unique()}
    devices = {text: job.devices.devices for text, job in jobs.items()}
    yield from sums(ok.assign(devices_asked=ok["job"].map(devices).astype("float64")))
    for check in (parts, missing, inside, limits):
        yield from check(ok, jobs)


def audited(records: Records, *, force: bool = False) -> Records:
    """Return the records without those that the audit refuses, with its findings as warnings.

    ``force`` keeps them, with a mark. Raises RequestError where none is left.
    """
    found = audit(records, every_digest=False)
    refused: dict[str, list[str]] = {}
    for one in found.refused:
        refused.setdefault(str(one.where), []).append(f"audit {one.kind}")
    why = records.trials["path"].map(lambda path: _why(path, refused)) if refused else None
    told = [group.warning for group in grouped(one for one in found.findings if one.kind not in _NOT_COMPARED)]
    kept = records.trials
    if why is not None:
        kept = kept.assign(forced=why) if force else kept[why == ""].reset_index(drop=True)
    if not len(kept):
        raise RequestError(
            f"the audit refuses every record ({told[0].message})", remedy="see bench audit, or keep them with --force"
        )
    return replace(records, trials=kept, warnings=(*records.warnings, *told))


def _why(path: str, refused: dict[str, list[str]]) -> str:
    """Return why a record is refused: for itself, or with its whole run."""
    return ", ".join(dict.fromkeys((*refused.get(path, ()), *refused.get(str(Path(path).parents[1]), ()))))
