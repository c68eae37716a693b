"""Injuries of a job: they are where they should be, they are clocked, and no other job has them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.worker.distributed_rank import Given
from worker.spec import StepInjury
from worker.training.device import Device, Numerics
from worker.training.injury import CHUNK_BYTES, Injector
from worker.training.step import Samples, Training
from worker.training.trainer import Single
from worker.workloads.workload import Workload

STEP_S = 0.05


class Slow(torch.nn.Module):
    """A network that takes its time by the test's clock."""

    def __init__(self, wait: Callable[[float], None]) -> None:
        super().__init__()
        self.layer, self.wait = torch.nn.Linear(3, 1000), wait

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.wait(STEP_S)
        scores: torch.Tensor = self.layer(images)
        return scores


READY = Given((torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)))


class Clock:
    """A clock that goes on in sleeps alone, and a little whenever it is asked: what is busy takes time, too."""

    now_s = 100.0

    def monotonic(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("worker.training.injury", "worker.training.trainer"):
        monkeypatch.setattr(f"{module}.time", made)
    return made


class Several(Workload):
    """One whose step asks two networks, one of them twice."""

    def step(self, training: Training, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        del labels
        networks = training.network
        assert isinstance(networks, torch.nn.ModuleDict)
        scores = [networks[name](images).mean() for name in ("first", "second", "first")]
        return {"loss": scores[0]}


TINY = Workload(name="tiny", sizes={})


def train(injury: StepInjury, clock: Clock, workload: Workload = TINY) -> tuple[Samples, dict[str, Any]]:
    """Train 4 warm-up steps and 10 measured ones."""
    injector = Injector(injury, 4)
    network: torch.nn.Module = Slow(clock.sleep)
    if isinstance(workload, Several):
        network = torch.nn.ModuleDict({"first": network, "second": torch.nn.Linear(3, 1)})
    trainer = Single(workload, network, Device("cpu"), injector.batches([READY])[0], Numerics())
    injector.attach(trainer.network)
    scratch, samples = Samples.allocate(1, ()), Samples.allocate(10, ())
    for _ in range(4):
        trainer.step(scratch, 0)
    assert injector.report()["seconds"] == 0
    for index in range(10):
        trainer.step(samples, index)
    return samples, injector.report()


def test_late_steps_are_late_while_they_compute_and_only_those_whose_turn_it_is(clock: Clock) -> None:
    samples, told = train(StepInjury("late-step", share=0.2, every=5), clock)
    late = [index for index, seconds in enumerate(samples.compute) if seconds > 1.5 * STEP_S]
    assert late == [4, 9]
    assert told["seconds"] == pytest.approx(0.2 * 10 * STEP_S, rel=0.01)
    assert told["seconds"] == pytest.approx(sum(samples.elapsed) - 10 * STEP_S, rel=0.01)
    assert max(samples.data) < 0.01 * STEP_S


def test_a_step_of_several_networks_is_late_once(clock: Clock) -> None:
    samples, told = train(StepInjury("late-step", share=0.2, every=5), clock, Several(name="several", sizes={}))
    late = [index for index, seconds in enumerate(samples.compute) if seconds > 2.5 * STEP_S]
    assert late == [4, 9]
    assert told["steps"] == 2
    assert told["seconds"] == pytest.approx(0.2 * 10 * 2 * STEP_S, rel=0.01), "its step takes the first network twice"


def test_late_batches_are_waited_for(clock: Clock) -> None:
    samples, told = train(StepInjury("late-batch", share=0.1, every=2), clock)
    assert sum(samples.data) == pytest.approx(told["seconds"], rel=0.01)
    assert told["steps"] == 5
    assert max(samples.compute) == pytest.approx(STEP_S, rel=0.01)


def test_pages_are_faulted_in_for_as_long_as_was_asked_and_counted(clock: Clock) -> None:
    samples, told = train(StepInjury("page-faults", share=0.001), clock)
    assert told["steps"] == 10
    assert told["pages"] >= 10 * CHUNK_BYTES // 4096
    assert sum(samples.compute) > 10 * STEP_S


def test_held_memory_adds_no_time(clock: Clock) -> None:
    samples, told = train(StepInjury("held-memory", held_bytes=1 << 20), clock)
    assert (told["held_bytes"], told["seconds"]) == (1 << 20, 0.0)
    assert max(samples.elapsed) == pytest.approx(STEP_S, rel=0.01)
