"""A command that takes turns, run by real workers: what is stopped, what is timed, and what is refused."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scenarios.command import Command, CommandTurns
from suite.errors import MeasurementError
from suite.interfaces import Instance, TurnTaker
from suite.job.command import CommandJob
from suite.job.job import TimeSlices
from suite.plan import Trial
from suite.records.columns import timeline_s
from suite.records.record import Turn
from tests.scenarios.conftest import HereNode, RecordingObserver, fails

SLICE_S = 0.1
COMPUTES = "import time\nwhile time.process_time() < {}: pass"
WITH_CHILDREN = """
import subprocess, sys
children = [subprocess.Popen([sys.executable, "-c", {program!r}]) for _ in range(2)]
for child in children:
    child.wait()
"""
Take = Callable[..., TurnTaker]


@pytest.fixture
def taker(trial: Trial, here: HereNode, observer: RecordingObserver, tmp_path: Path) -> Iterator[Take]:
    """``taker(program)``: a command on this machine, ready for its first turn; it has ended when the test has."""
    with ExitStack() as stack:

        def take(program: str) -> TurnTaker:
            (tmp_path / "train.py").write_text(program)
            here.data, here.userland = str(tmp_path), "/"
            command = CommandJob(argv=("python", "train.py"))
            turns = TimeSlices(slice_s=SLICE_S)
            planned = trial.with_job(scenario="command", model="train.py", sizes=None, command=command, turns=turns)
            job = Command().turn_taker(planned, [Instance(here)], observer)
            stack.callback(job.kill)
            job.begin()
            return job

        yield take


def turns_of(job: TurnTaker, most: int = 1000) -> list[Turn]:
    turns: list[Turn] = []
    while not job.finished and len(turns) < most:
        turns.append(job.turn())
    return turns


def test_a_command_runs_in_its_turns_alone_and_its_elapsed_time_is_theirs(
    taker: Take, observer: RecordingObserver
) -> None:
    job = taker(COMPUTES.format(1))
    told = len(observer.phases)
    first = turns_of(job, most=3)
    time.sleep(2)  # another one's turn
    turns = [*first, *turns_of(job)]
    time.sleep(1)  # its own have ended, and those of others have not
    assert len(observer.phases) == told, "nothing is told while somebody computes"
    measured: Any = job.end()
    span_s = sum(turn.span_s for turn in turns)
    assert all(SLICE_S <= turn.span_s <= turn.heard_s + 0.01 for turn in turns[:-1])
    assert not any(turn.steps for turn in turns)
    assert turns[3].own_waiting_cpu_s < 0.1, "it was stopped"
    assert measured.metrics["cpu-time"].value == measured.usage.cpu_s >= 1
    assert measured.timeline.measured_s == pytest.approx(span_s)
    assert timeline_s(measured.timeline) == pytest.approx(measured.elapsed_s, abs=0.5)
    assert measured.details["stops"] == len(turns) - 1
    assert measured.details["stops_waiting"] <= 1
    assert measured.throughput_per_s is None


def test_all_processes_of_a_command_are_stopped_between_its_turns(taker: Take) -> None:
    job = taker(WITH_CHILDREN.format(program=COMPUTES.format(0.5)))
    first = turns_of(job, most=4)
    time.sleep(1)
    turns = [*first, *turns_of(job)]
    assert turns[4].own_waiting_cpu_s < 0.1
    assert job.end().metrics["cpu-time"].value >= 1


def test_a_command_that_waits_is_refused_turns_for_its_wait_goes_on(taker: Take) -> None:
    job = taker("import time; time.sleep(1.5)")
    turns_of(job)
    with fails(MeasurementError, "waits", r"the command was waiting at \d+ of \d+ stops"):
        job.end()


def test_a_command_that_starts_processes_all_the_time_is_stopped_with_them(taker: Take) -> None:
    program = "import subprocess, time\nwhile time.process_time() < 0.3: subprocess.run(['true'])"
    job = taker(program)
    turns = turns_of(job)
    assert len(turns) > 3
    assert all(turn.own_waiting_cpu_s < 0.05 for turn in turns)


def test_a_command_that_fails_in_a_turn_says_why_and_one_that_is_killed_ends(taker: Take, here: HereNode) -> None:
    job = taker(COMPUTES.format(0.2) + "\nraise SystemExit(3)")
    turns_of(job)
    with fails(MeasurementError, "command", "exit status 3"):
        job.end()
    stopped = taker(COMPUTES.format(60))
    stopped.turn()
    assert isinstance(stopped, CommandTurns)
    stopped.job.end_orders()
    with fails(MeasurementError, "ended", "before its command"):
        stopped.turn()
    assert not here.processes[-1].running()


def test_what_a_command_leaves_behind_is_ended_in_its_last_turn(taker: Take, observer: RecordingObserver) -> None:
    program = 'import subprocess, sys; subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])\n'
    job: Any = taker(program + COMPUTES.format(0.3))
    turns_of(job)
    assert job.end().details["processes_left"] == 1
    assert any("processes that the command left behind" in note for note in observer.notes)
