"""The one loop: for each trial open the target, measure, close, record."""

import datetime
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from suite import __version__
from suite.errors import BenchError, MeasurementError
from suite.interfaces import Account, Instance, Measurement, Observer, Scenario
from suite.job.distributed import cpus_are_shared
from suite.job.envelope import Envelope
from suite.plan import Plan, Trial
from suite.records.environment import Environment, Environments
from suite.records.record import Outcome, TrialRecord
from suite.records.usage import Resources
from suite.results.store import Run, StoreError

OpenTarget = Callable[[Trial], AbstractContextManager[Sequence[Instance]]]
OpenAccount = Callable[[Trial, Sequence[Instance]], Account]
"""Gives the counters of this host for the opened target of the trial."""


_OF_TRIAL = sorted(Trial.model_fields.keys() & TrialRecord.model_fields.keys())
"""The fields of a trial that its record copies: all that both have."""


@dataclass(frozen=True)
class Loop:
    """Runs the trials of a plan. ``host`` returns the environment of this machine."""

    scenario: Scenario
    open_target: OpenTarget
    store: Run
    observer: Observer
    host: Callable[[], Environment]
    open_account: OpenAccount

    def run(self, plan: Plan, block: int | None = None) -> list[TrialRecord]:
        """Run what the store does not hold yet, of one block or of all; every trial is saved before the next begins.

        A trial that fails is a record and the run goes on. Returns the records made now. What ends the run: Ctrl-C,
        and a store that cannot be written.
        """
        self.store.begin(plan)
        finished = set(self.store.finished())
        trials = list(plan.trials() if block is None else plan.trials_of(block))
        if skipped := sum(trial.trial_id in finished for trial in trials):
            self.observer.note(f"{skipped} of {len(trials)} trials are there already and are kept")
        records = []
        for number, trial in enumerate(trials, start=1):
            if trial.trial_id in finished:
                continue
            self.observer.trial_started(trial, number, len(trials))
            record = self._record(trial)
            self.store.save(record)
            self.observer.trial_finished(record)
            records.append(record)
        return records

    def _record(self, trial: Trial) -> TrialRecord:
        started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        host = self.host()
        course = _Course()
        outcome = Outcome(status="ok")
        try:
            self._measure(trial, course)
            if course.measurement and (differences := _differences(trial, course.measurement)):
                raise MeasurementError("the target differs from the plan: " + "; ".join(differences), kind="envelope")
        except StoreError:
            raise
        except BenchError as error:
            outcome = _failure(error)
        seen = course.measurement
        measured = seen if outcome.status == "ok" else None
        return TrialRecord(
            **{name: getattr(trial, name) for name in _OF_TRIAL},
            **_numbers(measured),
            run_id=self.store.run_id,
            suite_version=__version__,
            started_at=started_at,
            outcome=outcome,
            open_s=course.open_s,
            close_s=course.close_s,
            substitutes=list(course.substitutes),
            environment=Environments(host=host, target=seen.environment if seen else None),
            conditions=course.account.conditions if course.account else None,
            resources=_resources(course.account, measured),
        )

    def _measure(self, trial: Trial, course: "_Course") -> None:
        """Open, measure, close. Progress is kept in ``course`` even if the trial fails."""
        self.observer.phase("opening")
        with self.open_target(trial) as instances:
            # Instances are opened one after another.
            course.open_s = math.fsum(instance.node.opening.seconds for instance in instances)
            course.substitutes = _substitutes(trial, instances)
            course.account = self.open_account(trial, instances)
            try:
                course.measurement = self.scenario.measure(trial, instances, self.observer, course.account)
            finally:
                end = time.monotonic()
                self.observer.phase("closing")
        course.close_s = time.monotonic() - end


@dataclass
class _Course:
    """The progress of a trial, kept even if it fails."""

    open_s: float | None = None
    close_s: float | None = None
    substitutes: tuple[str, ...] = ()
    account: Account | None = None
    measurement: Measurement | None = None


