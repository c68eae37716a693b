"""The alternating design on fakes: what is opened, whose turn it is, what fails, and what is recorded."""

import functools
import io
import itertools
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from suite.errors import MeasurementError
from suite.interfaces import Instance, Measurement, Observer, TurnTaker
from suite.job.job import Alternating, TimeSlices
from suite.loop import Loop
from suite.plan import Plan, Trial, rounds_of, together
from suite.progress import Display
from suite.records.environment import Environment
from suite.records.headers import read_header
from suite.records.record import MetricValue, Steps, Timeline, TrialRecord, Turn
from suite.records.usage import GpuUsage, Usage
from suite.results.store import MANIFEST, Run, read_manifest
from suite.sweep.cells import cells_of
from suite.sweep.directory import SweepDirectory
from suite.trial_names import record_file
from tests.suite.conftest import ENVELOPE, WORKLOAD, FakeAccount, FakeObserver, FakeTargets, inside, make_plan
from tests.suite.sweep.conftest import make_sweep

TURNS = Alternating(rounds=4, burst_steps=3)
IN_TURNS = WORKLOAD.model_copy(update={"steps": 12})


@dataclass
class FakeJob:
    """Takes turns of half a second. ``failing`` raises its error at a method, or at the turn of that number."""

    name: str
    events: list[str]
    failing: dict[str | int, BaseException]
    turns: int = 0
    slices: int | None = None
    """The slices of time that a command needs; None for a job of steps."""

    @property
    def finished(self) -> bool:
        return self.turns == self.slices

    def _happens(self, what: str | int) -> None:
        self.events.append(f"{what} {self.name}")
        if what in self.failing:
            raise self.failing[what]

    def begin(self) -> None:
        self._happens("begin")

    def turn(self) -> Turn:
        self.turns += 1
        self._happens(self.turns)
        steps = 0 if self.slices else 3
        return Turn(span_s=0.5, heard_s=0.501, steps=steps, own_cpu_s=0.9, own_waiting_cpu_s=0.0, faults=7)

    def end(self) -> Measurement:
        self._happens("end")
        if self.slices:
            metrics = {"cpu-time": MetricValue(value=1.0, unit="s", better="less")}
            environment = inside(ENVELOPE)
            return Measurement(elapsed_s=0.5 * self.turns, environment=environment, metrics=metrics)
        return Measurement(
            elapsed_s=100.0,
            throughput_per_s=24 / 2.0,
            steps=Steps(elapsed_s=[0.1] * 12, data_s=[0.0] * 12, compute_s=[0.1] * 12),
            timeline=Timeline(measured_s=2.0),
            environment=inside(ENVELOPE),
            usage=Usage(cpu_s=3.6),
        )

    def kill(self) -> None:
        self.events.append(f"kill {self.name}")


@dataclass
class TurnsOfFakes:
    """Gives each trial a fake job; ``failing`` is by target."""

    events: list[str]
    failing: dict[str, dict[str | int, BaseException]] = field(default_factory=dict)
    slices: dict[str, int] = field(default_factory=dict)
    """The slices that the command of each target needs."""
    name: str = "synthetic"

    def measure(
        self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: AbstractContextManager[object]
    ) -> Measurement:
        del instances, observer
        with account:
            self.events.append(f"measure {trial.target}")
        measured = FakeJob(trial.target, [], {}).end()
        steps = Steps(elapsed_s=[0.2] * 3, data_s=[0.0] * 3, compute_s=[0.2] * 3)
        return Measurement(**(vars(measured) | {"steps": steps, "timeline": Timeline(measured_s=0.6)}))

    def turn_taker(self, trial: Trial, instances: Sequence[Instance], observer: Observer) -> TurnTaker:
        assert [instance.node.name for instance in instances] == [trial.target]
        del observer
        name = trial.target + "-again" * trial.replica
        return FakeJob(name, self.events, self.failing.get(name, {}), slices=self.slices.get(name))


def alternating(**changes: Any) -> Plan:
    plan = make_plan(**changes)
    jobs = tuple(job.model_copy(update={"turns": TURNS, "sizes": IN_TURNS}) for job in plan.jobs)
    return plan.model_copy(update={"jobs": jobs})


@pytest.fixture
def jobs(events: list[str]) -> TurnsOfFakes:
    return TurnsOfFakes(events)


Go = Callable[..., list[TrialRecord]]


