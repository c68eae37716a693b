"""Shared resources: a victim alone and beside aggressors, each in an instance of its own on one machine."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from scenarios.aggressor import Assault, Pack, unleashed
from scenarios.job import Devices, Job, attest, launch, prepare, recordable, specification, worker_argv
from scenarios.probe_job import request
from suite.errors import MeasurementError
from suite.interfaces import Instance, Measurement, Observer
from suite.job.sharing import PROBES, Sharing, architecture
from suite.plan import Trial
from suite.records.record import Aggressor


class Shared:
    """The paper's third question: how much a job slows down when another runs beside it."""

    name = "shared"

    def __init__(self, device: str = "cpu", devices: int = 1, parallel: str = "none", **_of_others: object) -> None:
        self._devices = Devices(device, devices, parallel)

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: AbstractContextManager[object],
    ) -> Measurement:
        """Raises MeasurementError when the victim does not come to its end, and of kind ``aggressor`` when it was not
        under load all the time: such a trial is neither one alone nor one beside an aggressor."""
        if trial.job.sharing is None:
            raise MeasurementError("a shared machine was planned without what shares it", kind="plan")
        envelope = trial.instances[0].envelope
        own = trial.with_job(model=architecture(trial.job.model), envelope=envelope)
        job = prepare(own, instances[0].node, observer, self._devices)
        assaults = [self._assault(trial, trial.job.sharing, number, instances) for number in range(1, len(instances))]
        if trial.aggressor is None:
            measured = launch(job, account)
            with recordable(job.argv):
                return replace(measured, aggressors=[Aggressor(environment=each.environment()) for each in assaults])
        observer.phase("aggressor", trial.aggressor)
        with unleashed(assaults, 2.0 * trial.trial_timeout_s) as pack:
            pack.wait_until_ready(trial.trial_timeout_s)
            measured = _beside(pack, job, account)
            pack.stop()
        with recordable(job.argv):
            records = [each.record(job.transcript, measured.elapsed_s) for each in assaults]
        return replace(measured, aggressors=records)

    def _assault(self, trial: Trial, sharing: Sharing, number: int, instances: Sequence[Instance]) -> Assault:
        """Attested, with all that a launch needs; an instance that stays idle is attested too, and never launched."""
        node, envelope = instances[number].node, trial.instances[number].envelope
        name = trial.aggressor or sharing.aggressors[0]
        own = trial.with_job(model=name, sizes=sharing.workloads.get(name), envelope=envelope)
        argv = worker_argv(node, own)
        attested = attest(node, argv, trial.trial_timeout_s)
        if name in PROBES:
            spec = {"probe": json.loads(request(own, node, self._devices.device, None))}
        else:
            spec = {"training": json.loads(specification(own, self._devices))}
        called = f"the aggressor {name} in instance {number} ({node.name})"
        return Assault(called, node, argv, json.dumps(spec).encode(), attested, envelope.memory_bytes)


def _beside(pack: Pack, job: Job, account: AbstractContextManager[object]) -> Measurement:
    try:
        return launch(job, account, pack.watch)
    except MeasurementError:
        pack.check()  # a victim that was ended because its aggressor was says nothing of the cause
        raise
