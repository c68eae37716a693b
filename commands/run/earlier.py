"""Find the records of earlier runs that are like a planned one: on this machine, with the same jobs and targets."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.run.prepare import this_host
from suite.errors import BenchError
from suite.host_compatibility import Host, differences
from suite.job.job import IN_COLUMNS, Job, settings
from suite.plan import Plan
from suite.records.headers import headers
from suite.results.runs import find_runs
from suite.results.store import RESULTS, stored_plan

if TYPE_CHECKING:
    from analysis.load.records import Records


def earlier_records(plan: Plan, results: Path = RESULTS) -> "Records | None":
    """Return the trials of the plan's jobs and targets from runs below ``results``; None if there are none."""
    # Not at the top: pandas takes as long to import as everything else together.
    from analysis.load.records import load

    here = this_host()
    runs = [run for run in (find_runs([results]) if results.is_dir() else []) if _is_like(run, plan, here)]
    try:
        records = load(runs)
    except BenchError:  # no run, or none that can be read
        return None
    trials = records.trials
    return replace(records, trials=trials[trials["model"].isin(plan.models) & trials["target"].isin(plan.targets)])


def _is_like(run: Path, plan: Plan, here: Host) -> bool:
    try:
        before = stored_plan(run)
    except BenchError:
        return False
    known = [_key(job) for job in before.jobs]
    if not (set(plan.targets) <= set(before.targets) and all(_key(job) in known for job in plan.jobs)):
        return False
    hosts = {header.host for header in headers(run)}
    return all(host.hostname == here.hostname and not differences([here, host]) for host in hosts)


def _key(job: Job) -> dict[str, Any]:
    return {**{name: getattr(job, name) for name in IN_COLUMNS}, **settings(job)}
