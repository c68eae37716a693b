"""The course of one trial, whether it ends well or not, and the record that it leaves."""

import math
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from suite.differ import MEMORY_TOLERANCE
from suite.errors import BenchError, MeasurementError
from suite.interfaces import Account, Instance, Measurement
from suite.interruption import interrupted
from suite.job.distributed import SHARED_CPUS, cpus_are_shared
from suite.job.envelope import MEMORY_NOT_LIMITED, Envelope
from suite.job.properties import DISK_LIMITS, DISK_STAND_INS
from suite.part import first_problem
from suite.plan import Trial
from suite.records.columns import most_late_s, timeline_s
from suite.records.environment import Environment, Environments
from suite.records.record import Alternation, Outcome, Timeline, TrialNumbers, TrialRecord
from suite.records.usage import GpuUsage, Resources, Usage
from suite.results.store import StoreError
from suite.untrusted.terminal import without_secrets
from suite.version import suite_version

OF_TRIAL = sorted(Trial.model_fields.keys() & TrialRecord.model_fields.keys())
"""The fields of a trial that its record copies: all that both have."""
_MOST_MESSAGE = 4000
_MOST_TAIL = 64_000
"""The most characters of a message, and of the end of an output, in a record: a worker's are as long as it likes."""

_BY_PAUSES = ("clock", "timeout")
"""The kinds of failures that a pause of the suite brings about."""


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
    begun_s: float = field(default_factory=time.monotonic)

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
        self.opening = {}
        for name in dict.fromkeys(name for parts in watches for name in parts):
            self.opening[name] = math.fsum(parts.get(name, 0.0) for parts in watches)
        self.open_s = math.fsum(self.opening.values())
        job = self.trial.job
        in_lab = job.distributed is not None and job.distributed.lab is not None
        substitutes = [name for instance in instances for name in instance.node.substitutes]
        if in_lab and cpus_are_shared(job.envelope, len(self.trial.instances)):
            substitutes.append(SHARED_CPUS)
        if job.envelope.pinning:
            substitutes.append("cpus:quota")
        self.substitutes = tuple(dict.fromkeys(substitutes))

    @property
    def models_bytes(self) -> int:
        if self.measurement:
            return sum(map(len, self.measurement.models.values()))
        return 0

    def check(self) -> None:
        """Raise MeasurementError if the target, as it was measured, differs from the plan, or its times contradict."""
        if self.measurement is None:
            return
        differences = _differences(self.trial, self.measurement, self.substitutes)
        if differences:
            raise MeasurementError("the target differs from the plan: " + "; ".join(differences), kind="envelope")
        if self.trial.job.has_elapsed_time:
            _check_times(self.measurement)

    def check_pauses(self, continued_s: Sequence[float]) -> None:
        """Let the trial fail if the suite was stopped meanwhile, and went on at one of these moments.

        All that it timed may hold the pause, and nothing tells which times do. A trial that has failed keeps
        its own reason, unless its time was over or the clocks contradict: the pause may be why.
        """
        pauses_s = [moment_s - self.begun_s for moment_s in continued_s if moment_s > self.begun_s]
        if not pauses_s:
            return
        if self.failure is None or getattr(self.failure, "kind", None) in _BY_PAUSES:
            self.failure = MeasurementError(
                f"the suite was stopped (SIGSTOP), and went on {pauses_s[0]:.1f} s after the trial had begun: what "
                "happened meanwhile was timed late",
                kind="suspended",
                remedy="run it again, and stop no bench while it measures",
            )

    def record(self) -> TrialRecord:
        """Return the record of the trial. What was measured and cannot be recorded makes it a failed one."""
        try:
            return self._recorded()
        except ValidationError as error:
            course = Course(self.trial, self.started_at, self.host, failure=error)
            return course._recorded()

    def _recorded(self) -> TrialRecord:
        if self.failure is None:
            outcome = Outcome(status="ok")
        else:
            outcome = failed(self.failure)
        measured = None if self.failure else self.measurement
        substitutes = (*self.substitutes, *(_substitutes(self.trial, measured) if measured else ()))
        takes_turns = self.trial.job.turns is not None
        fields = {name: getattr(self.trial, name) for name in OF_TRIAL}
        if not takes_turns:  # the times of a job that takes turns hold its waiting
            fields |= {"open_s": self.open_s, "opening": self.opening, "close_s": self.close_s}
        if measured:
            untimed = set() if self.trial.job.has_elapsed_time else {"elapsed_s"}
            names = TrialNumbers.model_fields.keys() - untimed
            fields |= {name: getattr(measured, name) for name in names}
        return TrialRecord.model_validate(
            {
                **fields,
                "suite_version": suite_version(),
                "started_at": self.started_at,
                "outcome": outcome,
                "global_batch": self.trial.job.global_batch,
                "substitutes": list(dict.fromkeys(substitutes)),
                "environment": Environments(
                    host=self.host, target=self.measurement.environment if self.measurement else None
                ),
                "alternation": self.alternation,
                "conditions": self.account.conditions if self.account else None,
                "resources": self._resources(measured),
            }
        )

    def _resources(self, measured: Measurement | None) -> Resources | None:
        """Return what the host has counted, also of a failed job, with what a job that ended has counted itself."""
        counted = self.account.resources if self.account else None
        if self.trial.job.turns:  # the account is that of all jobs of the block
            if counted and self.alternation:
                counted = _of_turns(self.alternation, counted.gpus)
            else:
                counted = None
        elif counted and measured and measured.timeline:
            counted = counted.with_measured(measured.timeline.measured_span)
        if measured is None or measured.usage is None:
            return counted
        return replace(counted or Resources(), worker=measured.usage)


