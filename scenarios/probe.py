"""Probes: one cost of a layer at a time (disk, memory, network, CPU, system calls, start-up), without training.

A trial's model is the name of its probe, and its profile says how much is measured.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from scenarios.events import PROBE_PHASES, PROBE_TURNS_PHASES, EventLog
from scenarios.job import AttestedJob, attest, metrics_of, recordable
from scenarios.members import member_request
from scenarios.turns import BurstMessage, WorkerTurns
from suite.errors import MeasurementError, RequestError, option
from suite.interfaces import Context, Instance, Measurement, Node, Note, Observer, TurnTaker
from suite.job.envelope import Envelope
from suite.job.job import Alternating
from suite.plan import Trial
from suite.records.record import Timeline
from suite.registries import PROBES
from suite.registry import Registry
from suite.request.option import OptionGroup, Text, about
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from worker.probes.probe import Probe

SPARE = 1.5
"""The disk space of a file over its bytes: the file system's metadata and its journal take some, too."""


class HostProbe(Protocol):
    """A probe that the host measures, on an ordinary job of the worker's."""

    name: str

    def written_bytes(self, size: str) -> int | None:
        """Return how many bytes it writes to the data disk; see ``worker.probes.probe.Probe``."""

    def run(self, trial: Trial, instance: Instance, observer: Observer, account: Context) -> Measurement:
        """Run the probe on an instance. Raises MeasurementError when it does not come to its end."""


class ProbeOptions(OptionGroup):
    """Scenario probe."""

    probe: tuple[Text, ...] = about(PROBES.names, "Probes to run.", members=(PROBES,))


class Probing(PlannedScenario):
    name = "probe"
    options = ProbeOptions
    probes = inventory = True
    workloads = trains = turns_by_default = False
    subject = "probe"
    unnamed = "all"
    members = PROBES

    def models(self, request: RunRequest) -> tuple[str, ...]:
        names = request.options(ProbeOptions).probe
        every = names == PROBES.names()
        return tuple(name for name in names if not (every and getattr(PROBES.get(name), "only_named", False)))

    def scratch_bytes(self, request: RunRequest, models: Sequence[str]) -> dict[str, int]:
        return scratch_bytes(PROBES, models, request.measurement.profile)

    def turns(self, request: RunRequest) -> Alternating | None:
        turns = request.measurement.turns
        if not isinstance(turns, Alternating) or request.measurement.burst_steps:
            return turns
        # One measurement of a probe is as long as many steps.
        return turns.model_copy(update={"burst_steps": 1})

    def hinders_turns(self, request: RunRequest) -> tuple[str, str] | None:
        whole = [name for name in self.models(request) if not _in_turns(name)]
        if not whole:
            return None
        able = [name for name in PROBES if _in_turns(name)]
        why = f"the {' and the '.join(whole)} probe measures in one piece"
        return why, f"give {option('probe')} {', '.join(able)}, or leave {option('design')} out"

    def check_shares(
        self,
        request: RunRequest,
        envelope: Envelope,
        targets: Sequence[str],
        note: Note,
    ) -> None:
        for name in self.models(request):
            check = getattr(PROBES.get(name), "check", None)
            if check:
                check(request, targets, envelope)

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: Context,
    ) -> Measurement:
        """Run the probe. Raises MeasurementError when it does not come to its end."""
        (instance,) = instances
        node = instance.node
        try:
            probe: Probe | HostProbe = PROBES.get(trial.job.model)
        except RequestError as error:
            remedy = error.remedy or f"choose among {', '.join(PROBES)}"
            raise MeasurementError(error.message, kind="probe", remedy=remedy) from error
        if not isinstance(probe, Probe):
            return probe.run(trial, instance, observer, account)
        # Refused alike on every target: a directory of bare metal would have room where the disk of a VM has none.
        needed = probe.written_bytes(trial.job.profile)
        planned_bytes = trial.scratch_bytes or 0
        if needed and (node.data is None or planned_bytes < needed):
            have = "there is no data volume"
            if node.data:
                have = f"{planned_bytes / 1e6:.0f} MB are planned"
            raise MeasurementError(
                f"the {trial.job.model} probe writes {needed / 1e6:.0f} MB, and on {node.name} {have}",
                kind="probe",
                remedy="run it with bench run, which plans the room",
            )
        attested = _attested(trial, node, observer)
        with account:
            elapsed_s = attested.follow()
        return _measurement(attested, elapsed_s)

    def turn_taker(self, trial: Trial, instances: Sequence[Instance], observer: Observer) -> TurnTaker:
        (instance,) = instances
        return ProbeTurns(_attested(trial, instance.node, observer))


class ProbeTurns(WorkerTurns[BurstMessage]):
    """A probe that is measured in every turn, of which the means are its metrics. A measurement of it is a step."""

    message = BurstMessage

    def steps_of(self, burst: BurstMessage) -> int:
        turns = self.job.trial.job.turns
        return turns.burst_steps if isinstance(turns, Alternating) else 0

    def measurement(self, elapsed_s: float, span_s: float) -> Measurement:
        return _measurement(self.job, elapsed_s)


def _in_turns(probe: str) -> bool:
    return bool(getattr(PROBES.get(probe), "in_turns", False))


def _attested(trial: Trial, node: Node, observer: Observer) -> AttestedJob[EventLog]:
    observer.phase("attesting")
    log = EventLog(observer=observer, phases=PROBE_TURNS_PHASES if trial.job.turns else PROBE_PHASES)
    return attest(trial, node, member_request(PROBES, trial, node), log, "--probe")


def _measurement(job: AttestedJob[EventLog], elapsed_s: float) -> Measurement:
    """Return what the worker measured. Raises MeasurementError where that is nothing."""
    transcript = job.log
    details = transcript.said("metrics", "details")
    refused = details.get("refused")
    for name, reason in refused.items() if isinstance(refused, Mapping) else ():
        transcript.observer.note(f"{name} cannot be measured on {job.trial.target}: {reason}")
    with recordable(job.argv):
        metrics = metrics_of(transcript.said("metrics", "metrics"))
        if not metrics:
            raise MeasurementError("the worker has measured nothing", kind="protocol", remedy="see bench image verify")
        return Measurement(
            elapsed_s=elapsed_s,
            # Everything between launch and exit is in the metrics of the probe.
            timeline=Timeline(**transcript.ends(elapsed_s)),
            environment=job.environment(),
            metrics=metrics,
            **transcript.clocks("environment", "metrics"),
            usage=transcript.usage(),
            details=dict(details),
        )


def scratch_bytes(registry: Registry, names: Sequence[str], profile: str) -> dict[str, int]:
    """Return how much disk space each of the probes or aggressors needs, by name, without those that write nothing."""
    needed = {}
    for name in names:
        if name in registry:
            needed[name] = registry.get(name).written_bytes(profile)
    return {name: int(size_bytes * SPARE) for name, size_bytes in needed.items() if size_bytes}
