"""Runs a probing worker on a node, and turns what it says into a measurement."""

import json
from contextlib import AbstractContextManager
from typing import Protocol

from scenarios.events import ProbeTranscript
from scenarios.job import (
    attest,
    follow,
    merged_environment,
    metrics_of,
    recordable,
    worker_argv,
)
from scenarios.members import member_keys
from suite.errors import MeasurementError
from suite.interfaces import Measurement, Node, Observer
from suite.plan import Trial
from suite.records.environment import Environment
from suite.records.record import Timeline
from suite.records.usage import Usage
from suite.registries import PROBES
from suite.registry import Registry


class HostProbe(Protocol):
    """A probe that the host measures, on an ordinary job of the worker's."""

    name: str

    def written_bytes(self, size: str, job: str | None) -> int | None:
        """Return how many bytes it writes to the data disk; see ``worker.probes.probe.Probe``."""

    def run(self, trial: Trial, node: Node, observer: Observer, account: AbstractContextManager[object]) -> Measurement:
        """Run the probe on a node. Raises MeasurementError when it does not come to its end."""


def run_probe(
    trial: Trial,
    node: Node,
    observer: Observer,
    account: AbstractContextManager[object],
    job: str | None,
) -> Measurement:
    """Attest the node, then run the probe on it. Raises MeasurementError when it does not come to its end."""
    argv = worker_argv(node, trial)
    observer.phase("attesting")
    attested = attest(node, argv, trial.trial_timeout_s)
    argv = [*argv, "--probe"]
    transcript = ProbeTranscript(observer)
    spec = request(PROBES, trial, node, job)
    with account:
        transcript.begin()
        process = node.start(argv, stdin=spec)
        elapsed_s = follow(trial, argv, process, transcript)
    for name, reason in _mapping(transcript.said("metrics", "details").get("refused")).items():
        observer.note(f"{name} cannot be measured on {trial.target}: {reason}")
    with recordable(argv):
        environment = merged_environment(attested, transcript.events["environment"].fields, node.facts)
        return _measurement(environment, transcript, elapsed_s)


def request(registry: Registry, trial: Trial, node: Node, job: str | None = None) -> bytes:
    """Return what the worker reads from its standard input, to run a probe or an aggressor of ``registry``."""
    asked = {
        **member_keys(registry, trial.job.model, "member", trial.job.workload_sha256),
        "threads": trial.job.envelope.threads,
        "size": trial.job.profile,
        "device": trial.job.devices.device,
    }
    return json.dumps({**asked, "directory": node.data, "job": job}).encode()


def _measurement(environment: Environment, transcript: ProbeTranscript, elapsed_s: float) -> Measurement:
    """Return what was measured. Raises ValidationError on what cannot be recorded, and MeasurementError."""
    metrics = metrics_of(transcript.said("metrics", "metrics"))
    if not metrics:
        raise MeasurementError("the worker has measured nothing", kind="protocol", remedy="see bench image verify")
    usage = transcript.said("done", "usage")
    return Measurement(
        elapsed_s=elapsed_s,
        throughput_images_per_s=None,
        steps=None,
        timeline=_timeline(transcript, elapsed_s),
        environment=environment,
        metrics=metrics,
        clock_ratio=transcript.clock_ratio("environment", "metrics"),
        usage=Usage.model_validate(usage) if usage else None,
        details=transcript.said("metrics", "details"),
    )


def _timeline(transcript: ProbeTranscript, elapsed_s: float) -> Timeline:
    """Return launch and exit alone; everything between them is in the metrics of the probe."""
    launch_s, ended_s = (transcript.events[name].arrived_s - transcript.begun_s for name in ("started", "done"))
    return Timeline(launch_s=launch_s, exit_s=max(0.0, elapsed_s - ended_s))


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
