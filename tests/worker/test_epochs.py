"""Whole epochs, a training that was killed and goes on, and jobs that take their steps in turns."""

import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from suite.registries import DATA_KINDS, WORKLOADS
from tests.forked import Forked
from tests.worker.conftest import EPOCHS, IMAGES, STEPS, fails, own_workload, ranks, saying
from tests.worker.forked import events_of, run, worker
from tests.worker.test_training import FakeTrainer
from tests.worker.test_worker_program import REPOSITORY
from worker.data.listing import entries_of, identify
from worker.protocol import BURST, JobError
from worker.spec import parse_spec
from worker.training.measure import take_turns
from worker.training.step import Samples
from worker.training.trainer import OneDevice
from worker.turns import _stopped_children


def steps_of(given: Mapping[str, Any]) -> dict[str, Any]:
    return next(event for event in events_of(given) if event["event"] == "steps")


def writing(given: Mapping[str, Any], place: Path, mode: str = "on") -> dict[str, Any]:
    return {**given, "checkpoint": {"mode": mode, "directory": str(place)}}


def refusal(given: Mapping[str, Any], kind: str) -> dict[str, Any]:
    status, events, _ = worker(json.dumps(given))
    assert (status, events[-1]["event"], events[-1]["kind"]) == (1, "error", kind)
    return events[-1]


