"""Parts whose clock is played: events of GPUs, whose clock goes on by a second at each record, and injuries."""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.overrides import TorchFunctionMode

from suite.records.fields import checked_part
from suite.records.usage import Usage
from tests.clock import Clock
from tests.worker.conftest import fails, saying
from tests.worker.distributed_rank import Given
from tests.worker.test_training import CPU, TINY
from worker.protocol import JobError, SpecError
from worker.spec import StepInjury, check, parse_spec
from worker.training import build, job, step
from worker.training import device as devices
from worker.training import measure as measuring
from worker.training.build import build_network, opened_batches
from worker.training.device import Device, Numerics, numerics_of, torch_facts
from worker.training.injury import Injector
from worker.training.measure import measure
from worker.training.step import Samples, Training
from worker.training.trainer import Single
from worker.workloads.workload import Workload, WorkloadMetric

STEPS = 3
STEP_S = 0.05
SIZES = {"batch": 4, "image_px": 28, "warmup_steps": 2, "steps": STEPS}
SMALL_GAN = {"workload": "worker.workloads.adversarial:GAN", **SIZES}
READY = Given((torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)))


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


def test_torchs_own_peak_of_memory_is_recorded_on_a_gpu_alone(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 3 << 30)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 4 << 30)
    assert devices.peak_memory(CPU) == {}
    usage = checked_part(Usage, devices.peak_memory(gpu))
    assert (usage.peak_gpu_memory_bytes, usage.peak_gpu_reserved_bytes) == (3 << 30, 4 << 30)


class Waits(TorchFunctionMode):
    """Notes what waits for a GPU: blocking copies to a device, and what reads a tensor."""

    READS = (
        *(torch.Tensor.item, torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.nonzero),
        *(torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.__bool__),
    )

    def __init__(self, events: list[object]) -> None:
        super().__init__()
        self.events = events

    def __torch_function__(self, function: Any, types: Any, words: Any = (), options: Any = None) -> Any:
        options = options or {}
        to_device = function is torch.Tensor.to and any(isinstance(word, torch.device) for word in words)
        # Adam counts its steps on the host, whatever the device of its parameters.
        of_host = "torch/optim" in sys._getframe(1).f_code.co_filename
        if (function in self.READS and not of_host) or (to_device and not options.get("non_blocking")):
            self.events.append(function.__name__)
        return function(*words, **options)


STEP_WAITS = ["to", "to", "synchronize"]
READ_LOSSES = ["tolist"] * 4


@pytest.mark.parametrize(
    ("sync", "waits"),
    [
        (None, [*STEP_WAITS * 2, "synchronize", *STEP_WAITS * 3, "synchronize", *READ_LOSSES]),
        ("span", ["synchronize", "synchronize", *READ_LOSSES]),
    ],
)
def test_the_host_waits_after_each_step_or_at_the_ends_of_the_span_alone(
    gpu: Device, sync: Any, waits: list[str], spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: waited.append("synchronize"))
    monkeypatch.setattr(measuring, "weights_sha256", lambda _: "")
    gpu.timed = not sync
    job = replace(parse_spec(json.dumps(spec | SMALL_GAN)), sync=sync)
    with opened_batches(job) as (batches,):
        workload = job.load_workload()
        network = build_network(workload, job.shape, job.seed)
        trainer = Single(workload, network, gpu, batches, numerics_of("reference", "cpu"))
        with saying() as (events, said), Waits(waited):
            measure(job, trainer, events)
    assert waited == waits
    steps, losses = said[-1]["steps"], said[-1]["losses"]
    assert {len(column) for column in losses.values()} == {3}
    if sync:
        assert steps == {}
        assert trainer.phases == trainer.parts == ()
    else:
        assert set(steps["phases"]) == set(workload.phases) != set()
        assert len(steps["elapsed_s"]) == len(steps["copy_s"]) == 3


