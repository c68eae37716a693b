"""The worker as a program: JSON lines out, whatever happens. See ``tests.parsed`` for the requests that it refuses."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from scenarios.training import Synthetic
from suite.errors import MeasurementError
from suite.interfaces import Instance
from suite.job.job import Devices
from suite.plan import Trial
from suite.records.columns import counted_steps
from suite.records.environment import Environment
from suite.records.fields import checked_part
from suite.records.record import Steps
from suite.records.usage import Usage
from suite.registries import WORKLOADS
from tests.scenarios.pictures import folder
from tests.worker.conftest import fails, own_workload
from tests.worker.forked import events_of, worker
from tests.worker.judged import KINDS
from worker.workloads.workload import Workload

REPOSITORY = Path(__file__).parents[2]
ORDER = ["started", "imported", "environment", "built", "warmup", "measuring", "measured", "steps", "done"]


def program(given: str, *arguments: str, **variables: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, events and standard error of the worker in an interpreter of its own."""
    argv, env = [sys.executable, "-m", "worker", *arguments], {**os.environ, **variables}
    done = subprocess.run(argv, input=given, capture_output=True, text=True, cwd=REPOSITORY, env=env, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize(
    "model", ["alexnet", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("resnet50", "inception_v3"))]
)
def test_every_model_trains_to_the_last_event(model: str, spec: dict[str, Any]) -> None:
    change = {"workload": WORKLOADS.place(model), "batch": 2, "image_px": 75, "steps": 1}
    status, events, complaints = program(json.dumps({**spec, **change}))
    assert status == 0, (events[-1:], complaints)
    assert [event["event"] for event in events] == ORDER
    assert [event["t"] for event in events] == sorted(event["t"] for event in events)
    steps = checked_part(Steps, events[-2]["steps"])
    assert counted_steps(steps) == 1
    assert steps.copy_s is None
    seen = checked_part(Environment, events[2]["environment"])
    assert seen.threads == 1
    assert seen.torch is not None
    assert seen.torch_cpu_capability is not None
    used: Any = checked_part(Usage, events[-1]["usage"])
    assert used.cpu_s > 0.3, "the import of torch alone takes more"
    assert used.peak_memory_bytes > 100 << 20, "torch alone takes more"
    assert used.network_sent_bytes is None, "nothing counts what one process sends"


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_thirty_trainings_by_two_threads_end_with_the_same_weights(spec: dict[str, Any]) -> None:
    """Without ``set_threads`` every eighth ended with others here: two threads made the first call of ``tanh``."""
    sizes = {"batch": 4, "image_px": 28, "channels": 1, "steps": 2, "threads": 2}
    given = json.dumps({**spec, **sizes, "workload": WORKLOADS.place("gan")})
    assert len({program(given)[1][-2]["weights_sha256"] for _ in range(30)}) == 1


TOKENS = """
from dataclasses import dataclass
from worker.workloads.workload import Workload

@dataclass(frozen=True, kw_only=True)
class Tokens(Workload):
    def draw(self, batch, shape, generator):
        import torch
        tokens = torch.randint(9, (batch // 8, 9), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    def build(self, shape):
        from torch import nn
        return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))

    def loss(self, network, tokens, following):
        import torch
        return torch.nn.functional.cross_entropy(network(tokens).flatten(0, 1), following.flatten())

TOKENS = Tokens(name="tokens", unit="tokens", sizes={"smoke": 16})
"""


@pytest.mark.parametrize("recipe", ["reference", "tuned"])
def test_a_workload_without_images_trains_on_what_it_draws(recipe: str, spec: dict[str, Any]) -> None:
    del spec["image_px"]
    events = events_of({**spec, **own_workload(TOKENS, batch=16, recipe=recipe)})
    assert len(events[-2]["losses"]["loss"]) == spec["steps"]
    assert events[-2]["losses"]["loss"][0] > events[-2]["losses"]["loss"][-1], "it learns"


def test_an_error_in_a_workload_names_file_line_and_step_and_folds_what_is_not_the_users(spec: dict[str, Any]) -> None:
    wrong = TOKENS.replace("nn.Linear(4, 9)", "nn.Linear(5, 9)")
    status, events, errors = worker(json.dumps({**spec, **own_workload(wrong, batch=16)}))
    assert status == 1
    line = 1 + next(number for number, text in enumerate(wrong.splitlines()) if "cross_entropy" in text)
    assert events[-1]["kind"] == "exception"
    assert events[-1]["message"].startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert events[-1]["message"].endswith(f" (tokens.py, line {line}, in loss, warm-up step 1)")
    own, _, others = errors.partition("RuntimeError: ")
    assert own.count('  File "') == 1
    assert f'tokens.py", line {line}, in loss\n    return torch.nn.functional.cross_entropy(' in own
    assert "\n  nn/modules/linear.py:" in others
    assert "\n  worker/training/measure.py:" in others