def same(one: object, other: object) -> bool:
    """Whether two checkpoints hold the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_an_epoch_is_its_steps_and_nothing_that_is_done_after_it(epochs: dict[str, Any], tmp_path: Path) -> None:
    events = events_of(writing(epochs, tmp_path, "fsync"))
    at_s, found = {event["event"]: event["t"] for event in events}, events[-2]
    elapsed_s = found["steps"]["elapsed_s"]
    assert len(elapsed_s) == EPOCHS * STEPS == 30
    assert len(found["epochs_s"]) == len(found["checkpoints"]["seconds"]) == EPOCHS
    for number, epoch_s in enumerate(found["epochs_s"]):
        assert sum(elapsed_s[number * STEPS : (number + 1) * STEPS]) <= epoch_s
    together_s = sum(found["epochs_s"]) + sum(found["checkpoints"]["seconds"])
    assert together_s <= at_s["measured"] - at_s["measuring"], "neither is a part of the other"
    assert found["checkpoints"]["size_bytes"] == (tmp_path / "checkpoint.pt").stat().st_size > 1 << 20
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_drawn_data_has_checkpoints_between_its_steps(epochs: dict[str, Any], tmp_path: Path) -> None:
    found = steps_of(writing({**epochs, "data": None, "warmup_steps": 1, "steps": 6}, tmp_path))
    assert len(found["steps"]["elapsed_s"]) == 6
    assert len(found["epochs_s"]) == len(found["checkpoints"]["seconds"]) == EPOCHS
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["epochs"] == EPOCHS


@pytest.mark.parametrize("model", ["gan", pytest.param("dcgan", marks=pytest.mark.thorough)])
def test_a_training_that_is_killed_in_mid_epoch_and_goes_on_ends_with_the_weights_of_one_that_is_not(
    model: str, epochs: dict[str, Any], tmp_path: Path
) -> None:
    given = {**epochs, "workload": WORKLOADS.place(model)}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    steps_of(writing(given, whole))
    ended = Forked(killed_in_the_second_epoch, given=json.dumps(writing(given, killed)))
    told = ended.communicate()
    assert ended.returncode == -9, told
    assert torch.load(killed / "checkpoint.pt", weights_only=True)["epochs"] == 1
    rest = steps_of(writing(given, killed))
    assert len(rest["steps"]["elapsed_s"]) == 2 * STEPS, "the second epoch once more, and the third"
    one, other = (torch.load(place / "checkpoint.pt", weights_only=True) for place in (whole, killed))
    assert one["epochs"] == EPOCHS
    assert same(one, other)
    assert not same(one, {**other, "random": {**other["random"], "torch": other["random"]["torch"] + 1}})


def test_a_training_that_is_killed_after_its_last_checkpoint_goes_on_with_no_step_left(
    epochs: dict[str, Any], tmp_path: Path
) -> None:
    whole = steps_of(writing(epochs, tmp_path))
    by_name = {event["event"]: event for event in events_of(writing({**epochs, "least_s": 1e6}, tmp_path))}
    assert by_name["measuring"]["steps"] == 0
    assert by_name["measured"]["t"] >= by_name["measuring"]["t"]
    assert by_name["steps"]["weights_sha256"] == whole["weights_sha256"]
    assert by_name["steps"]["steps"]["elapsed_s"] == by_name["steps"]["checkpoints"]["seconds"] == []


def killed_in_the_second_epoch(words: Sequence[str]) -> None:
    """Run the worker, which is killed in the middle of an epoch."""
    step = OneDevice.step

    def counted(trainer: OneDevice, samples: Samples, index: int) -> None:
        if index == STEPS + STEPS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        step(trainer, samples, index)

    OneDevice.step = counted  # type: ignore[method-assign, assignment]
    run(words)


def test_a_training_goes_on_from_no_checkpoint_of_another_one_or_half_of_one(
    epochs: dict[str, Any], tmp_path: Path
) -> None:
    steps_of(writing(epochs, tmp_path))
    found = refusal(writing({**epochs, "seed": 9, "workload": WORKLOADS.place("dcgan")}, tmp_path), "checkpoint")
    assert "another training: workload 'worker.workloads.adversarial:GAN', not" in found["message"]
    assert "seed 3, not 9" in found["message"]
    assert "empty the directory" in found["remedy"]
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert f"{path} is no whole checkpoint" in refusal(writing(epochs, tmp_path), "checkpoint")["message"]


def test_a_checkpoint_that_cannot_be_written_is_told(epochs: dict[str, Any], tmp_path: Path) -> None:
    found = refusal(writing(epochs, tmp_path / "nowhere"), "checkpoint")
    assert "the checkpoint cannot be written to" in found["message"]


def test_a_model_counts_the_steps_of_its_epochs_and_keeps_what_identifies_its_data(
    epochs: dict[str, Any], directory: Path, tmp_path: Path
) -> None:
    file = tmp_path / "gan.pt"
    events = events_of({**epochs, "steps": 0, "model_file": str(file)})
    assert "steps" not in [event["event"] for event in events], "the log of a pod is small"
    trained = events[-1]["trained"]
    assert trained == torch.load(file, weights_only=True)["training"]
    assert (trained["steps"], len(trained["epoch_s"])) == (EPOCHS * STEPS, EPOCHS)
    assert trained["training_s"] == pytest.approx(sum(trained["epoch_s"]))
    digest, sha256 = identify(directory, [*entries_of(directory)])
    assert trained["data"] == {"kind": "mnist", "images": IMAGES, "digest": digest, "sha256": sha256}
    assert trained["losses"].keys() > {"generator"}


def test_epochs_that_do_not_fit_into_the_time_of_a_job_end_after_the_first(
    epochs: dict[str, Any], tmp_path: Path
) -> None:
    given = {**epochs, "steps": 0, "model_file": str(tmp_path / "gan.pt"), "epochs": 5000, "within_s": 1}
    refused = refusal(given, "timeout")
    assert re.fullmatch(r"5000 epochs of \d+\.\d s do not fit into the 1 s of the job", refused["message"])
    assert not [*tmp_path.iterdir()]


def test_a_directory_of_another_data_set_is_named_before_anything_is_trained(
    epochs: dict[str, Any], directory: Path, tmp_path: Path
) -> None:
    data = {**epochs["data"], "kind": DATA_KINDS.place("cifar10")}
    given = {**epochs, "steps": 0, "model_file": str(tmp_path / "gan.pt"), "data": data, "channels": 3}
    refused = refusal(given, "data")
    assert refused["message"].startswith(f"{directory} is no readable data set of kind cifar10: ")
    assert refused["remedy"]


@pytest.fixture
def in_turns(spec: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "steps": 6, "turns": {"rounds": 3, "burst_steps": 2}}


def taken(given: dict[str, Any], orders: str, trainer: FakeTrainer) -> list[dict[str, Any]]:
    """What the job says when it is given these lines."""
    spec = parse_spec(json.dumps(given))
    assert spec.turns is not None
    with saying() as (events, said):
        take_turns(spec, spec.turns, trainer, events, io.StringIO(orders))
    return said


def test_every_line_is_a_burst_and_the_steps_follow_each_other(in_turns: dict[str, Any]) -> None:
    trainer = FakeTrainer(loss=1.0)
    events = taken(in_turns, f"{BURST}\n" * 3 + "end\n", trainer)
    told = [*["computed", "burst"] * 3, "measured", "steps"]
    assert [event["event"] for event in events] == ["warmup", "measuring", *told]
    assert trainer.steps == [0, 0, 1, 2, 3, 4, 5], "a step of warm-up, then the measured ones in their order"
    for computed, burst in zip(events[2:8:2], events[3:9:2], strict=True):
        assert computed["t"] == burst["t"], "the rest comes after its last step"
        assert burst["steps"]["elapsed_s"] == [4.0, 4.0], "each burst tells of its own steps alone"
        assert burst["span_s"] > 0
        assert burst["usage"]["user_s"] + burst["usage"]["system_s"] >= 0


@pytest.mark.parametrize("orders", ["", f"{BURST}\nend\n", f"{BURST}\n"])
def test_a_job_whose_host_has_gone_ends(in_turns: dict[str, Any], orders: str) -> None:
    trainer = FakeTrainer(loss=1.0)
    with fails(JobError, "ended", rf"ended the job after {orders.count(BURST)} of 3 bursts"):
        taken(in_turns, orders, trainer)
    assert len(trainer.steps) == 1 + 2 * orders.count(BURST)


def test_processes_that_read_ahead_are_stopped_while_the_job_waits() -> None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    try:
        with _stopped_children():
            deadline = time.monotonic() + 10
            while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
                assert time.monotonic() < deadline
        while psutil.Process(child.pid).status() == psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline
    finally:
        child.kill()
        child.join()


def test_the_program_computes_in_its_turns_alone(in_turns: dict[str, Any]) -> None:
    argv, pipe = [sys.executable, "-m", "worker"], subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, cwd=REPOSITORY) as program:
        orders: Any = program.stdin
        lines: Any = program.stdout
        events: Iterator[dict[str, Any]] = map(json.loads, lines)

        def say(line: str) -> None:
            print(line, file=orders, flush=True)

        def hear(awaited: str) -> dict[str, Any]:
            return next(event for event in events if event["event"] == awaited)

        def computed_s(within_s: float) -> float:
            before = psutil.Process(program.pid).cpu_times()
            time.sleep(within_s)
            after = psutil.Process(program.pid).cpu_times()
            return after.user + after.system - before.user - before.system

        # Of two threads one waits for more to do, and spins.
        say(json.dumps({**in_turns, "threads": 2}))
        hear("measuring")
        assert computed_s(1.0) <= 0.1, "it waits for its turn, and does nothing else"
        for _ in range(3):
            say(BURST)
            burst = hear("burst")
            assert sum(burst["steps"]["elapsed_s"]) <= burst["span_s"]
            assert burst["usage"]["user_s"] > 0
            assert computed_s(0.5) <= 0.1, "it is at rest when it says that its turn has ended"
        say("end")
        assert set(hear("steps")) >= {"usage", "metrics"}
        hear("done")
        assert program.wait(60) == 0


def test_threads_change_at_a_step_and_the_host_is_told(epochs: dict[str, Any]) -> None:
    events = events_of({**epochs, "threads": 2, "threads_at": {"0": 1, "3": 2}})
    changes = [event["step"] for event in events if event["event"] == "resize"]
    assert changes == [0, 3]
    names = [event["event"] for event in events]
    assert names.index("measuring") < names.index("resize") < names.index("measured")


@pytest.mark.parametrize("strategy", ["parameter-server", "all-reduce"])
def test_an_epoch_of_several_workers_is_as_many_images_as_the_set_has(strategy: str, epochs: dict[str, Any]) -> None:
    steps = EPOCHS * (IMAGES // (2 * epochs["batch"]))
    given = {**epochs, **own_workload(), "channels": 1, "steps": steps}
    servers = int(strategy == "parameter-server")
    said = ranks(given, strategy, 2, servers)
    for events, _ in said[servers:]:
        (told,) = (event for event in events if event["event"] == "steps")
        assert len(told["epochs_s"]) == EPOCHS
    status, events, _ = worker(json.dumps({**given, "steps": EPOCHS * STEPS + 1}))
    assert (status, events[-1]["event"]) != (0, "done")