@pytest.mark.parametrize(
    ("per", "why"), [("job", "from the times of its steps"), ("step", "after each step, for which the host waits")]
)
def test_a_span_without_waits_has_no_metric_that_needs_one(
    per: Any, why: str, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rated = Workload(name="rated", sizes={}, metrics=(WorkloadMetric("rate", "1/s", "more", per=per),))
    given = parse_spec(json.dumps(spec | SMALL_GAN))
    monkeypatch.setattr(type(given), "load_workload", lambda _: rated)
    with pytest.raises(SpecError, match=f"makes rate {why}"):
        check(replace(given, sync="span", device="cuda"))


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


@pytest.fixture
def trained(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Any], dict[str, Any]]]:
    """Trains, and returns the events and the other fields of ``done``; windows are short, and as level as needed."""
    monkeypatch.setattr(job, "WINDOW_S", 0.02)
    monkeypatch.setattr(job, "LEVEL", 1e9)

    def _trained(**changes: Any) -> tuple[list[Any], dict[str, Any]]:
        with saying() as (events, said):
            _, ended = job._train(parse_spec(json.dumps({**spec, **SMALL_GAN, **changes})), None, [CPU], events)
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
    assert settled["settled"]["steps"] >= job.WINDOWS
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
    assert job.level(means_s) is expected


def test_a_device_that_never_settles_fails_the_trial(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "MOST_S", 0.1)
    monkeypatch.setattr(job, "LEVEL", -0.5)
    with fails(JobError, "unsettled", r"steps are not level after 0\.1 s: the last took .* ms"):
        trained(settle_s=0.01)


def test_a_first_step_that_compiles_is_no_gpu_that_does_not_settle(
    trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "MOST_S", 1.0)
    compiling_s, step_of = iter([1.1]), Single.step

    def slow(trainer: Single, samples: Samples, index: int) -> None:
        time.sleep(next(compiling_s, 0))
        step_of(trainer, samples, index)

    monkeypatch.setattr(Single, "step", slow)
    _, ended = trained(settle_s=0.05)
    assert ended["settled"]["seconds"] < 1.1


