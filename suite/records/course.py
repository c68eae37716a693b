"""The course of one trial, whether it ends well or not, and the record that it leaves."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from suite import __version__
from suite.errors import MeasurementError
from suite.interfaces import Account, Instance, Measurement
from suite.interruption import interrupted
from suite.job.distributed import cpus_are_shared
from suite.job.envelope import Envelope
from suite.plan import Trial
from suite.records.environment import Environment, Environments
from suite.records.failure import failed
from suite.records.record import Alternation, Outcome, TrialRecord
from suite.records.usage import Conditions, Resources, Usage
from suite.results.store import StoreError
from suite.untrusted.terminal import clean

_OF_TRIAL = sorted(Trial.model_fields.keys() & TrialRecord.model_fields.keys())
"""The fields of a trial that its record copies: all that both have."""


@dataclass
class Course:
    """The progress of a trial, kept even if it fails."""

    trial: Trial
    started_at: str
    host: Environment
    open_s: float | None = None
    opening: dict[str, float] = field(default_factory=dict)
    close_s: float | None = None
    substitutes: tuple[str, ...] = ()
    account: Account | None = None
    measurement: Measurement | None = None
    alternation: Alternation | None = None
    failure: Exception | None = None

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Keep the error by which the trial fails, and go on. A store that cannot be written ends the run.

        So does an interruption whose place an error of the cleaning up has taken.
        """
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # whatever happens to one trial is a record, and the next is measured
            if interrupted():
                raise KeyboardInterrupt from error
            self.failure = self.failure or error

    def opened(self, instances: Sequence[Instance]) -> None:
        """Note what was opened. Instances are opened one after another."""
        watches = [instance.node.opening.parts for instance in instances]
        names = dict.fromkeys(name for parts in watches for name in parts)
        self.opening = {name: math.fsum(parts.get(name, 0.0) for parts in watches) for name in names}
        self.open_s = math.fsum(self.opening.values())
        self.substitutes = _substitutes(self.trial, instances)

    def check(self) -> None:
        """Raise MeasurementError where the target, as it was measured, differs from the plan."""
        if self.measurement and (differences := _differences(self.trial, self.measurement)):
            raise MeasurementError("the target differs from the plan: " + "; ".join(differences), kind="envelope")

    def record(self, run_id: str) -> TrialRecord:
        """Return the record of the trial. What was measured and cannot be recorded makes it a failed one."""
        try:
            return self._recorded(run_id)
        except ValidationError as error:
            return Course(self.trial, self.started_at, self.host, failure=error)._recorded(run_id)

    def _recorded(self, run_id: str) -> TrialRecord:
        outcome = Outcome(status="ok") if self.failure is None else failed(self.failure)
        seen = self.measurement
        measured = None if self.failure else seen
        # What a job that takes turns has taken in all holds its waiting.
        timed: dict[str, Any] = {"open_s": self.open_s, "opening": self.opening, "close_s": self.close_s}
        return TrialRecord(
            **{name: getattr(self.trial, name) for name in _OF_TRIAL},
            **_numbers(self.trial, measured),
            **({} if self.trial.job.turns else timed),
            run_id=clean(run_id),
            suite_version=__version__,
            started_at=self.started_at,
            outcome=outcome,
            substitutes=list(self.substitutes),
            environment=Environments(host=self.host, target=seen.environment if seen else None),
            alternation=self.alternation,
            conditions=self._conditions,
            resources=self._resources(measured),
        )

    @property
    def _conditions(self) -> Conditions | None:
        return self.account.conditions if self.account else None

    def _resources(self, measured: Measurement | None) -> Resources | None:
        """Return what the host has counted, also of a failed job, with what a job that ended has counted itself."""
        if self.trial.job.turns:
            # The account is that of all jobs of the block.
            counted = Resources(serving=_of_turns(self.alternation)) if self.alternation else None
        else:
            counted = self.account.resources if self.account else None
        if measured is None or measured.usage is None:
            return counted
        return (counted or Resources()).model_copy(update={"worker": measured.usage})


def _of_turns(taken: Alternation) -> Usage | None:
    """Return what the turns have cost the host; None where one could not be counted."""
    each = [burst.cpu_s for burst in taken.bursts]
    known = [seconds for seconds in each if seconds is not None]
    return Usage(cpu_s=math.fsum(known)) if len(known) == len(each) else None


def _substitutes(trial: Trial, instances: Sequence[Instance]) -> tuple[str, ...]:
    """Return the substitutes of all instances, each once."""
    in_lab = trial.job.distributed is not None and trial.job.distributed.lab is not None
    shared = in_lab and cpus_are_shared(trial.job.envelope, len(trial.instances))
    named = [name for instance in instances for name in instance.node.substitutes]
    named += ["cpus:shared-by-instances"] if shared else []
    named += ["cpus:quota"] if trial.job.envelope.pinning else []
    return tuple(dict.fromkeys(named))


def _differences(trial: Trial, measured: Measurement) -> list[str]:
    """Return the differences of every instance from its own envelope."""
    if not trial.instances:
        return envelope_differences(trial, trial.envelope, measured.environment)
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


def _numbers(trial: Trial, measured: Measurement | None) -> dict[str, Any]:
    """Return the fields of a record that only a trial which came to its end has."""
    if measured is None:
        return {}
    names = ["throughput_per_s", "steps", "weights_sha256", "timeline", "data_use", "epochs", "clock_ratio"]
    names += [] if trial.job.turns else ["elapsed_s"]
    copied = {name: getattr(measured, name) for name in names}
    copied |= {"ranks": list(measured.ranks), "aggressors": list(measured.aggressors)}
    return {**copied, "metrics": dict(measured.metrics), "details": dict(measured.details)}


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
