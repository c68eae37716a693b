"""What trains: the same arithmetic on one device and on several, and times that are a step's own."""

import json
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from analysis.warnings.conditions import UNFINISHED_S
from suite.records.environment import Environment
from suite.records.fields import checked_part
from suite.registries import WORKLOADS
from tests.worker.conftest import fails, own_workload, saying
from tests.worker.distributed_rank import Given, tiny_model
from worker.protocol import JobError, kind_of
from worker.spec import Spec, parse_spec
from worker.training.build import build_network, build_trainer, opened_batches
from worker.training.ddp import threads_of_rank, watch
from worker.training.device import Device, Numerics, numerics_of, open_devices, torch_facts
from worker.training.measure import measure
from worker.training.parameter_cpu import ParameterCpu, Replicas
from worker.training.step import Samples
from worker.training.trainer import Single, Trainer
from worker.workloads.classifier import ALEXNET
from worker.workloads.workload import LEARNING_RATE, Shape, Workload, WorkloadMetric

CPU = Device("cpu")
TINY = Workload(name="tiny", sizes={})


class FakeTrainer:
    """Counts its steps; its loss is what the test wants."""

    phases: tuple[str, ...] = ("communicate",)
    parts: tuple[str, ...] = ("forward",)
    optimizers: tuple[torch.optim.Optimizer, ...] = ()

    def __init__(self, loss: float) -> None:
        self.network = torch.nn.Module()
        self._loss = loss
        self.steps: list[int] = []

    def step(self, samples: Samples, index: int) -> None:
        self.steps.append(index)
        samples.put(index, 4.0, 1.0, communicate_s=0.5)
        samples.put_parts(index, {"forward": 1.5})
        samples.put_losses(index, {"loss": torch.tensor(self._loss)})

    def synchronize(self) -> None: ...

    def loss(self) -> float:
        return self._loss


@pytest.fixture
def parsed(spec: dict[str, Any]) -> Spec:
    return parse_spec(json.dumps(spec))


def train(trainer: Trainer, steps: int = 5) -> None:
    samples = Samples.allocate(steps, trainer.phases)
    for index in range(steps):
        trainer.step(samples, index)


def run_measure(spec: Spec, trainer: Trainer) -> list[dict[str, Any]]:
    with saying() as (events, said):
        measure(spec, trainer, events)
    return said


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_replicas_with_the_parameters_on_the_cpu_train_as_one_process_does(replicas: int) -> None:
    images, labels = torch.randn(8, 3, 8, 8), torch.randint(50, (8,))
    alone, together = tiny_model(), tiny_model()
    train(Single(TINY, alone, CPU, Given((images, labels)), Numerics()))
    batches = [Given(part) for part in zip(images.chunk(replicas), labels.chunk(replicas), strict=True)]
    placed = Replicas.place(together, [CPU] * replicas, Numerics())
    train(ParameterCpu(TINY, together, [CPU] * replicas, batches, Numerics(), placed))
    before = tiny_model().parameters()
    for one, other, start in zip(alone.parameters(), together.parameters(), before, strict=True):
        torch.testing.assert_close(one, other)
        assert not torch.equal(one, start)


