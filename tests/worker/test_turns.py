"""A job that takes turns: a burst of steps for each line it is given, and nothing between them."""

import io
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.worker.conftest import saying
from tests.worker.test_training import FakeTrainer
from tests.worker.test_worker_program import REPOSITORY
from worker.protocol import BURST, JobError
from worker.spec import Spec, parse_spec
from worker.training.measure import take_turns
from worker.turns import _stopped_children

TURNS = {"rounds": 3, "burst_steps": 2}


@pytest.fixture
def in_turns(spec: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "steps": 6, "turns": TURNS}


def parsed(given: dict[str, Any]) -> Spec:
    return parse_spec(json.dumps(given))


def taken(spec: Spec, orders: str, trainer: FakeTrainer) -> list[dict[str, Any]]:
    """What the job says when it is given these lines."""
    assert spec.turns is not None
    with saying() as (events, said):
        take_turns(spec, spec.turns, trainer, events, io.StringIO(orders))
    return said


def test_every_line_is_a_burst_and_the_steps_follow_each_other(in_turns: dict[str, Any]) -> None:
    trainer = FakeTrainer(loss=1.0)
    events = taken(parsed(in_turns), f"{BURST}\n" * 3 + "end\n", trainer)
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
    with pytest.raises(JobError, match=rf"ended the job after {orders.count(BURST)} of 3 bursts") as ended:
        taken(parsed(in_turns), orders, trainer)
    assert ended.value.kind == "ended"
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
        orders, lines = program.stdin, program.stdout
        assert orders is not None
        assert lines is not None
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
