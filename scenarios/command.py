"""A command: a program of the user's own, run as it is in place of a training. Its trial's model is its name."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager

from scenarios.events import ProbeTranscript
from scenarios.job import attest, metrics_of, recordable, throughput_of
from suite.errors import MeasurementError
from suite.interfaces import Instance, Measurement, Observer
from suite.plan import Trial
from suite.records.record import Timeline


class Command:
    """One command on one instance, as the child of a worker that attests the target and counts what the child uses."""

    name = "command"
    no_turns = "a command runs in one piece"

    def measure(
        self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: AbstractContextManager[object]
    ) -> Measurement:
        """Run the command. Raises MeasurementError unless it ends well and has printed what is read of it."""
        if trial.job.command is None:
            raise MeasurementError("a command was planned without its words", kind="plan")
        (instance,) = instances
        asked = {
            **trial.job.command.model_dump(),
            "threads": trial.job.envelope.threads,
            "directory": instance.node.data,
        }
        log = ProbeTranscript(observer=observer)
        observer.phase("attesting")
        job = attest(trial, instance.node, json.dumps(asked).encode(), log, "--command")
        with account:
            elapsed_s = job.follow()
        with recordable(job.argv):
            return Measurement(
                elapsed_s=elapsed_s,
                throughput_per_s=throughput_of(log),
                steps=None,
                timeline=_timeline(log, elapsed_s),
                environment=job.environment(),
                metrics=metrics_of(log.said("metrics", "metrics")),
                clock_ratio=log.clock_ratio("environment", "metrics"),
                usage=log.usage(),
                details=log.said("metrics", "details"),
            )


def _timeline(log: ProbeTranscript, elapsed_s: float) -> Timeline:
    """Return where the time went; ``measured_s`` is the command's own, from its start to its end."""
    return Timeline(
        **log.ends(elapsed_s),
        build_s=log.between("started", "environment"),
        measured_s=log.between("environment", "metrics"),
        teardown_s=log.between("metrics", "done"),
    )