def test_a_network_that_returns_no_tensor_is_named_by_the_line_of_its_forward() -> None:
    class Both(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, None]:
            return images, None

    line, nothing = Both.forward.__code__.co_firstlineno, torch.zeros(1)
    told = rf"forward \({Path(__file__).name}, line {line}\) returns a tuple: return a tensor"
    with pytest.raises(TypeError, match=told):
        Workload(name="both", sizes={}).loss(Both(), nothing, nothing)


@pytest.mark.parametrize("recipe", ["reference", "tuned"])
def test_the_phases_of_a_step_make_up_the_whole(recipe: str, spec: dict[str, Any]) -> None:
    events = events_of({**spec, **own_workload(devices=2, parallel="parameter-cpu", recipe=recipe)})
    steps = checked_part(Steps, events[-2]["steps"])
    assert steps.communicate_s is not None
    columns = (column or [] for column in (steps.elapsed_s, steps.data_s, steps.compute_s, steps.communicate_s))
    for whole, *parts in zip(*columns, strict=True):
        assert sum(parts) == pytest.approx(whole)
        assert min(parts[1:]) > 0
    at_s = {event["event"]: event["t"] for event in events}
    assert sum(steps.elapsed_s or ()) <= at_s["measured"] - at_s["measuring"]


def test_collectives_of_the_devices_of_one_instance_are_measured_by_its_ranks(spec: dict[str, Any]) -> None:
    sizes = {"batch": 1, "steps": 1, "warmup_steps": 0, "devices": 2, "threads": 2, "parallel": "ddp"}
    given = {name: value for name, value in spec.items() if name != "image_px"}
    events = events_of({**given, **sizes, "workload": WORKLOADS.place("collectives")})
    steps = next(event for event in events if event["event"] == "steps")
    assert steps["metrics"]["all-reduce-64MiB-bandwidth"]["value"] > 0
    assert len(steps["metrics"]) == 36
    assert steps["steps"]["communicate_s"] == [pytest.approx(steps["steps"]["elapsed_s"][0], rel=0.2)]


def test_ddp_trains_and_reads_in_a_process_for_each_device(spec: dict[str, Any], tmp_path: Path) -> None:
    data = {**KINDS["on-data"]["data"], "directory": str(folder(tmp_path, 12)), "loader_workers": 0}
    events = events_of({**spec, **own_workload(batch=2, image_px=16, data=data, devices=2, threads=2, parallel="ddp")})
    assert [event["event"] for event in events] == ORDER
    assert events[2]["environment"]["threads"] == 2
    assert events[-1]["data_use"]["images_read"] == 2 * 2 * 3, "images of two devices in three steps"
    assert len(set(events[-1]["drawn"])) == 2


def test_a_job_measures_the_same_through_a_node(trial: Trial, here: Any, observer: Any) -> None:
    here.forks = False
    measured: Any = Synthetic().measure(trial.with_job(recipe="tuned"), [Instance(here)], observer, nullcontext())
    assert measured.throughput_per_s is not None
    assert measured.timeline.launch_s is not None
    assert measured.environment.userland_sha256 is None
    assert "glibc.malloc.mmap_max=0" in measured.environment.allocator


def test_a_job_that_needs_a_missing_device_says_so(trial: Trial, here: Any, observer: Any) -> None:
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    missing = trial.with_job(devices=Devices(device="cuda", devices=there + 1, parallel="parameter-cpu"))
    with fails(MeasurementError, "device", "CUDA devices asked for"):
        Synthetic().measure(missing, [Instance(here)], observer, nullcontext())


@pytest.mark.parametrize(
    ("given", "arguments", "says"),
    [
        ("{}", (), "missing required field `workload`"),
        ("", ("--help-me",), "--help-me"),
        ("", ("--page-cache", "hot", "/"), "--page-cache hot"),
    ],
)
def test_a_wrong_request_is_an_error_with_its_status(given: str, arguments: tuple[str, ...], says: str) -> None:
    status, events, _ = worker(given, *arguments)
    assert status == 2
    assert [event["event"] for event in events] == [*["started"] * (not arguments), "error"]
    assert events[-1]["kind"] == "request"
    assert says in events[-1]["message"]


def test_the_attestation_is_one_environment_without_torch() -> None:
    status, (line,), _ = program("", "--attest")
    assert status == 0
    seen = checked_part(Environment, line)
    assert (seen.kernel, seen.cpus) == (os.uname().release, sorted(os.sched_getaffinity(0)))
    assert seen.memory_bytes is not None
    assert seen.libc is not None
    assert seen.torch is None


def test_what_a_library_prints_does_not_reach_the_protocol() -> None:
    program = (
        "import os; from worker.protocol import Events, take_stdout\n"
        "events = Events(take_stdout()); print('from Python', flush=True); os.system('echo from a child')\n"
        "events.emit('done')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert json.loads(done.stdout)["event"] == "done"
    assert done.stderr == "from Python\nfrom a child\n"
