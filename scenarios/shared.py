"""Shared resources: a victim alone and beside aggressors, each in an instance of its own on one machine.

Aggressors are launched beside a victim, heard while it runs, and told to stop when it has ended.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

from scenarios.events import AggressorLog, Transcript
from scenarios.failure import failure_of_exit, with_process
from scenarios.job import AttestedJob, attest, launch, listening, prepare, recordable, specification
from scenarios.members import member_request, source_sha256
from scenarios.probe import scratch_bytes
from suite.errors import BenchError, CommandError, MeasurementError, RequestError, option
from suite.interfaces import Context, Instance, Measurement, Note, Observer, Process
from suite.job.distributed import check_memory, cpus_are_shared
from suite.job.envelope import Envelope
from suite.job.profiles import Profile
from suite.job.sharing import PAPERS_VICTIMS, Sharing, architecture, victim_names
from suite.plan import Trial, planned
from suite.records.record import Aggression, AggressorInstance
from suite.records.usage import Usage
from suite.registries import AGGRESSORS, WORKLOADS
from suite.request.option import Count, OptionGroup, Text, about
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from suite.targets import BASELINE
from worker.spec import AggressorRequest

ENDS_WITHIN_S = 600.0
"""How long an aggressor may take to end once it is told to: one step on an emulated CPU."""


class SharedOptions(OptionGroup):
    """Scenario shared."""

    aggressor: tuple[Text, ...] = about(
        ("alexnet",),
        "Load next to the victim, one at a time. Models train; disk runs fio, memory a triad, network iperf3 over "
        "loopback, cpu matrix products, copies between host and GPU (or, on the CPU, within memory).",
        members=(WORKLOADS, AGGRESSORS),
    )
    aggressors: Count | None = about(None, "Number of instances that run the aggressor. Default: 1.")


class Shared(PlannedScenario):
    """The paper's third question: how much a job slows down when another runs beside it."""

    name = "shared"
    options = SharedOptions
    neighbours = True
    normalised = False
    no_turns = "a victim and its aggressors run at the same time on purpose"

    @classmethod
    def model_names(cls) -> tuple[str, ...]:
        return victim_names()

    @classmethod
    def usual_models(cls, profile: str) -> tuple[str, ...]:
        # The smoke profile proves the path, and on an emulated CPU every victim takes minutes.
        if profile == "smoke":
            return super().usual_models(profile)
        return PAPERS_VICTIMS

    def instances(self, request: RunRequest) -> int:
        return 1 + (request.options(SharedOptions).aggressors or 1)

    def scratch_bytes(self, request: RunRequest, models: Sequence[str]) -> dict[str, int]:
        names = request.options(SharedOptions).aggressor
        needed = scratch_bytes(AGGRESSORS, names, request.measurement.profile)
        if needed:
            return dict.fromkeys(models, max(needed.values()))
        return {}

    def part(self, request: RunRequest, profile: Profile, model: str) -> Mapping[str, object]:
        options = request.options(SharedOptions)
        trained = [name for name in options.aggressor if name in WORKLOADS]
        for name in trained:
            self.check_model(request, name)
        sources = {
            name: source_sha256(WORKLOADS if name in trained else AGGRESSORS, name) for name in options.aggressor
        }
        sharing = Sharing(
            aggressors=options.aggressor,
            copies=options.aggressors or 1,
            workloads={name: profile.sizes_of(name) for name in trained},
            sources={name: digest for name, digest in sources.items() if digest},
        )
        return {"sharing": sharing}

    def check_shares(
        self,
        request: RunRequest,
        envelope: Envelope,
        targets: Sequence[str],
        note: Note,
    ) -> None:
        """Raise RequestError, with the arithmetic, if the machine is too small for so many instances."""
        count = self.instances(request)
        check_memory(envelope, count, who=f"a victim and {count - 1} aggressors", fewer="aggressors")
        if not cpus_are_shared(envelope, count):
            return
        have = f"{count} instances on {len(envelope.cpus)} CPU{'s' if len(envelope.cpus) > 1 else ''}"
        if set(targets) == {BASELINE}:
            note(f"{have}: bare metal shares them as its operating system likes")
            return
        raise RequestError(
            f"{have}: there is {len(envelope.cpus) / count:.2f} of a CPU for each, and each needs one of its own",
            remedy=f"give {option('cpus')} {count} or more if the host has them, ask for fewer "
            f"{option('aggressors')}, or measure {option('target')} {BASELINE} alone",
        )

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: Context,
    ) -> Measurement:
        """Run the victim, alone or beside the aggressors. Raises MeasurementError when it does not come to its end.

        The error is of kind ``aggressor`` when the victim was not under load all the time: such a trial is neither one
        alone nor one beside an aggressor.
        """
        sharing = planned(trial.job.sharing, "what shares the machine")
        model = architecture(trial.job.model)
        victim = trial.with_job(model=model, envelope=trial.instances[0].envelope)
        job = prepare(victim, instances[0].node, observer)
        numbers = range(1, len(instances))
        aggressors = [_prepared(trial, sharing, number, instances) for number in numbers]
        if trial.aggressor is None:
            measured = launch(job, account)
            with recordable(job.argv):
                idle = [AggressorInstance(environment=neighbour.job.environment()) for neighbour in aggressors]
            return measured.changed(aggressors=idle)
        observer.phase("aggressor", trial.aggressor)
        with running_aggressors(aggressors, 2.0 * trial.trial_timeout_s) as group:
            group.wait_until_ready(trial.trial_timeout_s)
            try:
                measured = launch(job, account, group.watch)
            except MeasurementError:
                group.check()  # a victim that was ended because its aggressor was says nothing of the cause
                raise
            group.stop()
        with recordable(job.argv):
            records = [neighbour.record(job.log, measured.elapsed_s) for neighbour in aggressors]
        return measured.changed(aggressors=records)