def _check_times(measured: Measurement) -> None:
    """Raise MeasurementError if the worker's clock and the host's tell different times, which the audit refuses."""
    timeline = measured.timeline or Timeline()
    parts_s = timeline_s(timeline)
    if parts_s is None:
        return
    if abs(parts_s - measured.elapsed_s) > most_late_s(timeline.measured_s, timeline.launch_s):
        raise MeasurementError(
            f"its parts took {parts_s:.3f} s, mostly on the worker's clock, and {measured.elapsed_s:.3f} s passed on "
            "the host's: the suite read the worker's lines late, or the clocks run apart",
            kind="clock",
            remedy="run it again with less beside it: the suite needs a CPU at the begin and the end of a trial",
        )


def _of_turns(alternation: Alternation, gpus: list[GpuUsage] | None) -> Resources:
    """Return the CPU time that the turns took on the host, if that of each could be counted, and the block's GPUs."""
    seconds = [burst.cpu_s for burst in alternation.bursts if burst.cpu_s is not None]
    complete = len(seconds) == len(alternation.bursts)
    return Resources(serving=Usage(cpu_s=math.fsum(seconds)) if complete else None, gpus=gpus)


def _substitutes(trial: Trial, measured: Measurement) -> Iterator[str]:
    """Yield the substitutes that show when the job runs. A warm data set is read from memory anyway."""
    yield from measured.substitutes
    places = [measured.environment, *(rank.environment for rank in measured.ranks)]
    places += [instance.environment for instance in measured.aggressors]
    disks = []
    for holder in places if trial.job.page_cache != "warm" else ():
        if holder:
            disks.append(holder.filesystem)
    if trial.scratch_bytes and measured.epochs and measured.epochs.checkpoints:
        disks.append(measured.epochs.checkpoints.filesystem)
    for filesystem in disks:
        if filesystem in DISK_STAND_INS:
            yield DISK_STAND_INS[filesystem]


def _differences(trial: Trial, measured: Measurement, substitutes: Sequence[str] = ()) -> list[str]:
    """Return the differences of every instance from its own envelope."""
    if not trial.instances:
        return envelope_differences(trial, trial.envelope, measured.environment, substitutes)
    return [
        f"{name}: {difference}"
        for planned, (name, inside) in zip(trial.instances, _environments(trial, measured), strict=True)
        for difference in envelope_differences(trial, planned.envelope, inside, substitutes)
    ]


def _environments(trial: Trial, measured: Measurement) -> Iterator[tuple[str, Environment]]:
    """Yield the name of each instance in messages, and its environment as seen from inside."""
    if not trial.job.sharing:
        yield from ((f"rank {rank.rank}", rank.environment) for rank in measured.ranks)
        return
    yield "victim", measured.environment
    for number, (planned, instance) in enumerate(zip(trial.instances[1:], measured.aggressors, strict=True), start=1):
        environment = instance.environment
        if instance.aggression is None:  # nothing computes in an idle instance that could have threads
            environment = replace(environment, threads=planned.envelope.threads)
        yield f"aggressor {number}", environment


