"""Shared resources: a victim alone and beside aggressors, each in an instance of its own on one machine."""

from collections.abc import Mapping, Sequence
from threading import Event

from scenarios.aggressor import AggressorProcess, running_aggressors
from scenarios.events import AggressorLog
from scenarios.job import attest, launch, prepare, recordable, specification
from scenarios.members import member_request, source_sha256
from scenarios.probe import scratch_bytes
from suite.errors import MeasurementError, RequestError, option
from suite.interfaces import Context, Instance, Measurement, Note, Observer
from suite.job.distributed import check_memory, cpus_are_shared
from suite.job.envelope import Envelope
from suite.job.profiles import Profile
from suite.job.sharing import PAPERS_VICTIMS, Sharing, architecture, victim_names
from suite.plan import Trial, planned
from suite.records.record import AggressorInstance
from suite.registries import AGGRESSORS, WORKLOADS
from suite.request.option import Count, OptionGroup, Text, about
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from suite.targets import BASELINE
from worker.spec import AggressorRequest


class SharedOptions(OptionGroup):
    """Scenario shared."""

    aggressor: tuple[Text, ...] = about(
        ("alexnet",),
        "Load next to the victim, one at a time. Models train; disk runs fio, memory a triad, network iperf3 over "
        "loopback, cpu matrix products.",
        members=(WORKLOADS, AGGRESSORS),
    )
    aggressors: Count | None = about(None, "Number of instances that run the aggressor. Default: 1.")


class Shared(PlannedScenario):
    """The paper's third question: how much a job slows down when another runs beside it."""

    name = "shared"
    options = SharedOptions
    neighbours, normalised = True, False
    no_turns = "a victim and its aggressors run at the same time on purpose"

    @classmethod
    def model_names(cls) -> tuple[str, ...]:
        return victim_names()

    @classmethod
    def usual_models(cls, profile: str) -> tuple[str, ...]:
        # The smoke profile proves the path, and on an emulated CPU every victim takes minutes.
        return super().usual_models(profile) if profile == "smoke" else PAPERS_VICTIMS

    def instances(self, request: RunRequest) -> int:
        return 1 + (request.options(SharedOptions).aggressors or 1)

    def scratch_bytes(self, request: RunRequest, models: Sequence[str]) -> dict[str, int]:
        needed = scratch_bytes(AGGRESSORS, request.options(SharedOptions).aggressor, request.measurement.profile)
        return dict.fromkeys(models, max(needed.values())) if needed else {}

    def part(self, request: RunRequest, profile: Profile, model: str) -> Mapping[str, object]:
        asked = request.options(SharedOptions)
        trained = [name for name in asked.aggressor if name in WORKLOADS]
        for name in trained:
            self.check_model(request, name)
        sources = {name: source_sha256(WORKLOADS if name in trained else AGGRESSORS, name) for name in asked.aggressor}
        sharing = Sharing(
            aggressors=asked.aggressor,
            copies=asked.aggressors or 1,
            workloads={name: profile.sizes_of(name) for name in trained},
            sources={name: digest for name, digest in sources.items() if digest},
        )
        return {"sharing": sharing}

    def check_shares(self, request: RunRequest, envelope: Envelope, targets: Sequence[str], note: Note) -> None:
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

    def measure(self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: Context) -> Measurement:
        """Run the victim, alone or beside the aggressors. Raises MeasurementError when it does not come to its end.

        The error is of kind ``aggressor`` when the victim was not under load all the time: such a trial is neither one
        alone nor one beside an aggressor.
        """
        sharing = planned(trial.job.sharing, "what shares the machine")
        own = trial.with_job(model=architecture(trial.job.model), envelope=trial.instances[0].envelope)
        job = prepare(own, instances[0].node, observer)
        aggressors = [_prepared(trial, sharing, number, instances) for number in range(1, len(instances))]
        if trial.aggressor is None:
            measured = launch(job, account)
            with recordable(job.argv):
                return measured.changed(
                    aggressors=[AggressorInstance(environment=each.job.environment()) for each in aggressors]
                )
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
            records = [each.record(job.log, measured.elapsed_s) for each in aggressors]
        return measured.changed(aggressors=records)


def _prepared(trial: Trial, sharing: Sharing, number: int, instances: Sequence[Instance]) -> AggressorProcess:
    """Attest an aggressor and prepare its launch; one that stays idle is attested too, and never launched."""
    node, envelope = instances[number].node, trial.instances[number].envelope
    name = trial.aggressor or sharing.aggressors[0]
    sizes, source = sharing.workloads.get(name), sharing.sources.get(name)
    own = trial.with_job(model=name, sizes=sizes, envelope=envelope, workload_sha256=source)
    if name in WORKLOADS:
        spec = AggressorRequest(training=specification(own))
    else:
        spec = AggressorRequest(aggressor=member_request(AGGRESSORS, own, node))
    settled = Event()
    job = attest(own, node, spec, AggressorLog(ready=settled.set), "--aggressor")
    return AggressorProcess(f"the aggressor {name} in instance {number} ({node.name})", job, settled)
