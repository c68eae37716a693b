import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commands.run.prepare import Ready
from commands.sweep.backends import local
from commands.sweep.backends.base import SweepRequest
from commands.sweep.backends.local import Runner
from commands.sweep.resolve import Planned
from suite.errors import BenchError
from suite.interfaces import Measurement, Observer
from suite.plan import Trial
from suite.records.environment import Environment
from suite.records.record import TrialRecord
from suite.sweep.cells import cells_of
from suite.sweep.directory import CellRun, SweepDirectory
from tests.suite.conftest import FakeAccount, FakeObserver, FakeScenario, FakeTargets, make_plan
from tests.suite.sweep.conftest import make_sweep

Make = Callable[..., Runner]


@pytest.fixture
def runner(
    tmp_path: Path,
    targets: FakeTargets,
    scenario: FakeScenario,
    observer: FakeObserver,
    monkeypatch: pytest.MonkeyPatch,
) -> Make:
    monkeypatch.setattr(local, "host_environment", Environment)
    site: Any = SimpleNamespace(opened=targets.opened)

    def make(stop_rule: Any = None, **changes: Any) -> Runner:
        made = make_sweep(**{"blocks": 3} | changes)
        directory = SweepDirectory(tmp_path / "night")
        cells = cells_of(made)
        directory.accept(made, cells)
        common = {"targets": made.targets, "blocks": made.block_count}
        plans = [make_plan(models=(cell.settings["model"],), **common) for cell in cells]
        planned = [Planned(cell, ready=Ready(plan, scenario, site)) for cell, plan in zip(cells, plans, strict=True)]
        request = SweepRequest(tmp_path / "night.toml", made, directory, planned, observer)
        return Runner(request, stop_rule, _open_account=lambda *_: FakeAccount())

    return make


def order(records: list[TrialRecord]) -> list[tuple[int, str]]:
    return list(dict.fromkeys((record.block, record.job.model) for record in records))


def test_every_cell_is_measured_before_the_next_block_begins(runner: Make) -> None:
    made = runner()
    assert made.run(range(3)) is None
    assert order(made.made) == [(block, model) for block in range(3) for model in ("resnet50", "alexnet")]
    assert len(made.made) == 12
    assert len({record.run_id for record in made.made}) == len(made.request.planned)


def test_trials_are_numbered_over_the_whole_sweep_and_those_that_are_there_are_kept(
    runner: Make, observer: FakeObserver
) -> None:
    runner().run(range(3))
    numbers = [told.split()[0] for told in observer.told if told[0].isdigit()]
    assert numbers == [f"{number}/12" for number in range(1, 13)]
    observer.told.clear()
    longer = runner(blocks=4)
    longer.run(range(4))
    assert observer.told[0] == "12 of 16 trials are there already and are kept"
    assert {record.block for record in longer.made} == {3}


def test_what_a_scenario_notes_is_passed_on(
    runner: Make, scenario: FakeScenario, observer: FakeObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noting(trial: Trial, instances: Any, told: Observer, account: Any) -> Measurement:
        told.note(f"a note on {trial.target}")
        return type(scenario).measure(scenario, trial, instances, told, account)

    monkeypatch.setattr(scenario, "measure", noting)
    runner().run([0])
    assert "a note on container" in observer.told


def test_what_fails_is_tried_again_at_the_end_of_its_block(runner: Make, scenario: FakeScenario) -> None:
    scenario.failing["container"] = BenchError("it is broken")
    made = runner(budget={"retries": 2}, matrix={"model": ["resnet50"]}, blocks=1)
    made.run([0])
    (run,) = (made.request.directory.cell(cell.cell_id, 2) for cell in cells_of(made.request.sweep))
    assert [record.target for record in made.made].count("container") == 3
    assert [record.target for record in made.made][-2:] == ["container", "container"]
    assert run.attempts() == {"synthetic-resnet50-container-b000": 3}
    again = runner(budget={"retries": 2}, matrix={"model": ["resnet50"]}, blocks=1)
    again.run([0])
    assert again.made == []


def test_no_block_is_begun_when_the_budget_is_spent_by_earlier_trials_too(runner: Make) -> None:
    # The fake jobs claim 5 s each: four of them are a block.
    first = runner(budget={"total": "20s"})
    assert first.run([0]) is None
    again = runner(budget={"total": "20s"})
    assert again.run(range(3)) == "the budget of 20s is spent"
    assert again.made == []
    more = runner(budget={"total": "10h"})
    assert more.run(range(3)) is None
    assert len(more.made) == 8


def test_a_cell_that_has_enough_is_left_and_the_others_go_on(runner: Make) -> None:
    def stop_rule(run: CellRun) -> str | None:
        return "narrow" if "alexnet" in run.directory.name and list(run.records()) else None

    made = runner(stop_rule)
    assert made.run(range(3)) is None
    assert order(made.made) == [(0, "resnet50"), (0, "alexnet"), (1, "resnet50"), (2, "resnet50")]


def test_names_and_order_stay_when_the_clock_steps_back(runner: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards() -> Iterator[datetime.datetime]:
        now = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
        while True:
            now -= datetime.timedelta(hours=3)
            yield now

    times = backwards()

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, _zone: object = None) -> datetime.datetime:  # type: ignore[override]
            return next(times)

    monkeypatch.setattr("suite.loop.datetime.datetime", Clock)
    monkeypatch.setattr("time.time", lambda: 0.0)
    first = runner()
    first.run([0])
    made = runner()
    made.run(range(3))
    records = [*first.made, *made.made]
    assert [record.started_at for record in records] == sorted((r.started_at for r in records), reverse=True)
    assert order(records) == [(block, model) for block in range(3) for model in ("resnet50", "alexnet")]
    assert len({(record.run_id, record.trial_id) for record in records}) == 12