@pytest.fixture
def go_in(targets: FakeTargets, jobs: TurnsOfFakes, observer: FakeObserver) -> Go:
    """``go_in(store)`` runs one block of three targets in turns; ``go_in(store, plan)`` another plan."""

    def _go(store: Run, plan: Plan | None = None) -> list[TrialRecord]:
        loop = Loop(jobs, targets.opened, store, observer, Environment, lambda _trial, _instances: FakeAccount())
        with store.exclusive(), store.sealed():
            return loop.run(plan or alternating(blocks=1))

    return _go


@pytest.fixture
def go(go_in: Go, store: Run) -> Go:
    """The same in the test's own store."""
    return functools.partial(go_in, store)


def turns(events: Sequence[str]) -> list[str]:
    return [event.partition(" ")[2] for event in events if event[0].isdigit()]


def test_everything_is_open_before_the_first_turn_and_closed_after_the_last(go: Go, events: list[str]) -> None:
    go()
    kinds = [event.partition(" ")[0] for event in events]
    assert kinds[:6] == ["open", "begin"] * 3, "one gets ready while the others wait"
    assert set(kinds[6:18]) == {"1", "2", "3", "4"}
    assert kinds[18:21] == ["end"] * 3
    assert kinds[21:] == ["kill", "close"] * 3


def test_every_round_has_a_turn_of_each_in_an_order_of_its_own(go: Go, events: list[str]) -> None:
    go(alternating(blocks=2))
    order = turns(events)
    rounds = [tuple(order[place : place + 3]) for place in range(0, len(order), 3)]
    assert len(rounds) == 8
    assert all(set(each) == {"bare-metal", "container", "vm"} for each in rounds)
    assert len(set(rounds[:4])) == 4
    for each, following in zip(rounds[::2], rounds[1::2], strict=True):
        assert following == each[::-1], "level after every second round"


def test_the_order_follows_from_the_seed_and_the_block() -> None:
    def orders(plan: Plan, block: int) -> list[list[str]]:
        return [[trial.target for trial in order] for order in rounds_of(list(plan.trials_of(block)))]

    assert orders(alternating(), 0) == orders(alternating(), 0)
    assert orders(alternating(), 0) != orders(alternating(), 1)
    assert orders(alternating(), 0) != orders(alternating(seed=8), 0)


def test_commands_take_turns_until_each_has_ended_and_the_last_goes_on_alone(
    go: Go, jobs: TurnsOfFakes, events: list[str]
) -> None:
    jobs.slices = {"bare-metal": 5, "container": 2, "vm": 3}
    jobs.failing = {"vm": {2: MeasurementError("it broke", kind="command")}}
    plan = make_plan(blocks=1)
    command = {"turns": TimeSlices(slice_s=0.5), "scenario": "command", "sizes": None}
    sliced = plan.model_copy(update={"jobs": tuple(job.model_copy(update=command) for job in plan.jobs)})
    records = {record.target: record for record in go(sliced)}
    order = turns(events)
    assert {name: order.count(name) for name in order} == {"bare-metal": 5, "container": 2, "vm": 2}
    assert order[-3:] == ["bare-metal"] * 3
    assert records["vm"].outcome.kind == "command"
    for target in ("bare-metal", "container"):
        assert records[target].elapsed_s == 0.5 * jobs.slices[target]
        alternation: Any = records[target].alternation
        assert [burst.round for burst in alternation.bursts] == [*range(jobs.slices[target])]
        assert alternation.burst_s is None


def test_each_trial_is_a_record_with_its_bursts(go: Go) -> None:
    records: list[Any] = [*go()]
    assert [record.outcome.status for record in records] == ["ok"] * 3
    for record in records:
        assert record.trial_id.endswith("-alternating-b000")
        assert (record.elapsed_s, record.open_s, record.close_s) == (None, None, None)
        assert record.throughput_per_s == 12.0
        assert record.alternation.instances == 3
        assert [burst.round for burst in record.alternation.bursts] == [0, 1, 2, 3]
        assert record.alternation.span_s == 2.0
        assert {burst.heard_s for burst in record.alternation.bursts} == {0.501}
        assert record.resources.serving == Usage(cpu_s=4.0), "the fake meter counts a second in each turn"
        assert record.resources.worker == Usage(cpu_s=3.6)
        assert record.conditions is not None
    taken = [one for record in records for one in record.alternation.bursts]
    assert Counter((one.round, one.position) for one in taken) == Counter((n, m) for n in range(4) for m in range(3))
    in_time = sorted(taken, key=lambda one: one.begun_s)
    assert [(one.round, one.position) for one in in_time] == sorted((one.round, one.position) for one in taken)
    assert all(one.ended_s <= later.begun_s for one, later in itertools.pairwise(in_time))
    assert len({record.alternation.block_s for record in records}) == 1


