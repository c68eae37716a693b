import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from suite.errors import BenchError, CommandError, MeasurementError, RequestError
from suite.interruption import cleaning_up
from suite.loop import Loop
from suite.plan import Plan, Trial
from suite.records.environment import Environment
from suite.records.fields import checked_part
from suite.records.record import Epochs, Timeline, TrialRecord
from suite.records.usage import Conditions, Resources, Usage
from suite.results.store import Run, StoreError, read_record
from tests.suite.conftest import WORKLOAD, FakeAccount, FakeObserver, FakeScenario, FakeTargets, make_plan

Go = Callable[..., list[TrialRecord]]
HOST = Environment(kernel="6.1", accelerator="none")


@pytest.fixture
def go(targets: FakeTargets, scenario: FakeScenario, store: Run, observer: FakeObserver) -> Go:
    """``go()`` runs two blocks of three targets on the fakes; ``go(plan)`` another plan."""

    def _go(plan: Plan | None = None) -> list[TrialRecord]:
        loop = Loop(scenario, targets.opened, store, observer, lambda: HOST, lambda _trial, _node: FakeAccount())
        return loop.run(plan or make_plan())

    return _go


def saved(store: Run) -> dict[str, TrialRecord]:
    paths = (store.directory / "trials").glob("*.json")
    return {path.stem: TrialRecord.model_validate_json(path.read_bytes()) for path in paths}


@pytest.mark.parametrize(
    ("filesystem", "page_cache", "named"),
    [
        ("tmpfs", None, ["disk:memory"]),
        ("zfs", "cold", ["disk:zfs"]),
        ("tmpfs", "warm", []),
        ("ext4", None, []),
        (None, None, []),
    ],
)
def test_a_disk_that_is_memory_is_named(
    filesystem: str | None, page_cache: Any, named: list[str], go: Go, scenario: FakeScenario
) -> None:
    scenario.seen = {"filesystem": filesystem}
    record: Any = go(make_plan(page_cache=page_cache))[0]
    assert (record.environment.target.filesystem, record.substitutes) == (filesystem, named)


@pytest.mark.parametrize(
    ("filesystem", "scratch_bytes", "named"),
    [
        ("tmpfs", {"resnet50": 1 << 20}, ["disk:memory"]),
        ("zfs", {"resnet50": 1 << 20}, ["disk:zfs"]),
        ("ext4", {"resnet50": 1 << 20}, []),
        ("tmpfs", {}, []),
    ],
)
def test_checkpoints_on_a_disk_that_is_memory_are_named_whatever_the_data_lies_on(
    filesystem: str, scratch_bytes: dict[str, int], named: list[str], go: Go, scenario: FakeScenario
) -> None:
    """Without a scratch volume they go to /tmp, which is memory in every target."""
    scenario.seen = {"filesystem": "ext4"}
    checkpoints = {"seconds": [0.1], "size_bytes": 4096, "filesystem": filesystem}
    scenario.epochs = checked_part(Epochs, {"steps": 3, "seconds": [0.6], "checkpoints": checkpoints})
    record: Any = go(make_plan(page_cache="warm", scratch_bytes=scratch_bytes))[0]
    assert record.substitutes == named


def test_every_trial_becomes_a_record_with_what_was_measured(
    go: Go, store: Run, targets: FakeTargets, scenario: FakeScenario, events: list[str]
) -> None:
    targets.substitutes, scenario.substitutes = ("accelerator:tcg",), ("open-files:4096", "accelerator:tcg")
    records = go()
    assert [record.outcome.status for record in records] == ["ok"] * 6
    assert saved(store) == {record.trial_id: record for record in records}
    first = records[0]
    plan: Any = store.plan()
    assert events == [f"{what} {each.trial_id}" for each in plan.trials() for what in ("open", "measure", "close")]
    trial = next(plan.trials())
    assert (first.trial_id, first.target, first.block, first.position) == (trial.trial_id, trial.target, 0, 0)
    assert (first.throughput_per_s, first.elapsed_s, first.clock_ratio) == (10.0, 5.0, 1.0)
    assert (first.weights_sha256, first.details, first.run_id) == ("ab" * 32, {"devices": 1}, plan.run_id)
    assert first.open_s == 0.5, "what the target itself needed"
    assert first.close_s is not None
    assert first.substitutes == ["accelerator:tcg", "open-files:4096"]
    assert first.conditions == Conditions(interval_s=5.0, other_cpu_s=0.0)
    assert first.resources == Resources(serving=Usage(cpu_s=5.0), worker=Usage(cpu_s=4.0))
    assert first.job == trial.job
    assert first.global_batch == trial.job.global_batch is not None
    assert first.environment.host == HOST
    assert first.environment.target is not None


