"""Parts that run on GPUs alone, with events that are played: their clock goes on by a second at each record."""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from tests.worker.conftest import saying
from worker.protocol import JobError
from worker.spec import parse_spec
from worker.training import device as devices
from worker.training import job, settle, step
from worker.training.build import build_network, opened_batches
from worker.training.device import Device, numerics_of, torch_facts
from worker.training.measure import measure
from worker.training.trainer import Single

SMALL_GAN = {"workload": "worker.workloads.adversarial:GAN", "batch": 4, "image_px": 28, "warmup_steps": 2, "steps": 3}


class PlayedEvent:
    """An event as CUDA's: one that was not recorded has no time."""

    clock: Iterator[int]

    def __init__(self) -> None:
        self.at_s: int | None = None

    def record(self, stream: object = None) -> None:
        del stream
        self.at_s = next(self.clock)

    def elapsed_time(self, end: "PlayedEvent") -> float:
        if self.at_s is None or end.at_s is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end.at_s - self.at_s) * 1e3


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that copies and computes on the CPU, and is timed as a GPU is."""
    monkeypatch.setattr(PlayedEvent, "clock", itertools.count(), raising=False)
    for module in (devices, step):
        monkeypatch.setattr(module, "timing_event", PlayedEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    played = Device("cuda:0")
    played.torch = torch.device("cpu")
    return played


def test_a_step_without_a_copy_has_a_copy_phase_of_none(gpu: Device) -> None:
    batch = torch.zeros(2), torch.zeros(2)
    assert gpu.copy_s() == 0, "the generator of a split GAN copies nothing"
    gpu.copy(batch, wait=True)
    assert gpu.copy_s() == 1
    assert gpu.copy_s() == 0, "that was the step before"


@pytest.mark.parametrize(("sync", "waits"), [(None, 2 + 1 + 3 + 1), ("span", 1 + 1)])
def test_the_host_waits_after_each_step_or_at_the_ends_of_the_span_alone(
    gpu: Device, sync: Any, waits: int, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    gpu.timed = not sync
    job = replace(parse_spec(json.dumps(spec | SMALL_GAN)), sync=sync)
    with opened_batches(job) as (batches,):
        workload = job.load_workload()
        network = build_network(workload, job.shape, job.seed)
        trainer = Single(workload, network, gpu, batches, numerics_of("reference", "cpu"))
        with saying() as (events, said):
            measure(job, trainer, events)
    assert len(waited) == waits
    steps, losses = said[-1]["steps"], said[-1]["losses"]
    assert {len(column) for column in losses.values()} == {3}
    if sync:
        assert steps == {}
        assert trainer.phases == trainer.parts == ()
    else:
        assert set(steps["phases"]) == set(workload.phases) != set()
        assert len(steps["elapsed_s"]) == len(steps["copy_s"]) == 3


@pytest.fixture
def _restored() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(("recipe", "rounding"), [("reference", []), ("tuned", ["matmul", "convolution"])])
def test_a_recipe_sets_and_records_what_rounds_to_tf32(
    recipe: str, rounding: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.backends.cudnn.allow_tf32 = recipe == "reference"  # torch's default is on for convolutions alone
    numerics_of(recipe, "cuda").apply()
    monkeypatch.setattr(devices, "gpus", list[Any])
    assert torch_facts("cuda")["tf32"] == rounding
    assert "tf32" not in torch_facts("cpu")


CPU = Device("cpu")


@pytest.fixture
def trained(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Any], dict[str, Any]]]:
    """Trains, and returns the events and the other fields of ``done``; windows are short, and as level as needed."""
    monkeypatch.setattr(settle, "WINDOW_S", 0.02)
    monkeypatch.setattr(settle, "LEVEL", 1e9)

    def _trained(**changes: Any) -> tuple[list[Any], dict[str, Any]]:
        with saying() as (events, said):
            _, ended = job._train(parse_spec(json.dumps({**spec, **changes})), None, [CPU], events)
        return said, ended

    return _trained


def test_what_settles_the_device_changes_nothing_that_is_trained_and_is_no_step_of_it(trained: Any) -> None:
    events, ended = trained()
    settled_events, settled = trained(settle_s=0.2)
    assert [event["event"] for event in settled_events] == [event["event"] for event in events]
    for name in ("losses", "weights_sha256"):
        assert settled_events[-1][name] == events[-1][name]
    assert settled["drawn"] == ended["drawn"]
    assert ended["settled"] is None
    assert settled["settled"]["seconds"] >= 0.2
    assert settled["settled"]["steps"] >= settle.WINDOWS
    built, warmup = (next(one["t"] for one in settled_events if one["event"] == name) for name in ("built", "warmup"))
    assert warmup - built >= 0.2, "the time counts as warm-up"


@pytest.mark.parametrize(
    ("means_s", "expected"),
    [
        ([1.0, 1.0], False),
        ([1.0, 1.04, 1.0], True),
        ([1.0, 1.06, 1.0], False),
        ([2.0, 1.5, 1.0, 1.0, 1.01], True),
        ([1.0, 1.0, 1.0, 1.2], False),
    ],
)
def test_steps_are_level_when_the_last_windows_agree(means_s: list[float], expected: bool) -> None:
    assert settle.level(means_s) is expected


def test_a_device_that_never_settles_fails_the_trial(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "MOST_S", 0.1)
    monkeypatch.setattr(settle, "LEVEL", -0.5)
    with pytest.raises(JobError, match=r"steps are not level after 0\.1 s: the last took .* ms") as caught:
        trained(settle_s=0.01)
    assert caught.value.kind == "unsettled"


def test_steps_that_took_too_little_time_fail_with_the_number_that_is_enough(
    trained: Any, spec: dict[str, Any]
) -> None:
    with pytest.raises(JobError, match=r"steps took .* s, and the profile measures 1000 s or more") as caught:
        trained(least_s=1000)
    assert caught.value.kind == "short"
    assert int(str(caught.value.remedy).split()[2]) > spec["steps"]
