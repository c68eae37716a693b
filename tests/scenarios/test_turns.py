"""A job that takes turns, and one that is killed and goes on, through a node: real workers, and played ones."""

import itertools
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from scenarios.job import worker_argv
from scenarios.probe import Probing
from scenarios.training import Synthetic, with_preemption
from suite.errors import CommandError, MeasurementError
from suite.interfaces import Instance, Measurement, Process, TurnTaker
from suite.job.job import Alternating
from suite.job.preemption import Preemption
from suite.job.profiles import Sizes
from suite.plan import Trial
from tests.scenarios.conftest import HereNode, RecordingObserver, ScriptedNode, ScriptedProcess, fails
from tests.scenarios.test_job import event
from worker.protocol import BURST

NEVER_S = 1e9


@pytest.fixture
def in_turns(trial: Trial) -> Trial:
    """Two rounds of two steps."""
    sizes = Sizes(batch=2, image_px=28, channels=1, warmup_steps=2, steps=4)
    return trial.with_job(model="gan", turns=Alternating(rounds=2, burst_steps=2), sizes=sizes)


@pytest.fixture
def taker(observer: RecordingObserver) -> Iterator[Callable[[Trial, HereNode], TurnTaker]]:
    """``taker(trial, node)``: the trial's job on a node; it has ended when the test has."""
    with ExitStack() as stack:

        def take(trial: Trial, node: HereNode) -> TurnTaker:
            job = Synthetic().turn_taker(trial, [Instance(node)], observer)
            stack.callback(job.kill)
            return job

        yield take


def test_a_job_trains_in_bursts_and_measures_them_alone(
    in_turns: Trial, here: HereNode, taker: Any, observer: RecordingObserver
) -> None:
    job = taker(in_turns, here)
    job.begin()
    told = len(observer.phases)
    turns = [job.turn() for _ in range(2)]
    assert len(observer.phases) == told, "nothing is told while somebody computes"
    measured: Any = job.end()
    assert [turn.steps for turn in turns] == [2, 2]
    assert all(turn.own_cpu_s > 0 for turn in turns)
    assert all(0 < turn.heard_s - turn.span_s < 30 for turn in turns), "timed by the host, too, on CPUs others use"
    assert len(measured.steps.elapsed_s or ()) == 4
    span_s = sum(turn.span_s for turn in turns)
    assert measured.throughput_per_s == pytest.approx(2 * 4 / span_s)
    assert measured.timeline.measured_s == pytest.approx(span_s)
    assert measured.usage.cpu_s == pytest.approx(sum(turn.own_cpu_s for turn in turns))
    assert measured.usage.peak_memory_bytes is None, "the waiting is in it"
    assert len(measured.weights_sha256 or "") == len(measured.drawn_sha256 or "") == 64


def test_a_job_that_is_killed_between_turns_fails_with_what_it_said(
    trial: Trial, in_turns: Trial, here: HereNode, taker: Any
) -> None:
    assert worker_argv(here, in_turns) == worker_argv(here, trial), "it is launched as one without turns"
    job = taker(in_turns, here)
    job.begin()
    here.processes[-1].kill()
    with fails(MeasurementError, "killed", "killed in the phase 'taking turns'"):
        job.turn()
    unneeded = taker(in_turns, here)
    unneeded.begin()
    unneeded.kill()
    assert not here.processes[-1].running()


def test_a_probe_is_measured_again_in_every_turn(trial: Trial, here: HereNode, observer: RecordingObserver) -> None:
    probing = trial.with_job(scenario="probe", model="cpu", sizes=None, turns=Alternating(rounds=3, burst_steps=2))
    job = Probing().turn_taker(probing, [Instance(here)], observer)
    job.begin()
    told = len(observer.phases)
    taken = [job.turn() for _ in range(3)]
    assert len(observer.phases) == told
    measured: Any = job.end()
    assert [turn.steps for turn in taken] == [2, 2, 2]
    (rate,) = measured.metrics.values()
    assert len(rate.samples) == 6, "the one that warms up is not among them"
    assert rate.value == pytest.approx(statistics.geometric_mean(rate.samples))
    assert measured.timeline.measured_s == pytest.approx(sum(turn.span_s for turn in taken))


@dataclass
class Player(ScriptedProcess):
    """Answers each line with the next part of its script; None is silence until the time is up."""

    input: IO[bytes] | None = None
    heard: list[bytes] = field(default_factory=list)
    limits_s: list[float] = field(default_factory=list)

    def lines(self, timeout_s: float) -> Iterator[str]:
        assert self.input is not None
        self.heard.append(self.input.readline())
        self.limits_s.append(timeout_s)
        part = self.script[len(self.heard) - 1] if len(self.heard) <= len(self.script) else ""
        if part is None:
            raise CommandError(["worker"], None, f"silent for {timeout_s} s")
        yield from str(part).splitlines()

    def kill(self) -> None:
        super().kill()
        if self.input:
            self.input.close()


@dataclass
class PlayingNode(ScriptedNode):
    """Starts its process with the reading end of the pipe that it is given."""

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"", **_: Any) -> Process:
        del argv
        assert isinstance(self.process, Player)
        assert not isinstance(stdin, bytes)
        self.process.input = stdin
        return self.process


said = partial(event, t=1.0)
READY = "\n".join(
    [
        *(said(name) for name in ("started", "imported", "environment", "built")),
        *(said("warmup", step=number, of=2) for number in (1, 2)),
        said("measuring"),
    ]
)
COMPUTED = said("computed")
RESTED = said(
    "burst",
    span_s=0.5,
    steps={"elapsed_s": [0.2, 0.3], "data_s": [0.0, 0.0], "compute_s": [0.2, 0.3]},
    usage={"user_s": 0.4, "system_s": 0.1, "minor_faults": 3},
    waited={"user_s": 0.0, "system_s": 0.0, "minor_faults": 0},
)
BURST_SAID = f"{COMPUTED}\n{RESTED}"


