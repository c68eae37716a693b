"""Trainings whose CPUs change: the host resizes the instance at the worker's word, and counts what it gave."""

import json
from contextlib import nullcontext
from typing import Any

import pytest

from commands.run.validate import check_resizes
from scenarios.probes.resizing import ALLOCATED
from scenarios.training import Synthetic
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Instance, Shares
from suite.job.envelope import GIB, Envelope, parse_cpu_changes
from suite.plan import Trial
from suite.request.request import RunRequest
from tests.jobs import plan_of
from tests.provisioning.conftest import raises
from tests.scenarios.conftest import fails
from tests.scenarios.test_job import STORY, event
from worker.workloads.workload import OF_EVERY_TRAINING

ENVELOPE = Envelope(cpus=(0, 1), memory_bytes=2 * GIB, threads=2)
PAUSE_S = 0.2


@pytest.fixture
def changing(trial: Trial) -> Trial:
    return trial.with_job(envelope=ENVELOPE, resize_at="0=1,2=2")


def told(*steps: int) -> list[str | float | None]:
    """The lines of a worker that says a change at these steps, with a pause before each and before the end."""
    said: list[str | float | None] = [*STORY[:7]]
    for step in steps:
        said += [PAUSE_S, event("resize", 106.0 + step, step=step)]
    return [*said, PAUSE_S, *STORY[7:]]


def test_the_instance_is_resized_at_the_workers_word_and_what_it_had_is_counted(
    changing: Trial, observer: Any, scripted: Any
) -> None:
    asked: list[tuple[int, ...]] = []
    node = scripted(*told(0, 2), node={"cpus": (4, 5)})
    resize = Instance(node, resize=lambda shares: asked.append(tuple(shares.cpus)))
    measured: Any = Synthetic().measure(changing, [resize], observer, nullcontext())
    assert asked == [(4,), (4, 5)]
    assert json.loads(node.started[0][1])["threads_at"] == {"0": 1, "2": 2}
    # Two CPUs, then one, then two, for a pause each.
    assert measured.metrics[ALLOCATED].value == pytest.approx((2 + 1 + 2) * PAUSE_S, rel=0.3)
    assert ALLOCATED in OF_EVERY_TRAINING, "no workload can have a metric of this name"


def test_an_instance_that_is_not_resized_ends_the_trial_and_says_why(
    changing: Trial, observer: Any, scripted: Any
) -> None:
    def refuse(_: Shares) -> None:
        raise RequestError("no such group", remedy="open it again")

    node = scripted(*told(0, 2), node={"cpus": (0, 1)})
    with fails(MeasurementError, "resize", "not resized at step 0: no such group"):
        Synthetic().measure(changing, [Instance(node, resize=refuse)], observer, nullcontext())
    with fails(MeasurementError, "resize", "cannot be resized while it is open"):
        Synthetic().measure(changing, [Instance(node)], observer, nullcontext())
    odd = scripted(*told(1), node={"cpus": (0, 1)})
    with fails(MeasurementError, "protocol", "a change of CPUs at step 1"):
        Synthetic().measure(changing, [Instance(odd, resize=lambda _: None)], observer, nullcontext())


@pytest.mark.parametrize("text", ["", "1", "0=0", "5=1,5=2", "5=1,2=2", "a=1"])
def test_changes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="is not a list of STEP=CPUS"):
        parse_cpu_changes(text)


@pytest.mark.parametrize(
    ("options", "targets", "why"),
    [
        ({"resize_at": "0=3"}, ["container"], "every target has 2 CPUs"),
        ({"resize_at": "0=1"}, ["container", "vm"], "a guest keeps the CPUs it was booted with"),
        ({"resize_at": "0=1", "engine": "apptainer"}, ["container"], "does not go with --engine apptainer"),
    ],
)
def test_what_cannot_be_resized_is_refused_before_anything_starts(
    options: dict[str, Any], targets: list[str], why: str
) -> None:
    request = RunRequest.of(options)
    with raises(RequestError, why, ""):
        Synthetic().check_shares(request, ENVELOPE, targets, print)


def test_a_change_at_a_step_that_the_job_has_not_is_refused(trial: Trial) -> None:
    check_resizes(plan_of(sizes=trial.job.sizes, envelope=ENVELOPE, resize_at="2=1"))
    with raises(RequestError, "a job has 3 measured steps, from 0", "--steps"):
        check_resizes(plan_of(sizes=trial.job.sizes, envelope=ENVELOPE, resize_at="3=1"))