LASTING = WORKLOAD.model_copy(update={"settle_s": 5.0, "least_s": 20.0})


def test_the_first_trial_fixes_the_steps_of_all_and_a_run_that_goes_on_keeps_them(
    go: Go, scenario: FakeScenario, store: Run, observer: FakeObserver
) -> None:
    scenario.chosen_steps = 8
    plan = make_plan(sizes=LASTING)
    scenario.failing = {"vm": MeasurementError("no", kind="short")}
    made = go(plan)
    assert [record.outcome.status for record in made].count("failed") == 2, "one that fails fixes nothing"
    fixed = LASTING.fixed(8)
    assert [record.job.sizes for record in made if record.outcome.status == "ok"] == [fixed] * 4
    stored: Any = store.plan()
    assert stored.job.sizes == fixed
    assert observer.told.count("each trial of resnet50 takes 8 steps") == 1
    scenario.chosen_steps = 9
    scenario.failing = {}
    more = go(plan.model_copy(update={"blocks": 3}))
    assert [record.job.sizes for record in more] == [fixed] * 3
    other = make_plan(sizes=LASTING.model_copy(update={"batch": 4}))
    with pytest.raises(RequestError, match="a run of another plan"):
        go(other)


def test_where_other_machines_run_blocks_no_trial_fixes_the_steps(
    targets: FakeTargets, scenario: FakeScenario, store: Run, observer: FakeObserver
) -> None:
    scenario.chosen_steps = 8
    account: Any = lambda *_: FakeAccount()  # noqa: E731
    loop = Loop(scenario, targets.opened, store, observer, lambda: HOST, account, fixes_steps=False)
    made = loop.run(make_plan(sizes=LASTING))
    assert [record.job.sizes for record in made] == [LASTING] * 6


def test_an_opening_that_fails_is_a_record_and_the_run_goes_on(go: Go, targets: FakeTargets, events: list[str]) -> None:
    targets.failing["vm"] = MeasurementError(
        "the guest was not ready", kind="boot", command=["qemu", "-m"], output_tail="panic", remedy="look"
    )
    records = go()
    failed = [record for record in records if record.outcome.status == "failed"]
    assert [record.target for record in failed] == ["vm", "vm"]
    assert len(records) == 6
    outcome = failed[0].outcome
    assert (outcome.kind, outcome.message, outcome.command) == ("boot", "the guest was not ready", ["qemu", "-m"])
    assert (outcome.output_tail, outcome.remedy) == ("panic", "look")
    assert (failed[0].throughput_per_s, failed[0].elapsed_s) == (None, None)
    assert (failed[0].open_s, failed[0].conditions, failed[0].resources) == (None,) * 3, (
        "what was not reached is absent"
    )
    assert not any(event.startswith("measure") and "-vm-" in event for event in events)


def test_a_job_that_fails_is_a_record_and_its_target_closed(go: Go, scenario: FakeScenario, events: list[str]) -> None:
    scenario.failing["container"] = CommandError(["python3"], 9, "line\nMemoryError\n")
    records = go()
    failed = [record for record in records if record.target == "container"]
    assert [record.outcome.kind for record in failed] == ["command", "command"]
    assert failed[0].outcome.message == "python3 ended with exit status 9: MemoryError"
    assert failed[0].outcome.output_tail == "line\nMemoryError\n"
    assert failed[0].open_s is not None, "opening was reached"
    assert failed[0].conditions is not None
    assert failed[0].resources == Resources(serving=Usage(cpu_s=5.0)), "the job did not come to say what it used"
    assert failed[0].environment.target is None
    assert events.count(f"close {failed[0].trial_id}") == 1


def test_a_target_that_departs_from_its_envelope_is_a_failed_record_saying_how(go: Go, scenario: FakeScenario) -> None:
    scenario.seen = {"threads": 1, "memory_bytes": 1 << 30}
    record = go()[0]
    assert record.outcome.kind == "envelope"
    assert record.outcome.message == (
        "the target differs from the plan: 1 threads instead of 2; 1073741824 bytes of memory instead of 2147483648"
    )
    assert (record.throughput_per_s, record.elapsed_s, record.steps) == (None,) * 3
    assert record.environment.target is not None, "what it attested is kept"
    assert record.environment.target.threads == 1