def _substitutes(trial: Trial, instances: Sequence[Instance]) -> tuple[str, ...]:
    """Return the substitutes of all instances, each once."""
    in_lab = trial.job.distributed is not None and trial.job.distributed.lab is not None
    shared = in_lab and cpus_are_shared(trial.job.envelope, len(trial.instances))
    named = [name for instance in instances for name in instance.node.substitutes]
    return tuple(dict.fromkeys([*named, *(["cpus:shared-by-instances"] if shared else [])]))


def _differences(trial: Trial, measured: Measurement) -> list[str]:
    """Return the differences of every instance from its own envelope."""
    if not trial.instances:
        return envelope_differences(trial, trial.job.envelope, measured.environment)
    return [
        f"{name}: {difference}"
        for planned, (name, seen) in zip(trial.instances, _seen(trial, measured), strict=True)
        for difference in envelope_differences(trial, planned.envelope, seen)
    ]


def _seen(trial: Trial, measured: Measurement) -> list[tuple[str, Environment]]:
    """Return what each instance is called, and what was seen inside it."""
    if not trial.job.sharing:
        return [(f"rank {rank.rank}", rank.environment) for rank in measured.ranks]
    found = [("victim", measured.environment)]
    for number, (planned, one) in enumerate(zip(trial.instances[1:], measured.aggressors, strict=True), start=1):
        # In an idle instance nothing computes that could have threads.
        idle = {} if one.aggression else {"threads": planned.envelope.threads}
        found.append((f"aggressor {number}", one.environment.model_copy(update=idle)))
    return found


def _numbers(measured: Measurement | None) -> dict[str, Any]:
    """Return the fields of a record that only a trial which came to its end has."""
    if measured is None:
        return {}
    names = ("throughput_images_per_s", "elapsed_s", "steps", "timeline", "data_use", "clock_ratio")
    copied = {name: getattr(measured, name) for name in names}
    copied |= {"ranks": list(measured.ranks), "aggressors": list(measured.aggressors)}
    return {**copied, "metrics": dict(measured.metrics), "details": dict(measured.details)}


def _resources(account: Account | None, measured: Measurement | None) -> Resources | None:
    """Return what the host has counted, also of a failed job, with what a job that ended has counted itself."""
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


def envelope_differences(trial: Trial, plan: Envelope, seen: Environment) -> list[str]:
    """Return in what an instance, as seen from inside, departs from its envelope. An absent attestation departs, too.

    Memory may differ by 2 %: control groups round to pages and a guest's firmware keeps a little.
    """
    differences = []
    properties = trial.properties
    by_count = not properties.pinned  # then the CPUs are given as a quota, and all of the place are seen
    if seen.cpus is None or (len(seen.cpus) < len(plan.cpus) if by_count else len(seen.cpus) != len(plan.cpus)):
        differences.append(f"CPUs {seen.cpus} instead of {len(plan.cpus)}")
    if not by_count and seen.host_cpus is not None and tuple(seen.host_cpus) != plan.cpus:
        differences.append(f"pinned to host CPUs {seen.host_cpus} instead of {list(plan.cpus)}")
    if seen.threads != plan.threads:
        differences.append(f"{seen.threads} threads instead of {plan.threads}")
    more_bytes = None if seen.memory_bytes is None else seen.memory_bytes - plan.memory_bytes
    if not properties.memory_limited:
        if more_bytes is None or more_bytes <= 0.02 * plan.memory_bytes:
            differences.append(f"memory is limited to {seen.memory_bytes} bytes, which it should not be")
    elif more_bytes is None or abs(more_bytes) > 0.02 * plan.memory_bytes:
        differences.append(f"{seen.memory_bytes} bytes of memory instead of {plan.memory_bytes}")
    if seen.disk_limit_bytes_per_s != properties.disk_limit_bytes_per_s:
        differences.append(
            f"disks limited to {seen.disk_limit_bytes_per_s} bytes/s instead of {properties.disk_limit_bytes_per_s}"
        )
    if seen.userland_differences:
        differences.append(f"userland departs from its manifest: {', '.join(seen.userland_differences[:3])}")
    return differences