def playing(*script: str | None, status: int = 0) -> PlayingNode:
    return PlayingNode(process=Player(script, status=status))


def test_the_specification_is_one_line_and_every_turn_another(in_turns: Trial, taker: Any) -> None:
    node: Any = playing(READY, BURST_SAID, BURST_SAID)
    job = taker(in_turns, node)
    job.begin()
    turn = job.turn()
    assert (turn.span_s, turn.steps, turn.own_cpu_s, turn.faults) == (0.5, 2, 0.5, 3)
    job.turn()
    first, *others = node.process.heard
    assert json.loads(first)["turns"] == {"rounds": 2, "burst_steps": 2}
    assert others == [f"{BURST}\n".encode()] * 2


def test_a_turn_that_does_not_end_is_given_up(in_turns: Trial, taker: Any) -> None:
    node = playing(READY, None)
    job = taker(in_turns, node)
    job.begin()
    with fails(MeasurementError, "timeout", "had not ended burst 1 after 120 s"):
        job.turn()
    assert node.process.killed
    with pytest.raises(MeasurementError, match="had not been ready after 120 s"):
        taker(in_turns, playing(None)).begin()


def test_the_limit_of_a_trial_holds_for_all_of_its_own_turns_and_for_none_of_the_others(
    in_turns: Trial, taker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node: Any = playing(READY, BURST_SAID, None)
    job = taker(in_turns, node)
    now_s = itertools.count(0.0, 10.0)
    monkeypatch.setattr("scenarios.turns.monotonic", lambda: next(now_s))
    job.begin()
    now_s = itertools.count(5000.0, 10.0)  # somebody else's turn
    job.turn()
    with fails(MeasurementError, "timeout", "had not ended burst 2 after 120 s"):
        job.turn()
    first_s, second_s, third_s = node.process.limits_s
    assert 120 == first_s > second_s > third_s >= 0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (said("error", kind="diverged", message="the loss is nan"), "the loss is nan"),
        (f"{COMPUTED}\n{said('burst', span_s=0.5)}", "what the worker said cannot be recorded: usage"),
        (RESTED, "the worker did not say when its burst had ended"),
        (f"{RESTED}\n{COMPUTED}", "the worker did not say when its burst had ended"),
        ("hello", "the worker said in the phase 'taking turns': 'hello'"),
        ("", "ended early in the phase 'taking turns'"),
    ],
)
def test_what_goes_wrong_in_a_turn_is_told(in_turns: Trial, taker: Any, answer: str, why: str) -> None:
    job = taker(in_turns, playing(READY, answer))
    job.begin()
    with pytest.raises(MeasurementError, match=why):
        job.turn()


def test_the_host_times_a_burst_by_its_own_clock_to_its_last_step_and_not_to_the_rest(
    in_turns: Trial, taker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(100))
    job = taker(in_turns, playing(READY, BURST_SAID, BURST_SAID))
    job.begin()
    monkeypatch.setattr(job.job.log, "clock", lambda: float(next(ticks)))
    # The order at 0, computed at 1, the rest at 2; and again.
    assert [job.turn().heard_s for _ in range(2)] == [1.0, 1.0]
    with pytest.raises(MeasurementError):
        job.turn()


HALF_SPEED = """
import sys, time
real, begun = time.monotonic, []

def clock():
    now = real()
    if sys._getframe(1).f_code.co_name != "each_turn":
        return now
    if not begun:
        begun.append(now)
        return now
    begin = begun.pop()
    return begin + (now - begin) / 2

time.monotonic = clock
"""


def test_the_host_sees_a_clock_that_is_slow_in_bursts_and_right_over_the_whole_job(
    in_turns: Trial, here: HereNode, taker: Any, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HALF_SPEED)
    interpreter, path = here.python
    here.python, here.forks = (interpreter, f"{tmp_path}:{path}"), False
    job = taker(in_turns, here)
    job.begin()
    for turn in [job.turn() for _ in range(2)]:
        # Not equal: the host hears of a burst when it comes to it, which is later on a busy machine.
        assert turn.heard_s > 1.99 * turn.span_s
    job.end()


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
    sizes = Sizes(batch=2, image_px=28, channels=1, warmup_steps=0, steps=8, epochs=4)
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
    found: Any = preempted(trial, here, observer, monkeypatch, tmp_path, 0.0, 300.0, NEVER_S)
    assert found.weights_sha256, "with_preemption compares them"
    assert found.metrics["openings"].value == 3
    assert found.metrics["makespan"].value > 300
    assert 0 <= found.metrics["lost-steps"].value <= 2, "two steps are an epoch"
    assert len(found.steps.elapsed_s) == 8, "the measured steps are those of the undisturbed training"
    assert ("attesting", "opening 3") in observer.phases


def test_other_weights_and_a_job_that_never_ends_fail_the_trial(
    trial: Trial, here: HereNode, observer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with fails(MeasurementError, "preemption", "it has not ended after"):
        preempted(trial, here, observer, monkeypatch, tmp_path, 300.0, NEVER_S / 4)
    planned = trial.with_job(preemption=Preemption(mean_s=60))
    fixed = Measurement.model_construct(weights_sha256="a" * 64, elapsed_s=1.0)
    with pytest.raises(MeasurementError, match="cannot be opened again"):
        with_preemption(planned, Instance(here), observer, fixed)
