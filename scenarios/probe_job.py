"""Runs a probing worker on a node, and turns what it says into a measurement."""

import json
from contextlib import AbstractContextManager

from scenarios.job import SHORTEST_SPAN_FOR_CLOCKS_S, attest, follow, merged_environment, recordable, worker_argv
from scenarios.probe_events import Story
from suite.errors import MeasurementError
from suite.interfaces import Measurement, Node, Observer
from suite.plan import Trial
from suite.records.record import Environment, Metric, Timeline, Usage


def run_probe(
    trial: Trial,
    node: Node,
    observer: Observer,
    account: AbstractContextManager[object],
    *,
    device: str,
    job: str | None,
) -> Measurement:
    """Attest the node, then run the probe on it. Raises MeasurementError when it does not come to its end."""
    argv = worker_argv(node, trial)
    observer.phase("attesting")
    attested = attest(node, argv, trial.trial_timeout_s)
    argv = [*argv, "--probe"]
    story = Story(observer)
    with account:
        story.begin()
        process = node.start(argv, stdin=request(trial, node, device, job))
        elapsed_s = follow(trial, argv, process, story)
    for name, reason in _mapping(story.said("metrics", "details").get("refused")).items():
        observer.note(f"{name} cannot be measured on {trial.target}: {reason}")
    with recordable(argv):
        environment = merged_environment(attested, story.events["environment"].fields, node.facts)
        return _measurement(environment, story, elapsed_s)


def request(trial: Trial, node: Node, device: str, job: str | None) -> bytes:
    """What the worker reads from its standard input."""
    asked = {
        "probe": trial.job.model,
        "threads": trial.job.envelope.threads,
        "size": trial.job.profile,
        "device": device,
    }
    return json.dumps({**asked, "directory": node.data, "job": job}).encode()


def _measurement(environment: Environment, story: Story, elapsed_s: float) -> Measurement:
    """Raises ValidationError on what cannot be recorded."""
    metrics = {name: Metric.model_validate(said) for name, said in story.said("metrics", "metrics").items()}
    if not metrics:
        raise MeasurementError("the worker has measured nothing", kind="protocol", remedy="see bench image verify")
    span_s, host_s = story.between("environment", "metrics")
    usage = story.said("done", "usage")
    return Measurement(
        elapsed_s=elapsed_s,
        throughput_images_per_s=None,
        steps=None,
        timeline=_timeline(story, elapsed_s),
        environment=environment,
        metrics=metrics,
        clock_ratio=span_s / host_s if min(span_s, host_s) >= SHORTEST_SPAN_FOR_CLOCKS_S else None,
        usage=Usage.model_validate(usage) if usage else None,
        details=story.said("metrics", "details"),
    )


def _timeline(story: Story, elapsed_s: float) -> Timeline:
    """Of a probe the two ends alone; what lies between has its own numbers."""
    ended_s = story.events["done"].arrived_s - story.begun_s
    return Timeline(launch_s=story.events["started"].arrived_s - story.begun_s, exit_s=max(0.0, elapsed_s - ended_s))


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
