"""A training that is killed, opened again and goes on: the worker is real, the moments are the test's."""

import random
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from scenarios import preemption
from scenarios.synthetic import Synthetic
from suite.errors import MeasurementError
from suite.interfaces import Instance, Measurement
from suite.job.preemption import Preemption
from suite.job.profiles import Sizes
from suite.plan import Trial
from tests.scenarios.conftest import HereNode

NEVER_S = 1e9


class OnCheckpoint(threading.Thread):
    """In place of a timer: kills a short life when the checkpoint is there, and a long one never."""

    checkpoint = Path()

    def __init__(self, seconds: float, kill: Any) -> None:
        super().__init__(daemon=True)
        self.kill, self.lives, self.cancelled = kill, seconds >= NEVER_S / 2, False

    def run(self) -> None:
        while not (self.lives or self.cancelled or self.checkpoint.exists()):
            time.sleep(0.002)
        if not (self.lives or self.cancelled):
            self.kill()

    def cancel(self) -> None:
        self.cancelled = True


def preempted(
    trial: Trial, here: HereNode, observer: Any, monkeypatch: pytest.MonkeyPatch, scratch: Path, *lives_s: float
) -> Measurement:
    sizes = Sizes(batch=2, image_px=28, channels=1, warmup_steps=0, steps=20, epochs=10)
    job = {"model": "gan", "sizes": sizes, "checkpoint": "on", "preemption": Preemption(mean_s=60)}
    moments = iter(lives_s)
    monkeypatch.setattr(random.Random, "expovariate", lambda *_: next(moments))
    monkeypatch.setattr(threading, "Timer", OnCheckpoint)
    monkeypatch.setattr(OnCheckpoint, "checkpoint", scratch / "checkpoint.pt")
    here.data = str(scratch)
    planned = trial.with_job(**job).model_copy(update={"scratch_bytes": 1 << 20})
    return Synthetic().measure(planned, [Instance(here, reopen=lambda: here)], observer, nullcontext())


def test_a_training_that_is_killed_ends_with_the_weights_of_an_undisturbed_one(
    trial: Trial, here: HereNode, observer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The first life ends while the instance is opened, the second one at a checkpoint.
    found = preempted(trial, here, observer, monkeypatch, tmp_path, 0.0, 300.0, NEVER_S)
    assert found.weights_sha256, "with_preemption compares them"
    assert found.metrics["openings"].value == 3
    assert found.metrics["makespan"].value > 300
    assert "lost-steps" not in found.metrics or found.metrics["lost-steps"].value <= 2, "two steps are an epoch"
    assert found.steps
    assert found.steps.elapsed_s
    assert len(found.steps.elapsed_s) == 20, "the measured steps are those of the undisturbed training"
    assert ("attesting", "opening 3") in observer.phases


def test_other_weights_and_a_job_that_never_ends_fail_the_trial(
    trial: Trial, here: HereNode, observer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(MeasurementError, match="it has not ended after") as raised:
        preempted(trial, here, observer, monkeypatch, tmp_path, 300.0, NEVER_S / 4)
    assert raised.value.kind == "preemption"
    planned = trial.with_job(preemption=Preemption(mean_s=60))
    fixed = Measurement.model_construct(weights_sha256="a" * 64, elapsed_s=1.0)
    with pytest.raises(MeasurementError, match="cannot be opened again"):
        preemption.with_preemption(planned, Instance(here), observer, fixed)