@dataclass
class AggressorProcess:
    """The process of one aggressor, from its launch to what it said."""

    name: str
    job: AttestedJob[AggressorLog]
    settled: Event
    """Set when the victim can be launched, and when there is no point in waiting any longer."""
    stopping: bool = False

    def listen(self, timeout_s: float) -> None:
        """Hear it to its end. Raises MeasurementError of kind ``aggressor`` unless it was told to end."""
        log = self.job.log
        process = self.job.process or self.job.launch()
        try:
            for line in process.lines(timeout_s):
                log.hear(line)
            status = process.wait(ENDS_WITHIN_S)
            if status or "done" not in log.events:
                memory_bytes = self.job.trial.job.envelope.memory_bytes
                raise failure_of_exit(status, log.phase, memory_bytes, self.job.node)
            if not self.stopping:
                raise MeasurementError("it ended before the victim did", kind="aggressor")
        except BenchError as error:
            late = isinstance(error, CommandError) and error.returncode is None
            why = f"it had not ended after {timeout_s:g} s: it was {log.phase!r}" if late else error.message
            remedy = error.remedy or "the trial does not count as one beside an aggressor: run it again"
            told = MeasurementError(f"{self.name}: {why}", kind="aggressor", remedy=remedy)
            raise with_process(told, self.job.argv, process) from error
        finally:
            process.kill()

    def stop(self) -> None:
        """Tell it to stop, by a signal sent inside: one to an engine's client or to ssh would not get there."""
        self.stopping = True
        pid = self.job.log.events["started"].fields.get("pid")
        if not isinstance(pid, int) or pid < 2:
            raise MeasurementError(
                f"{self.name} says that its process is {pid!r}", kind="protocol", command=self.job.argv
            )
        # One that has ended meanwhile is not there any more: listening to it says why.
        self.job.node.run(["kill", "-TERM", str(pid)], check=False)

    def record(self, victim: Transcript, elapsed_s: float) -> AggressorInstance:
        """Return the record. Raises MeasurementError where its measured steps do not enclose the victim."""
        events = self.job.log.events
        progress = self.job.log.progress
        launched_s = victim.begun_s
        begun_s, ended_s = (events[name].arrived_s - launched_s for name in ("measuring", "measured"))
        if begun_s >= 0 or ended_s < elapsed_s:
            raise MeasurementError(
                f"{self.name} took its measured steps from {begun_s:.2f} s to {ended_s:.2f} s after the launch of the "
                f"victim, which ended at {elapsed_s:.2f} s: it was not beside it all the time",
                kind="aggressor",
                command=self.job.argv,
            )
        aggression = Aggression(
            unit=str(events["measuring"].fields.get("unit")),
            begun_s=begun_s,
            ended_s=ended_s,
            heard_s=[report.arrived_s - launched_s for report in progress],
            steps=[report.steps for report in progress],
            work=[report.work for report in progress],
            before_per_s=self.job.log.per_s(progress[0].arrived_s, launched_s),
            beside_per_s=self.job.log.per_s(*[victim.events[name].arrived_s for name in ("measuring", "measured")]),
            usage=self.job.log.usage() or Usage(),
        )
        return AggressorInstance(environment=self.job.environment(), aggression=aggression)


