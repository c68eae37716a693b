"""Shared resources: a victim alone and beside aggressors, each in an instance of its own on one machine."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import Event

from scenarios.aggressor import AggressorProcess, running_aggressors
from scenarios.events import AggressorLog
from scenarios.job import attest, launch, prepare, recordable, specification
from scenarios.members import member_request
from suite.errors import MeasurementError
from suite.interfaces import Instance, Measurement, Observer
from suite.job.sharing import Sharing, architecture
from suite.plan import Trial
from suite.records.record import AggressorInstance
from suite.registries import AGGRESSORS, WORKLOADS


class Shared:
    """The paper's third question: how much a job slows down when another runs beside it."""

    name = "shared"
    no_turns = "a victim and its aggressors run at the same time on purpose"

    def measure(
        self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: AbstractContextManager[object]
    ) -> Measurement:
        """Run the victim, alone or beside the aggressors. Raises MeasurementError when it does not come to its end.

        The error is of kind ``aggressor`` when the victim was not under load all the time: such a trial is neither one
        alone nor one beside an aggressor.
        """
        if trial.job.sharing is None:
            raise MeasurementError("a shared machine was planned without what shares it", kind="plan")
        envelope = trial.instances[0].envelope
        own = trial.with_job(model=architecture(trial.job.model), envelope=envelope)
        job = prepare(own, instances[0].node, observer)
        aggressors = [_prepared(trial, trial.job.sharing, number, instances) for number in range(1, len(instances))]
        if trial.aggressor is None:
            measured = launch(job, account)
            with recordable(job.argv):
                return replace(
                    measured, aggressors=[AggressorInstance(environment=each.job.environment()) for each in aggressors]
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
        return replace(measured, aggressors=records)


def _prepared(trial: Trial, sharing: Sharing, number: int, instances: Sequence[Instance]) -> AggressorProcess:
    """Attest an aggressor and prepare its launch; one that stays idle is attested too, and never launched."""
    node, envelope = instances[number].node, trial.instances[number].envelope
    name = trial.aggressor or sharing.aggressors[0]
    sizes, source = sharing.workloads.get(name), sharing.sources.get(name)
    own = trial.with_job(model=name, sizes=sizes, envelope=envelope, workload_sha256=source)
    key, asked = (
        ("training", specification(own)) if name in WORKLOADS else ("aggressor", member_request(AGGRESSORS, own, node))
    )
    spec, settled = json.dumps({key: json.loads(asked)}).encode(), Event()
    job = attest(own, node, spec, AggressorLog(ready=settled.set), "--aggressor")
    return AggressorProcess(f"the aggressor {name} in instance {number} ({node.name})", job, settled)