def test_the_seed_decides_the_weights() -> None:
    one, same, other = (build_network(ALEXNET, Shape(64, 3), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_the_reference_recipe_is_torch_as_it_comes_and_the_tuned_one_compiles_and_pins_on_cuda_only() -> None:
    assert numerics_of("reference", "cpu") == numerics_of("reference", "cuda") == Numerics()
    usual = {"bfloat16": True, "channels_last": True, "sparing": True}
    assert numerics_of("tuned", "cpu") == Numerics(**usual)
    assert numerics_of("tuned", "cuda") == Numerics(**usual, compiled=True, overlapped=True, tf32=True)
    with numerics_of("tuned", "cpu").autocast(CPU):
        assert torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.bfloat16


@pytest.mark.parametrize("parallel", ["none", "parameter-cpu"])
def test_channels_last_trains_to_the_same_weights_in_another_layout(parallel: Any, spec: dict[str, Any]) -> None:
    small, weights = parse_spec(json.dumps({**spec, **own_workload(batch=4, image_px=16)})), []
    for switched in (False, True):
        own = replace(small, parallel=parallel, channels_last=switched)
        with opened_batches(own) as batches:
            trainer = build_trainer(own, [CPU], batches)
            train(trainer, 3)
            layouts = [batches[0].next()[0], *(weight for weight in trainer.network.parameters() if weight.dim() == 4)]
        last = [tensor.is_contiguous(memory_format=torch.channels_last) for tensor in layouts]
        assert all(last) if switched else not any(last)
        weights.append(list(trainer.network.parameters()))
    for usual, other in zip(*weights, strict=True):
        torch.testing.assert_close(usual, other, rtol=1e-3, atol=1e-4)
        assert usual.dtype is other.dtype is torch.float32


def test_warm_up_steps_are_not_among_the_samples(parsed: Spec) -> None:
    trainer = FakeTrainer(loss=1.0)
    events = run_measure(replace(parsed, warmup_steps=2, steps=3), trainer)
    assert trainer.steps == [0, 0, 0, 1, 2]
    assert [event["event"] for event in events] == ["warmup", "warmup", "measuring", "measured", "steps"]
    assert events[-1]["steps"] == {
        "elapsed_s": [4.0] * 3,
        "data_s": [1.0] * 3,
        "copy_s": None,
        "compute_s": [2.5] * 3,
        "communicate_s": [0.5] * 3,
        "phases": {"forward": [1.5] * 3},
    }
    assert events[-1]["losses"] == {"loss": [1.0] * 3}
    assert events[-1]["usage"]["minor_faults"] >= 0


@dataclass(frozen=True, kw_only=True)
class Curious(Workload):
    """Measures ``value`` after every step, and how many steps there were."""

    value: float = 2.5
    metrics: tuple[WorkloadMetric, ...] = (
        WorkloadMetric("loss", "nat", "less", per="step"),
        WorkloadMetric("count", "steps", "more"),
    )

    def after_step(self, network: torch.nn.Module, loss: float) -> dict[str, float]:
        del network
        return {"loss": loss * self.value}

    def after_job(self, network: torch.nn.Module, steps_s: Sequence[float]) -> dict[str, float]:
        del network
        return {"count": len(steps_s)}


class Hasty(FakeTrainer):
    """Starts work in each step, and does not wait for it."""

    def __init__(self, start: Callable[[], object]) -> None:
        super().__init__(1.0)
        self._start = start
        self.started: list[object] = []

    def step(self, samples: Samples, index: int) -> None:
        super().step(samples, index)
        self.started.append(self._start())


def burn() -> None:
    end_s = time.monotonic() + 1.5
    while time.monotonic() < end_s:
        pass


UNFINISHED: dict[str, tuple[Callable[[], object], bool]] = {
    "nothing": (lambda: None, False),
    "a thread that computes": (lambda: threading.Thread(target=burn).start(), True),
    "a thread that waits": (lambda: threading.Timer(1, lambda: None).start(), False),
    "a process": (lambda: subprocess.Popen(["sleep", "1.5"]), True),
    "a process that has ended": (lambda: subprocess.Popen(["true"]), False),
}


@pytest.mark.parametrize("started", UNFINISHED)
def test_work_that_a_step_starts_and_nobody_waits_for_is_reported(started: str, parsed: Spec) -> None:
    start, unfinished = UNFINISHED[started]
    trainer = Hasty(start)
    events = run_measure(replace(parsed, warmup_steps=1, steps=1), trainer)
    for process in trainer.started:
        if isinstance(process, subprocess.Popen):
            process.wait()
    assert (events[-1]["unfinished_s"] > UNFINISHED_S) == unfinished


@pytest.fixture
def curious(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes ``Curious`` the workload of every specification."""

    def declare(**changes: float) -> None:
        made = Curious(name="curious", sizes={}, **changes)  # type: ignore[arg-type]
        monkeypatch.setattr(Spec, "load_workload", lambda _: made)

    return declare


def test_a_workload_measures_metrics_of_its_own_by_step_and_by_job(parsed: Spec, curious: Any) -> None:
    curious()
    assert run_measure(replace(parsed, warmup_steps=2, steps=3), FakeTrainer(loss=2.0))[-1]["metrics"] == {
        "loss": {"value": 5.0, "unit": "nat", "better": "less", "samples": [5.0] * 3},
        "count": {"value": 3.0, "unit": "steps", "better": "more", "samples": None},
    }


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_metric_that_no_record_can_hold_fails_the_job(value: float, parsed: Spec, curious: Any) -> None:
    curious(value=value)
    with fails(JobError, "metrics", "curious measures loss as"):
        run_measure(parsed, FakeTrainer(loss=1.0))


@pytest.mark.parametrize("measures", [False, True])
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_told_before_a_metric_that_is_made_from_it(
    loss: float, measures: bool, parsed: Spec, curious: Any
) -> None:
    if measures:
        curious()
    with fails(JobError, "diverged", f"the loss is {loss} in measured step 1: that was no training"):
        run_measure(parsed, FakeTrainer(loss))


def test_a_workload_cannot_give_its_metrics_the_names_of_every_trainings() -> None:
    with pytest.raises(ValueError, match="cannot be called throughput"):
        Workload(name="greedy", sizes={}, metrics=(WorkloadMetric("throughput", "1/s", "more"),))


def test_a_phase_that_is_measured_on_another_clock_gives_no_negative_time() -> None:
    samples = Samples.allocate(1, ("copy",))
    samples.put(0, 1.0, 0.25, copy_s=0.80)
    assert samples.columns()["compute_s"] == [0.0]
    assert samples.columns()["copy_s"] == [0.80]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
    ],
)
def test_every_way_of_running_out_of_memory_has_one_kind(error: Exception) -> None:
    assert kind_of(error) == "out-of-memory"


def test_only_the_first_reason_of_a_failure_is_written() -> None:
    with saying() as (events, said):
        events.error("killed", "rank 1 ended")
        events.error("exception", "connection closed")
    assert [event["kind"] for event in said] == ["killed"]


@pytest.mark.parametrize(("ends", "kind"), [("kill -9 $$", "killed"), ("exit 3", "data"), ("exit 1", "rank")])
def test_a_rank_that_fails_ends_the_job_with_its_reason(ends: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    with saying() as (events, said):
        watch(subprocess.Popen(["sh", "-c", ends]), 1, events)
    assert statuses == [1]
    assert (said[0]["event"], said[0]["kind"]) == ("error", kind)
    assert "rank 1" in said[0]["message"]


def test_threads_are_shared_among_the_ranks_without_a_rest(parsed: Spec) -> None:
    spec = replace(parsed, threads=7, devices=3, parallel="ddp")
    assert [threads_of_rank(spec, rank) for rank in range(3)] == [3, 2, 2]


def test_the_record_holds_what_a_card_is_and_the_versions_that_compute_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    address = {"pci_domain_id": 0, "pci_bus_id": 160, "pci_device_id": 0}
    properties = SimpleNamespace(name="H100", total_memory=80 << 30, uuid="a0-b", major=9, minor=0, **address)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91300)
    facts = torch_facts("cuda")
    assert (facts["cuda"], facts["cudnn"]) == ("13.0", "91300")
    (card,) = checked_part(Environment, {"gpus": facts["gpus"]}).gpus or []
    assert (card.uuid, card.capability, card.pci_address) == ("GPU-a0-b", "9.0", "0000:a0:00.0")
    assert torch_facts("cpu").keys().isdisjoint({"gpus", "cuda", "cudnn"})


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "fabric manager"),
        ("Error 803: system has unsupported display driver / cuda driver combination", "restart the machine"),
        ("CUDA unknown error (Error 999)\nmore", "nvidia-uvm"),
        ("Found no NVIDIA driver on your system.", None),
    ],
)
def test_why_no_gpu_can_be_used_is_in_the_message(
    monkeypatch: pytest.MonkeyPatch, text: str, remedy: str | None
) -> None:
    def fail() -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fail)
    with pytest.raises(JobError, match="1 CUDA devices asked for, 0 can be used here: ") as caught:
        open_devices("cuda", 1)
    assert str(caught.value).endswith(text.splitlines()[0])
    assert (remedy or "") in str(caught.value.remedy or "")
    assert bool(caught.value.remedy) == bool(remedy)


@pytest.mark.parametrize("parallel", ["none", "parameter-cpu"])
def test_the_learning_rate_is_that_of_every_optimizer(parallel: Any, spec: dict[str, Any]) -> None:
    small = parse_spec(json.dumps({**spec, **own_workload(batch=4, image_px=16)}))
    rates = []
    for rate in (None, 0.25):
        given = replace(small, parallel=parallel, learning_rate=rate)
        with opened_batches(given) as batches:
            trainer = build_trainer(given, [CPU], batches)
        rates.append({group["lr"] for each in trainer.optimizers for group in each.param_groups})
    assert rates == [{LEARNING_RATE}, {0.25}]


def test_both_networks_of_a_gan_have_the_learning_rate(spec: dict[str, Any]) -> None:
    sizes = {"batch": 2, "image_px": 28, "channels": 1, "learning_rate": 0.125}
    gan = parse_spec(json.dumps({**spec, **sizes, "workload": WORKLOADS.place("gan")}))
    with opened_batches(gan) as batches:
        trainer = build_trainer(gan, [CPU], batches)
    rates = [group["lr"] for each in trainer.optimizers for group in each.param_groups]
    assert rates == [0.125, 0.125]