def test_ctrl_c_closes_the_target_and_keeps_what_was_finished(
    go: Go, scenario: FakeScenario, store: Run, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = scenario.measure

    def interrupted(*given: object) -> object:
        if len(saved(store)) == 2:
            raise KeyboardInterrupt
        return measure(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(scenario, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        go()
    plan: Any = store.plan()
    ids = [trial.trial_id for trial in plan.trials()]
    assert set(saved(store)) == set(ids[:2]), "each was saved before the next began"
    assert events[-1] == f"close {ids[2]}"


def test_ctrl_c_ends_the_run_even_where_an_error_of_the_closing_takes_its_place(
    go: Go, scenario: FakeScenario, store: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> object:
        signal.signal(signal.SIGINT, cleaning_up)  # as the command line does
        raise MeasurementError("the container could not be removed") from KeyboardInterrupt()

    monkeypatch.setattr(scenario, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        go()
    assert saved(store) == {}


def test_a_run_goes_on_where_it_was_and_what_failed_stays_as_it_is(
    go: Go, targets: FakeTargets, store: Run, events: list[str], observer: FakeObserver
) -> None:
    targets.failing["vm"] = MeasurementError("no")
    go()
    before = saved(store)
    next(iter(store.record_files())).unlink()  # as if it had been interrupted
    targets.failing.clear()
    events.clear()
    (again,) = go()
    assert again.trial_id == min(before)
    assert "5 of 6 trials are there already and are kept" in observer.told
    assert sum(record.outcome.status == "failed" for record in saved(store).values()) == 2
    assert go() == []
    assert {record.block for record in go(make_plan(blocks=3))} == {2}


def test_what_failed_is_repeated_on_request_and_the_failure_stays_counted(
    go: Go, targets: FakeTargets, store: Run, events: list[str], observer: FakeObserver
) -> None:
    targets.failing["vm"] = MeasurementError("no")
    before = {record.trial_id: record for record in go()}
    store.repeats_failed = True
    go()
    targets.failing.clear()
    events.clear()
    again = go()
    assert [(record.target, record.outcome.status) for record in again] == [("vm", "ok")] * 2
    assert {event.split()[1] for event in events} == {i for i, r in before.items() if r.target == "vm"}
    assert "4 of 6 trials are there already and are kept" in observer.told
    counted = {record.target: record.failed_attempts for record in store.records()}
    assert counted == {"bare-metal": 0, "container": 0, "vm": 2}
    attempts = [read_record(path) for path in sorted((store.directory / "attempts").iterdir())]
    assert [one and (one.outcome.message, one.failed_attempts) for one in attempts] == [("no", 0), ("no", 1)] * 2
    assert go() == []


def test_a_store_that_cannot_be_written_ends_the_run_and_is_no_failed_trial(
    go: Go, targets: FakeTargets, store: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets.failing = dict.fromkeys(("bare-metal", "container", "vm"), StoreError("the ledger cannot be written"))
    with pytest.raises(StoreError):
        go()
    assert saved(store) == {}
    targets.failing.clear()
    monkeypatch.setattr(store, "save", Mock(side_effect=StoreError("cannot write: No space left on device")))
    with pytest.raises(StoreError):
        go()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (BenchError("it is broken", remedy="mend it"), ("error", "it is broken", "mend it", "")),
        (ZeroDivisionError("by a mistake"), ("mistake", "by a mistake", "report it with this record", "Traceback")),
    ],
)
def test_any_error_is_named_in_the_record_and_the_next_trial_is_measured(
    error: Exception, told: tuple[str, ...], go: Go, scenario: FakeScenario
) -> None:
    scenario.failing = {"vm": error}
    outcomes = {record.target: record.outcome for record in go(make_plan(blocks=1))}
    failed = outcomes.pop("vm")
    assert {outcome.status for outcome in outcomes.values()} == {"ok"}
    found = (failed.kind, failed.message, failed.remedy, failed.output_tail)
    assert [each for each, part in zip(found, told, strict=True) if part not in str(each)] == []
    assert failed.command == []


@pytest.mark.parametrize(
    ("failing", "told"),
    [
        (None, ("suspended", "stopped (SIGSTOP)")),
        (MeasurementError("it had not ended", kind="timeout"), ("suspended", "stopped (SIGSTOP)")),
        (MeasurementError("the suite read the lines late", kind="clock"), ("suspended", "stopped (SIGSTOP)")),
        (MeasurementError("no memory", kind="out-of-memory"), ("out-of-memory", "no memory")),
    ],
)
def test_a_trial_during_which_the_suite_was_stopped_fails_and_the_next_is_measured(
    failing: Exception | None, told: tuple[str, str], go: Go, scenario: FakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = scenario.measure
    scenario.failing = {"vm": failing} if failing else {}

    def paused(trial: Trial, *more: Any) -> object:
        if trial.target == "vm":  # a real SIGSTOP would stop the tests, and their shell would take the terminal back
            signal.raise_signal(signal.SIGCONT)
        return measure(trial, *more)

    monkeypatch.setattr(scenario, "measure", paused)
    before = signal.getsignal(signal.SIGCONT)
    outcomes = {record.target: record.outcome for record in go(make_plan(blocks=1))}
    failed = outcomes.pop("vm")
    assert {outcome.status for outcome in outcomes.values()} == {"ok"}
    assert (failed.kind, told[1] in str(failed.message)) == (told[0], True)
    assert signal.getsignal(signal.SIGCONT) == before


@pytest.mark.parametrize(("exit_s", "kind"), [(0.6, None), (0.5, "clock"), (1.5, "clock"), (None, None)])
def test_a_trial_whose_timeline_the_audit_would_refuse_fails(
    exit_s: float | None, kind: str | None, go: Go, scenario: FakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts_s = {"launch_s": 0.2, "imports_s": 1.0, "build_s": 1.0, "warmup_s": 0.5, "measured_s": 1.0, "teardown_s": 0.3}
    timeline = Timeline(**parts_s, exit_s=exit_s)
    measure = scenario.measure
    monkeypatch.setattr(scenario, "measure", lambda *asked: measure(*asked).changed(timeline=timeline))
    record = go(make_plan(blocks=1, targets=("vm",)))[0]
    assert record.outcome.kind == kind
    if kind:
        assert "and 5.000 s passed on the host's" in str(record.outcome.message)


def test_an_observer_hears_each_trial_and_nothing_between_measuring_and_closing(go: Go, observer: FakeObserver) -> None:
    go(make_plan(blocks=1, targets=("vm",)))
    name = "synthetic-resnet50-vm-b000"
    assert observer.told == [f"1/1 {name}", "opening", "measuring", "closing", f"{name} ok"]


@pytest.fixture
def with_models(scenario: FakeScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trial keeps a model of 7 MB."""
    measure, kept = scenario.measure, {"ab" * 32: b"numbers" * 1_000_000}
    monkeypatch.setattr(scenario, "measure", lambda *asked: measure(*asked).changed(models=kept))


@pytest.mark.usefixtures("with_models")
def test_a_record_is_saved_before_its_models_fill_the_disk(go: Go, store: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    save, there = store.save, []

    def saving(record: TrialRecord) -> Path:
        there.append([path.name for path in store.directory.glob("models/*")])
        return save(record)

    monkeypatch.setattr(store, "save", saving)
    go()
    assert there == [[], *[[f"{'ab' * 32}.pt"]] * 5]


@pytest.mark.usefixtures("with_models")
def test_a_trial_whose_models_fill_the_disk_keeps_its_measurement_and_ends_the_run(
    go: Go, store: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = StoreError("cannot write models: No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(store, "keep_models", Mock(side_effect=full))
        with pytest.raises(StoreError, match="No space left on device"):
            go()
    (record,) = saved(store).values()
    assert (record.outcome.status, record.throughput_per_s) == ("ok", 10.0)
    assert len(go()) == 5
    assert {record.outcome.status for record in saved(store).values()} == {"ok"}


@pytest.mark.usefixtures("with_models")
def test_no_trial_is_measured_for_whose_models_there_is_no_space(
    go: Go, store: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [8_000_000, 8_000_000, 6_000_000]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free.pop(0)))
    with pytest.raises(StoreError, match="the models of the next trial need 7 MB, and 6 MB are free") as caught:
        go()
    assert len(saved(store)) == 2
    assert "bench run" not in str(caught.value.remedy), "a cell of a sweep is refused there"


@pytest.mark.usefixtures("with_models")
def test_a_trial_that_departs_from_its_plan_keeps_no_model(go: Go, store: Run, scenario: FakeScenario) -> None:
    scenario.seen = {"threads": 7}
    assert {record.outcome.status for record in go()} == {"failed"}
    assert not (store.directory / "models").exists()