@dataclass
class AggressorGroup:
    aggressors: Sequence[AggressorProcess]
    futures: "list[Future[None]]" = field(default_factory=list)
    victim: Process | None = None

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until every one takes its measured steps. Raises MeasurementError when one does not get there."""
        deadline = time.monotonic() + timeout_s
        for aggressor in self.aggressors:
            aggressor.settled.wait(max(0.0, deadline - time.monotonic()))
            self.check()
            if not aggressor.settled.is_set():
                raise MeasurementError(
                    f"{aggressor.name} was not ready after {timeout_s:g} s: it was {aggressor.job.log.phase!r}",
                    kind="aggressor",
                    command=aggressor.job.argv,
                    remedy=f"allow more with {option('trial_timeout')}",
                )

    def watch(self, victim: Process) -> None:
        """End the victim as soon as an aggressor ends: what it would still measure counts for nothing."""
        self.victim = victim
        if any(future.done() for future in self.futures):
            victim.kill()

    def check(self) -> None:
        """Raise the failure of the first that has failed."""
        for future in self.futures:
            if future.done() and (error := future.exception()):
                raise error

    def stop(self) -> None:
        """Tell all to stop and hear them to their ends. Raises MeasurementError when one has failed."""
        self.check()
        for aggressor in self.aggressors:
            aggressor.stop()
        deadline = time.monotonic() + ENDS_WITHIN_S
        for aggressor, future in zip(self.aggressors, self.futures, strict=True):
            try:
                future.result(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise MeasurementError(
                    f"{aggressor.name} did not stop within {ENDS_WITHIN_S:g} s of being told", kind="aggressor"
                ) from None

    def ended(self, each: AggressorProcess) -> None:
        each.settled.set()
        if self.victim and not each.stopping:
            self.victim.kill()


@contextmanager
def running_aggressors(aggressors: Sequence[AggressorProcess], timeout_s: float) -> Iterator[AggressorGroup]:
    """Launch all and listen to each in another thread; at the end none is left. Each may live ``timeout_s``."""
    group = AggressorGroup(aggressors)
    with listening([each.job for each in aggressors]) as pool:
        for each in aggressors:
            each.job.launch()
            future = pool.submit(each.listen, timeout_s)
            future.add_done_callback(lambda _, each=each: group.ended(each))  # type: ignore[misc]
            group.futures.append(future)
        yield group


def _prepared(trial: Trial, sharing: Sharing, number: int, instances: Sequence[Instance]) -> AggressorProcess:
    """Attest an aggressor and prepare its launch; one that stays idle is attested too, and never launched."""
    node = instances[number].node
    envelope = trial.instances[number].envelope
    name = trial.aggressor or sharing.aggressors[0]
    sizes = sharing.workloads.get(name)
    source = sharing.sources.get(name)
    trial_of_instance = trial.with_job(
        model=name,
        sizes=sizes,
        envelope=envelope,
        workload_sha256=source,
    )
    if name in WORKLOADS:
        spec = AggressorRequest(training=specification(trial_of_instance))
    else:
        spec = AggressorRequest(aggressor=member_request(AGGRESSORS, trial_of_instance, node))
    settled = Event()
    log = AggressorLog(ready=settled.set)
    job = attest(trial_of_instance, node, spec, log, "--aggressor")
    return AggressorProcess(f"the aggressor {name} in instance {number} ({node.name})", job, settled)