def test_steps_that_took_too_little_time_fail_with_the_number_that_is_enough(trained: Any) -> None:
    with fails(JobError, "short", r"steps took .* s, and the profile measures 1000 s or more") as caught:
        trained(least_s=1000)
    assert int(str(caught.value.remedy).split()[2]) > STEPS


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch.compile itself
@pytest.mark.parametrize(("model", "image_px"), [("adversarial:GAN", 28), ("classifier:RESNET50", 64)])
def test_a_network_that_has_settled_is_not_compiled_again_for_the_training(
    model: str, image_px: int, trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        del inputs
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr(build, "numerics_of", lambda *_, **__: Numerics(compiled=True))
    given = {"workload": f"worker.workloads.{model}", "batch": 2, "image_px": image_px}
    torch.compiler.reset()
    trained(**given)
    once = len(graphs)
    torch.compiler.reset()
    graphs.clear()
    _, ended = trained(**given, settle_s=0.05)
    assert ended["settled"]["steps"] >= job.WINDOWS
    assert len(graphs) == once > 0


@pytest.mark.parametrize(
    ("step_s", "steps"),
    [(0.05, 1000), (0.0221, 1000), (0.02, 1500), (0.004, 7000), (0.0025, 10_000), (0.0003, 100_000)],
)
def test_a_settled_job_takes_as_many_steps_as_last_long_enough(step_s: float, steps: int, spec: dict[str, Any]) -> None:
    given = replace(parse_spec(json.dumps(spec | SMALL_GAN)), steps=1000, least_s=20.0)
    assert job.lasting_steps(given, step_s, 100_000) == steps
    with fails(JobError, "short", r"a step takes 0\.2 ms: 150000 would last 20 s, and 100000 are the most"):
        job.lasting_steps(given, 0.0002, 100_000)


def test_steps_that_would_be_too_short_become_more_where_the_trial_may_choose_them(trained: Any) -> None:
    events, ended = trained(settle_s=0.1, least_s=2.0, most_steps=100_000)
    measuring = next(event for event in events if event["event"] == "measuring")
    assert measuring["steps"] > STEPS
    assert measuring["steps"] >= 2.0 / ended["settled"]["step_s"]
    assert {len(losses) for losses in events[-1]["losses"].values()} == {measuring["steps"]}
    enough, _ = trained(settle_s=0.1, least_s=1e-6, most_steps=100_000)
    assert next(event for event in enough if event["event"] == "measuring")["steps"] == STEPS


@pytest.mark.parametrize("changes", [{}, {"settle_s": 5}, {"least_s": 20}, {"settle_s": 5, "least_s": 20, "epochs": 3}])
def test_only_a_settled_job_of_steps_takes_more_of_them(changes: dict[str, Any], spec: dict[str, Any]) -> None:
    given = parse_spec(json.dumps(spec | SMALL_GAN))
    with pytest.raises(SpecError, match="most_steps is 9; only a job of steps that settles has more of them"):
        check(replace(given, most_steps=9, **changes))


class Slow(torch.nn.Module):
    """A network that takes its time by the test's clock."""

    def __init__(self, wait: Callable[[float], None]) -> None:
        super().__init__()
        self.layer, self.wait = torch.nn.Linear(3, 1000), wait

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.wait(STEP_S)
        scores: torch.Tensor = self.layer(images)
        return scores


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(tick_s=1e-6)
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


def train(injury: StepInjury, clock: Clock, workload: Workload = TINY) -> tuple[Samples, dict[str, Any]]:
    """Train 4 warm-up steps and 10 measured ones."""
    injector = Injector(injury, 4)
    network: torch.nn.Module = Slow(clock.sleep)
    if isinstance(workload, Several):
        network = torch.nn.ModuleDict({"first": network, "second": torch.nn.Linear(3, 1)})
    trainer = Single(workload, network, CPU, injector.batches([READY])[0], Numerics())
    injector.attach(trainer.network)
    scratch, samples = Samples.allocate(1, ()), Samples.allocate(10, ())
    for _ in range(4):
        trainer.step(scratch, 0)
    assert injector.injected["seconds"] == 0
    for index in range(10):
        trainer.step(samples, index)
    return samples, injector.injected


@pytest.mark.parametrize(("workload", "passes"), [(TINY, 1), (Several(name="several", sizes={}), 2)])
def test_a_step_is_late_once_while_it_computes_and_only_when_it_is_its_turn(
    workload: Workload, passes: int, clock: Clock
) -> None:
    samples, told = train(StepInjury("late-step", share=0.2, every=5), clock, workload)
    late = [index for index, seconds in enumerate(samples.compute) if seconds > (passes + 0.5) * STEP_S]
    assert (late, told["steps"]) == ([4, 9], 2)
    assert told["seconds"] == pytest.approx(0.2 * 10 * passes * STEP_S, rel=0.01)
    assert told["seconds"] == pytest.approx(sum(samples.elapsed) - 10 * passes * STEP_S, rel=0.01)
    assert max(samples.data) < 0.01 * STEP_S


def test_late_batches_are_waited_for(clock: Clock) -> None:
    samples, told = train(StepInjury("late-batch", share=0.1, every=2), clock)
    assert sum(samples.data) == pytest.approx(told["seconds"], rel=0.01)
    assert told["steps"] == 5
    assert max(samples.compute) == pytest.approx(STEP_S, rel=0.01)


def test_held_memory_adds_no_time(clock: Clock) -> None:
    samples, told = train(StepInjury("held-memory", held_bytes=1 << 20), clock)
    assert (told["held_bytes"], told["seconds"]) == (1 << 20, 0.0)
    assert max(samples.elapsed) == pytest.approx(STEP_S, rel=0.01)
