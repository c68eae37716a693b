"""The one loop: for each trial open the target, measure, close, record."""

import datetime
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from suite import __version__
from suite.errors import BenchError, MeasurementError
from suite.interfaces import Account, Measurement, Node, Observer, Scenario
from suite.plan import Plan, Trial
from suite.records import Environment, Environments, Outcome, Resources, TrialRecord
from suite.store import Run, StoreError

OpenTarget = Callable[[Trial], AbstractContextManager[Node]]
OpenAccount = Callable[[Trial, Node], Account]
"""Gives the counters of this host for the opened target of the trial."""


def run(
    plan: Plan,
    scenario: Scenario,
    open_target: OpenTarget,
    store: Run,
    observer: Observer,
    host: Callable[[], Environment],
    open_account: OpenAccount,
) -> list[TrialRecord]:
    """Run what the store does not hold yet; every trial is saved before the next begins.

    A trial that fails is a record and the run goes on. Returns the records made now. What ends the run: Ctrl-C, and a
    store that cannot be written.
    """
    store.begin(plan)
    finished = set(store.finished())
    trials = list(plan.trials())
    if skipped := sum(trial.trial_id in finished for trial in trials):
        observer.note(f"{skipped} of {len(trials)} trials are there already and are kept")
    records = []
    for number, trial in enumerate(trials, start=1):
        if trial.trial_id in finished:
            continue
        observer.trial_started(trial, number, len(trials))
        record = _one(plan, trial, scenario, open_target, store, observer, host, open_account)
        store.save(record)
        observer.trial_finished(record)
        records.append(record)
    return records


def _one(
    plan: Plan,
    trial: Trial,
    scenario: Scenario,
    open_target: OpenTarget,
    store: Run,
    observer: Observer,
    host: Callable[[], Environment],
    open_account: OpenAccount,
) -> TrialRecord:
    started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    host_environment = host()
    measurement: Measurement | None = None
    account: Account | None = None
    substitutes: tuple[str, ...] = ()
    open_s = close_s = None
    outcome = Outcome(status="ok")
    begin = end = time.monotonic()
    try:
        observer.phase("opening")
        with open_target(trial) as node:
            open_s = time.monotonic() - begin
            substitutes = node.substitutes
            account = open_account(trial, node)
            try:
                measurement = scenario.measure(trial, node, observer, account)
            finally:
                end = time.monotonic()
                observer.phase("closing")
        close_s = time.monotonic() - end
        if differences := envelope_differences(trial, measurement.environment):
            raise MeasurementError("the target differs from the plan: " + "; ".join(differences), kind="envelope")
    except StoreError:
        raise
    except BenchError as error:
        outcome = _failure(error)
    measured = measurement if outcome.status == "ok" else None
    shared = trial.model_dump(exclude={"trial_timeout_s", "cpu_capability"})
    return TrialRecord(
        **shared,
        run_id=store.run_id,
        suite_version=__version__,
        started_at=started_at,
        options=plan.options,
        outcome=outcome,
        throughput_images_per_s=measured.throughput_images_per_s if measured else None,
        elapsed_s=measured.elapsed_s if measured else None,
        open_s=open_s,
        close_s=close_s,
        steps=measured.steps if measured else None,
        timeline=measured.timeline if measured else None,
        clock_ratio=measured.clock_ratio if measured else None,
        substitutes=list(substitutes),
        environment=Environments(host=host_environment, target=measurement.environment if measurement else None),
        conditions=account.conditions if account else None,
        resources=_resources(account, measured),
        details=dict(measured.details) if measured else {},
    )


def _resources(account: Account | None, measured: Measurement | None) -> Resources | None:
    """What the host has counted, also of a job that failed, with what a job that did not has counted itself."""
    counted = account.resources if account else None
    if measured is None or measured.usage is None:
        return counted
    return (counted or Resources()).model_copy(update={"worker": measured.usage})


def _failure(error: BenchError) -> Outcome:
    return Outcome(
        status="failed",
        kind=error.kind,
        message=error.message,
        command=list(getattr(error, "command", ())),
        output_tail=getattr(error, "output_tail", ""),
        remedy=error.remedy,
    )


def envelope_differences(trial: Trial, seen: Environment) -> list[str]:
    """In what the target, as seen from inside, departs from its envelope. An absent attestation departs too.

    Memory may differ by 2 %: control groups round to pages and a guest's firmware keeps a little.
    """
    plan = trial.envelope
    differences = []
    if seen.cpus is None or len(seen.cpus) != len(plan.cpus):
        differences.append(f"CPUs {seen.cpus} instead of {len(plan.cpus)}")
    if seen.host_cpus is not None and tuple(seen.host_cpus) != plan.cpus:
        differences.append(f"pinned to host CPUs {seen.host_cpus} instead of {list(plan.cpus)}")
    if seen.threads != plan.threads:
        differences.append(f"{seen.threads} threads instead of {plan.threads}")
    if seen.memory_bytes is None or abs(seen.memory_bytes - plan.memory_bytes) > 0.02 * plan.memory_bytes:
        differences.append(f"{seen.memory_bytes} bytes of memory instead of {plan.memory_bytes}")
    if seen.userland_differences:
        differences.append(f"userland departs from its manifest: {', '.join(seen.userland_differences[:3])}")
    return differences
