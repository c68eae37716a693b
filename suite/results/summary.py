"""Summarise a run by its plan and the heads of its records."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from suite.errors import RequestError
from suite.plan import Plan
from suite.records.headers import read_head, record_entries
from suite.records.reader import NewerRecordError
from suite.results.store import stored_plan


@dataclass(frozen=True)
class RunSummary:
    """One run. ``started_at`` and ``last_at`` are the times of its first and last trial, empty without one."""

    run_id: str | None
    """The identity of the run; None where the plan cannot be read."""
    directory: str
    started_at: str
    last_at: str
    scenario: str
    models: tuple[str, ...]
    targets: tuple[str, ...]
    blocks: int
    ok: int
    failed: int
    unreadable: int
    size_bytes: int
    """The size of the records."""
    problem: str | None = None
    """Why the plan cannot be read."""


def summarise(run: Path) -> RunSummary:
    """Summarise a run. What is wrong with it is in the summary, and raises nothing."""
    return with_plan(run)[0]


def with_plan(run: Path) -> tuple[RunSummary, Plan | None]:
    """Return the summary of a run, and its plan if that can be read."""
    plan, problem = _plan_or_problem(run)
    outcomes: Counter[str] = Counter()
    times: list[str] = []
    size_bytes = 0
    for entry in record_entries(run):
        try:
            size_bytes += entry.stat().st_size
            head = read_head(entry.path)
        except (OSError, NewerRecordError):  # removed in between, or of a later suite
            head = None
        outcomes[("failed", "ok")[head.ok] if head else "unreadable"] += 1
        if head:
            times.append(head.started_at)
    summary = RunSummary(
        run_id=plan.run_id if plan else None,
        directory=str(run),
        started_at=min(times, default=""),
        last_at=max(times, default=""),
        scenario=plan.job.scenario if plan else "",
        models=plan.models if plan else (),
        targets=plan.targets if plan else (),
        blocks=plan.blocks if plan else 0,
        ok=outcomes["ok"],
        failed=outcomes["failed"],
        unreadable=outcomes["unreadable"],
        size_bytes=size_bytes,
        problem=problem,
    )
    return summary, plan


def _plan_or_problem(run: Path) -> tuple[Plan | None, str | None]:
    try:
        return stored_plan(run), None
    except RequestError as error:
        return None, error.message