def test_the_gpus_of_a_block_are_in_each_of_its_records(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GpuUsage(uuid="GPU-a", strangers=["other (process 7)"], throttled_s=1.5)
    monkeypatch.setattr(FakeAccount, "gpus", [gpu])
    assert [record.resources and record.resources.gpus for record in go()] == [[gpu]] * 3


def test_a_job_failing_in_its_turn_is_a_record_and_others_go_on(go: Go, jobs: TurnsOfFakes, events: list[str]) -> None:
    jobs.failing["vm"] = {2: MeasurementError("it was killed", kind="killed")}
    outcomes = {record.target: record.outcome for record in go()}
    assert outcomes["vm"].kind == "killed"
    assert [outcomes[name].status for name in ("bare-metal", "container")] == ["ok", "ok"]
    assert Counter(turns(events)) == {"bare-metal": 4, "container": 4, "vm": 2}
    assert "end vm" not in events


@pytest.mark.parametrize("place", ["open", "begin", "end"])
def test_failing_outside_its_turns_is_a_record(go: Go, targets: FakeTargets, jobs: TurnsOfFakes, place: str) -> None:
    error = MeasurementError("no", kind="timeout")
    jobs.failing["vm"] = {place: error}
    targets.failing = {"vm": error} if place == "open" else {}
    outcomes = {record.target: record.outcome.kind for record in go()}
    assert outcomes == {"bare-metal": None, "container": None, "vm": "timeout"}


def test_a_stop_of_the_suite_in_a_turn_fails_all_trials_of_the_block(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = FakeJob.turn

    def paused(job: FakeJob) -> Turn:
        if (job.name, job.turns) == ("vm", 2):
            signal.raise_signal(signal.SIGCONT)
        return turn(job)

    monkeypatch.setattr(FakeJob, "turn", paused)
    assert [record.outcome.kind for record in go()] == ["suspended"] * 3


def test_a_target_that_differs_from_the_plan_fails(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "suite.records.course.envelope_differences", lambda trial, *_: ["2 threads"] * (trial.target == "vm")
    )
    outcomes = {record.target: record.outcome for record in go()}
    assert outcomes["vm"].kind == "envelope"
    assert outcomes["container"].status == "ok"


def test_ctrl_c_closes_all_and_leaves_no_record(go: Go, jobs: TurnsOfFakes, events: list[str], store: Run) -> None:
    jobs.failing["vm"] = {3: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        go()
    assert Counter(event.partition(" ")[0] for event in events)["close"] == 3
    assert list(store.records()) == []


@pytest.mark.parametrize("repeats_failed", [False, True])
def test_a_block_of_which_one_trial_is_due_is_made_again_as_a_whole(
    go: Go, jobs: TurnsOfFakes, store: Run, events: list[str], repeats_failed: bool
) -> None:
    jobs.failing["vm"] = {1: MeasurementError("no")}
    first = {record.trial_id: record for record in go()}
    jobs.failing.clear()
    events.clear()
    assert (go(), events) == ([], []), "what failed is a record, and the block is whole"
    if repeats_failed:
        store.repeats_failed = True
    else:  # as if it had been interrupted
        store.record_files()[0].unlink()
    again = {record.trial_id: record for record in go()}
    assert again.keys() == first.keys()
    assert Counter(turns(events)) == {"bare-metal": 4, "container": 4, "vm": 4}
    assert {record.outcome.status for record in store.records()} == {"ok"}
    assert (store.directory / MANIFEST).exists()
    manifest: Any = read_manifest(store.directory)
    assert {f"trials/{record_file(trial_id)}" for trial_id in again} <= manifest.files.keys()
    for name, listed in manifest.files.items():
        assert listed == type(listed).of(store.directory / name), "no record looks as if it had been edited"
    events.clear()
    assert (go(), events) == ([], []), "a block that is whole is kept"


def test_a_second_block_replaces_no_better_one(go: Go, jobs: TurnsOfFakes, store: Run, observer: FakeObserver) -> None:
    jobs.failing["vm"] = {1: MeasurementError("no")}
    store.repeats_failed = True
    go()
    before = {record.trial_id: record for record in store.records()}
    jobs.failing["container"] = {2: MeasurementError("killed")}
    assert [record.outcome.status for record in go()].count("failed") == 2
    after = {record.trial_id: record for record in store.records()}
    assert {name: record.model_copy(update={"failed_attempts": 0}) for name, record in after.items()} == before
    counted = {record.target: record.failed_attempts for record in after.values()}
    assert counted["container"] == 1, "the failure of the attempt that is not kept counts"
    assert "2 of these 3 trials were ok before, and these records are kept" in observer.told
    del jobs.failing["vm"]
    go()
    assert {record.target for record in store.records() if record.outcome.status == "ok"} == {"bare-metal", "vm"}


def test_a_sweep_counts_the_attempts_of_a_block_that_is_not_kept(tmp_path: Path, go_in: Go, jobs: TurnsOfFakes) -> None:
    sweep = SweepDirectory(tmp_path)
    sweep.accept(make_sweep(), cells_of(make_sweep()))
    cell = sweep.cell("cell", retries=1)
    jobs.failing["vm"] = {1: MeasurementError("no")}
    go_in(cell)
    jobs.failing["container"] = {2: MeasurementError("killed")}
    go_in(cell)
    assert {name.split("-")[2]: count for name, count in cell.attempts().items()} == {"vm": 2, "container": 1}
    assert len(set(cell.finished())) == 3, "the guest has failed once more than it may"


class Killed(BaseException):
    """What no program can handle."""


@pytest.mark.parametrize(("end", "of_the_guest"), [(KeyboardInterrupt, "ok"), (Killed, "failed")])
def test_what_ends_a_run_between_two_records_mixes_no_blocks(
    end: type[BaseException], of_the_guest: str, go: Go, jobs: TurnsOfFakes, store: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.failing["vm"] = {1: MeasurementError("no")}
    store.repeats_failed = True
    go()
    jobs.failing.clear()
    saved: list[str] = []

    def save_two(run: Run, record: TrialRecord) -> Path:
        saved.append(record.target)
        if len(saved) == 3 and end is Killed:
            raise Killed
        if len(saved) == 3:
            signal.raise_signal(signal.SIGINT)
        return save(run, record)

    save = Run.save
    monkeypatch.setattr(Run, "save", save_two)
    with pytest.raises(end):
        go()
    assert saved[2] == "vm", "that of the guest, which failed before, comes last"
    outcomes = {record.target: record.outcome.status for record in store.records()}
    assert outcomes["vm"] == of_the_guest, "and keeps the block due until then"


def test_a_run_of_both_measures_one_after_the_other_and_then_in_turns(go: Go, store: Run, events: list[str]) -> None:
    plan = make_plan(blocks=1)
    records = go(plan.model_copy(update={"jobs": (*plan.jobs, *alternating(blocks=1).jobs)}))
    alone = make_plan(blocks=1, **store.drawn())
    assert [record.job.design for record in records] == ["sequential"] * 3 + ["alternating"] * 3
    assert [record.elapsed_s is None for record in records] == [False] * 3 + [True] * 3
    assert len({record.trial_id for record in records}) == 6
    assert [record.trial_id for record in records[:3]] == [trial.trial_id for trial in alone.trials()]
    measured = [place for place, event in enumerate(events) if event.startswith("measure")]
    assert max(measured) < min(place for place, event in enumerate(events) if event[0].isdigit())


def test_trials_of_two_models_or_blocks_are_not_open_together() -> None:
    plan = alternating(blocks=2, models=("alexnet", "resnet50"))
    groups = list(together(plan.trials()))
    assert [len(group) for group in groups] == [3] * 4
    assert all(len({(trial.block, trial.job.model) for trial in group}) == 1 for group in groups)


def test_a_scenario_without_turns_says_so(
    targets: FakeTargets, scenario: Any, store: Run, observer: FakeObserver
) -> None:
    loop = Loop(scenario, targets.opened, store, observer, Environment, lambda *_: FakeAccount())
    with pytest.raises(MeasurementError, match="cannot take turns"):
        loop.run(alternating(blocks=1))


def test_a_header_knows_the_arm_and_what_the_trial_took_of_its_block(go: Go, store: Run) -> None:
    record: Any = go()[0]
    header: Any = read_header(store.directory / "trials" / record_file(record.trial_id))
    assert header.arm == f"{record.target}-alternating"
    assert header.duration_s == pytest.approx(record.alternation.block_s / 3)


def test_the_live_line_of_turns_shows_the_round_and_the_time_to_go_at_80_columns() -> None:
    shown = io.StringIO()
    display = Display(Console(file=shown, force_terminal=True, width=80))
    turns = Alternating(rounds=8, burst_steps=5)
    for number, trial in enumerate(make_plan(warmup_blocks=1).trials_of(0), start=1):
        display.clock.expect(trial, 60.0)
        if trial.warm_up:
            display.trial_started(trial.with_job(turns=turns, model="inception_v3"), number, 12)
    display.phase("round", "3 of 8")
    display.close()
    assert "[3/12] warm-up block 0, inception_v3 in turns: round 3 of 8, about " in shown.getvalue()
    assert "12 min to go" in shown.getvalue()
    assert "…" not in shown.getvalue()
