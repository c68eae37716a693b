"""Epochs on the host's side: whole ones apart from each other and from checkpoints, others scaled and called so."""

import json
from contextlib import nullcontext
from typing import Any

import pytest

from scenarios.real import Real
from scenarios.synthetic import Synthetic
from suite.errors import MeasurementError
from suite.interfaces import Instance, Measurement
from suite.plan import Trial
from suite.records.record import EPOCH_METRICS
from tests.scenarios.conftest import ScriptedProcess
from tests.scenarios.test_job import STEPS, STORY, event
from tests.scenarios.test_real import USE, ReadingNode, planned
from worker.workloads.workload import OF_EVERY_TRAINING

__all__ = ["planned"]
CHECKPOINTS = {"seconds": [0.25, 0.125], "size_bytes": 4096}


def measured(trial: Trial, observer: Any, **said: object) -> Measurement:
    """What comes of a worker that takes 4 s, in three steps, for what it says it measured."""
    told = event("steps", 109.6, steps=STEPS, losses={"loss": [3.0, 2.0, 1.0]}, **said)
    done = event("done", 109.75, data_use=USE)
    node = ReadingNode(process=ScriptedProcess([*STORY[:-2], told, done]), data="/mnt/data", says={})
    return Real().measure(trial, [Instance(node)], observer, nullcontext())


def of_epochs(planned: Trial, epochs: int) -> Trial:
    sizes = planned.job.sizes
    assert sizes
    return planned.with_job(sizes=sizes.model_copy(update={"epochs": epochs}))


def test_a_share_of_an_epoch_is_scaled_and_called_so(planned: Trial, observer: Any) -> None:
    found = measured(planned, observer)
    assert found.epochs
    # 20 images make 10 steps of 2 images, of which 3 took 4 s.
    assert (found.epochs.steps, found.epochs.scaled_share, found.epochs.seconds) == (10, 0.3, [])
    assert {name: metric.value for name, metric in found.metrics.items()} == pytest.approx({"epoch-scaled": 4 / 0.3})


def test_the_first_epoch_the_others_and_the_checkpoints_are_apart(planned: Trial, observer: Any) -> None:
    found = measured(of_epochs(planned, 3), observer, epochs_s=[2.0, 1.0, 0.5], checkpoints=CHECKPOINTS)
    assert found.epochs
    assert found.epochs.scaled_share is None
    assert found.epochs.checkpoints
    assert found.epochs.checkpoints.filesystem == "ext4", "that of /tmp, where the target has no other"
    values = {name: metric.value for name, metric in found.metrics.items()}
    assert values == {"first-epoch": 2.0, "epoch": 0.75, "checkpoint": 0.1875}
    assert found.metrics["epoch"].samples == [1.0, 0.5]
    assert set(values) < set(OF_EVERY_TRAINING) > set(EPOCH_METRICS), "no workload can have a metric of these names"
    assert set(measured(of_epochs(planned, 1), observer, epochs_s=[4.0]).metrics) == {"first-epoch"}
    assert found.throughput_per_s == pytest.approx(2 * 3 / 3.5), "what lies between epochs is no part of it"
    assert found.timeline
    assert (found.timeline.measured_s, found.timeline.between_epochs_s) == (3.5, 0.5)


def test_checkpoints_of_drawn_data_are_written_to_the_disk_and_in_no_throughput(trial: Trial, observer: Any) -> None:
    drawn = of_epochs(trial, 3).with_job(checkpoint="fsync").model_copy(update={"scratch_bytes": 4 << 30})
    told = event(
        "steps", 109.6, steps=STEPS, losses={"loss": [3.0, 2.0, 1.0]}, epochs_s=[2, 1, 0.5], checkpoints=CHECKPOINTS
    )
    node = ReadingNode(process=ScriptedProcess([*STORY[:-2], told, STORY[-1]]), data="/mnt/data")
    found = Synthetic().measure(drawn, [Instance(node)], observer, nullcontext())
    spec = json.loads(node.started[0][1])
    assert (spec["epochs"], spec["checkpoint"]) == (3, {"mode": "fsync", "directory": "/mnt/data"})
    assert {name: metric.value for name, metric in found.metrics.items()} == {"checkpoint": 0.1875}
    assert found.epochs
    assert found.epochs.checkpoints
    assert (found.epochs.steps, found.epochs.checkpoints.filesystem) == (1, "ext4")
    assert found.throughput_per_s == pytest.approx(2 * 3 / 3.5)
    assert found.timeline
    assert (found.timeline.measured_s, found.timeline.between_epochs_s) == (3.5, 0.5)


@pytest.mark.parametrize("said", [[4.0], None, [2.0, -1.0], "two"])
def test_a_worker_that_says_no_such_epochs_has_failed(said: object, planned: Trial, observer: Any) -> None:
    with pytest.raises(MeasurementError) as raised:
        measured(of_epochs(planned, 2), observer, epochs_s=said)
    assert raised.value.kind == "protocol"
