"""The audit of loaded records, and what a comparison may use after it."""

from dataclasses import dataclass, replace

from analysis.audit.findings import Finding, grouped, warning_of
from analysis.audit.inside import inside
from analysis.audit.numbers import all_in, gaps, limits, missing, sums
from analysis.audit.parts import parts
from analysis.audit.runs import CHANGED, NO_MANIFEST, UNLISTED, course, files, planned
from analysis.load.plans import plan_of
from analysis.load.records import Records, run_of
from suite.errors import RequestError

_NOT_COMPARED = (NO_MANIFEST.name, UNLISTED.name, CHANGED.name)
"""Kinds that a comparison passes over: what cannot be checked, and changes, for which it looks over all runs itself."""


@dataclass(frozen=True)
class Audit:
    """The findings on records, those that refuse first."""

    findings: tuple[Finding, ...]
    records: int

    @property
    def refused(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "refused")


def audit(records: Records, *, every_digest: bool = True) -> Audit:
    """Hold every record, and every run as a whole, against itself."""
    evidence = records.evidence
    ok = evidence[evidence["ok"].astype(bool)]
    findings: list[Finding] = []
    for check in (sums, parts, missing, inside, limits, all_in):
        findings += check(ok)
    directories = evidence["path"].map(run_of)
    findings += gaps(evidence, directories)
    for run in records.directories:
        trials = evidence[directories == str(run)]
        if len(trials):
            plan = plan_of(run)
            timeout_s = plan.trial_timeout_s if plan else None
            findings += planned(run, trials, plan)
            findings += course(run, trials, timeout_s)
        findings += files(run, every_digest=every_digest)
    unique = dict.fromkeys(findings)
    refused_first = sorted(unique, key=lambda finding: finding.severity != "refused")
    return Audit(tuple(refused_first), len(evidence))


def audited(records: Records, *, force: bool = False) -> Records:
    """Return records without those that the audit refuses, which ``force`` keeps and marks, and its warnings."""
    judgement = audit(records, every_digest=False)
    refused: dict[str, list[str]] = {}
    for finding in judgement.refused:
        kinds_of_place = refused.setdefault(str(finding.where), [])
        kinds_of_place.append(f"audit {finding.kind}")
    compared = [finding for finding in judgement.findings if finding.kind not in _NOT_COMPARED]
    warnings = list(map(warning_of, grouped(compared)))
    trials = records.trials
    if refused:

        def kinds_of(path: str) -> str:
            # A record is refused for itself, or with its whole run.
            of_record = refused.get(path, ())
            of_run = refused.get(run_of(path), ())
            return ", ".join(dict.fromkeys((*of_record, *of_run)))

        forced = trials["path"].map(kinds_of)
        if force:
            trials = trials.assign(forced=forced)
        else:
            trials = trials[forced == ""].reset_index(drop=True)
    if not len(trials):
        raise RequestError(
            f"the audit refuses every record ({warnings[0].message})",
            remedy="see bench audit, or keep them with --force",
        )
    return replace(records, trials=trials, warnings=(*records.warnings, *warnings))