def envelope_differences(
    trial: Trial, plan: Envelope, inside: Environment, substitutes: Sequence[str] = ()
) -> list[str]:
    """Return the differences of an instance, as seen from inside, from its envelope. A fact that is absent differs.

    Memory may differ by 2 %: control groups round to pages and a guest's firmware keeps a little. There may be more
    where a substitute says that it is not limited.
    """
    properties = trial.properties
    cpus = -1 if inside.cpus is None else len(inside.cpus)
    departures = inside.userland_differences or []
    pinned = cpus == len(plan.cpus), inside.host_cpus is None or tuple(inside.host_cpus) == plan.cpus
    # CPUs that are not pinned are given as a quota: all of the machine's are seen.
    right_cpus, right_host_cpus = pinned if properties.pinned else (cpus >= len(plan.cpus), True)
    disks = [(name, getattr(inside, name), getattr(properties, name)) for name in DISK_LIMITS.values()]
    machine = trial.job.machine_of(trial.target)
    if machine:
        mistaken = machine.contradiction(hypervisor=inside.hypervisor is not None)
    else:
        mistaken = ""
    checks = (
        (not mistaken, mistaken),
        (right_cpus, f"CPUs {inside.cpus} instead of {len(plan.cpus)}"),
        (right_host_cpus, f"pinned to host CPUs {inside.host_cpus} instead of {list(plan.cpus)}"),
        (inside.threads == plan.threads, f"{inside.threads} threads instead of {plan.threads}"),
        _memory(
            plan, inside.memory_bytes, limited=properties.memory_limited, unlimited=MEMORY_NOT_LIMITED in substitutes
        ),
        *((seen == limit, f"{name} {seen} instead of {limit}") for name, seen, limit in disks),
        (not departures, f"userland departs from its manifest: {', '.join(departures[:3])}"),
    )
    return [text for right, text in checks if not right]


def _memory(plan: Envelope, seen_bytes: int | None, *, limited: bool, unlimited: bool) -> tuple[bool, str]:
    """Return whether the memory is right, and how it is not; ``unlimited`` may be the plan's, too, or more."""
    more_bytes = math.nan if seen_bytes is None else seen_bytes - plan.memory_bytes
    tolerated_bytes = MEMORY_TOLERANCE * plan.memory_bytes
    if not limited:
        return more_bytes > tolerated_bytes, f"memory is limited to {seen_bytes} bytes, which it should not be"
    most_bytes = math.inf if unlimited else tolerated_bytes
    return -tolerated_bytes <= more_bytes <= most_bytes, f"{seen_bytes} bytes of memory instead of {plan.memory_bytes}"


def failed(error: Exception) -> Outcome:
    """Return the failed outcome. Its texts may come from the job: they are cut, and what is not Unicode is replaced."""
    if not isinstance(error, BenchError):
        error = _unforeseen(error)
    return Outcome(
        status="failed",
        kind=_text(error.kind, _MOST_MESSAGE) or "unnamed",
        message=_text(error.message, _MOST_MESSAGE) or "it has no message",
        command=[_text(word, _MOST_MESSAGE) for word in getattr(error, "command", ())],
        output_tail=_text(without_secrets(error.output_tail)[-_MOST_TAIL:], _MOST_TAIL),
        remedy=None if error.remedy is None else _text(error.remedy, _MOST_MESSAGE),
    )


def _unforeseen(error: Exception) -> MeasurementError:
    """Return an error that the suite did not foresee with a kind, and its traceback as the end of the output."""
    lines = "".join(traceback.format_exception(error))
    if isinstance(error, OSError):
        return MeasurementError(f"the system says: {error}", kind="system", output_tail=lines)
    if isinstance(error, ValidationError):
        problem = first_problem(error, "the record")
        return MeasurementError(f"cannot be recorded: {problem}", kind="protocol", output_tail=lines)
    return MeasurementError(
        f"{type(error).__name__}: {error}",
        kind="mistake",
        output_tail=lines,
        remedy="this is a mistake of the suite's: please report it with this record",
    )


def _text(text: str, most: int) -> str:
    return without_secrets(text)[:most].encode(errors="replace").decode()
