"""What a sweep's directory holds: the accepted plan, locks, status, estimates, and the pool of its machines."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from suite.differ import Host
from suite.errors import RequestError
from suite.job.envelope import GIB
from suite.job.sharing import Sharing
from suite.plan import Plan
from suite.process_identity import ProcessIdentity
from suite.records.environment import Environment
from suite.records.fields import checked_part
from suite.records.headers import RecordHeader
from suite.records.record import Timeline
from suite.results.files import temporary_name
from suite.results.runs import runs_below
from suite.results.store import DRAWN, Run, request_stop, sweep_temporaries
from suite.sweep.cells import cells_of
from suite.sweep.directory import SweepDirectory
from suite.sweep.estimate import Durations, Guess, durations_below
from suite.sweep.file import Sweep
from suite.sweep.file_transfer import Outbox
from suite.sweep.locks import WHOLE, holders, locked, remove_stale
from suite.sweep.pool import PoolMember, join_pool
from suite.sweep.status import latest_sweep, status_of
from tests.suite.conftest import FAILED, make_plan, make_record
from tests.suite.sweep.conftest import make_sweep


def accept(path: Path, sweep: Sweep) -> SweepDirectory:
    directory = SweepDirectory(path)
    directory.accept(sweep, cells_of(sweep))
    return directory


def test_where_and_by_whom_it_is_run_is_no_change(tmp_path: Path) -> None:
    directory = accept(tmp_path, make_sweep())
    same = make_sweep(output={"directory": "x"}, engine={"kind": "ssh"}, budget={"retries": 5})
    assert directory.changes(same, cells_of(same)) == []
    directory.refuse_changed(same)
    path = tmp_path / "sweep.json"
    before = path.stat()
    accept(tmp_path, make_sweep())
    assert path.stat().st_ino == before.st_ino, "the same plan is not written again"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sha256": "0" * 64}))  # as another version stored it
    directory.refuse_changed(make_sweep())


def test_a_directory_of_a_run_is_refused(tmp_path: Path) -> None:
    Run(tmp_path).begin(make_plan())
    with pytest.raises(RequestError, match="holds a run of bench run"):
        accept(tmp_path, make_sweep())


def test_whichever_machine_begins_a_cell_its_identity_and_order_are_the_sweeps(tmp_path: Path) -> None:
    begun: list[list[Plan]] = []
    for name in ("out", "out", "other"):  # two machines that share a directory, and another sweep of the same plan
        directory = accept(tmp_path / name, make_sweep())
        accepted: Any = directory.accepted()
        copy = tmp_path / f"machine-{len(begun)}"
        copy.mkdir()
        (copy / "sweep.json").write_text(accepted.text())
        cells = [cell.cell_id for cell in cells_of(make_sweep())]
        begun.append([SweepDirectory(copy).cell(cell, 0).begin(make_plan()) for cell in cells])
    orders, identities = ([[getattr(plan, name) for plan in plans] for plans in begun] for name in DRAWN[:2])
    for each in (orders, identities):
        assert each[0] == each[1]
        assert not {*each[0]} & {*each[2]}, "another sweep of the same plan is of other runs"
        assert len({*each[0]}) == len(each[0]), "two cells of a sweep are two runs"


def test_a_longer_sweep_goes_on_in_the_runs_of_the_shorter(tmp_path: Path) -> None:
    run = accept(tmp_path, make_sweep()).cell("cell", 0)
    run.begin(make_plan(blocks=2, warmup_blocks=0))
    run.begin(make_plan(blocks=4, warmup_blocks=1))
    stored = json.loads((tmp_path / "cell/plan.json").read_text())
    assert (stored["blocks"], stored["warmup_blocks"]) == (4, 1)


def test_a_trial_is_finished_when_it_is_ok_or_has_failed_often_enough(tmp_path: Path) -> None:
    run = SweepDirectory(tmp_path).cell("cell", 1)
    run.save(make_record(trial_id="good"))
    run.save(make_record(trial_id="bad", **FAILED))
    assert set(run.finished()) == {"good"}
    run.save(make_record(trial_id="bad", **FAILED))
    assert set(run.finished()) == {"good", "bad"}
    assert sorted(path.name for path in (tmp_path / "cell/attempts").iterdir()) == ["bad.1.json", "bad.2.json"]
    # Killed between writing the attempt and writing the trial.
    (tmp_path / "cell/trials/bad.json").unlink()
    assert set(run.finished()) == {"good", "bad"}
    assert {record.trial_id for record in run.records()} == {"good", "bad"}


def test_the_runs_of_a_sweep_are_its_cells_and_not_those_that_are_gone(tmp_path: Path) -> None:
    directory = accept(tmp_path, make_sweep())
    names = [cell.cell_id for cell in cells_of(make_sweep())]
    for name in (*names, "gone"):
        directory.cell(name, 0).save(make_record())
    assert runs_below(tmp_path) == [tmp_path / name for name in names]
    assert runs_below(tmp_path / names[0]) == [tmp_path / names[0]]
    assert runs_below(tmp_path / "sweep.json") == []


def test_what_another_machine_or_a_living_process_writes_is_not_swept(tmp_path: Path) -> None:
    accept(tmp_path, make_sweep())
    (tmp_path / "cell/trials").mkdir(parents=True)
    own = ProcessIdentity.own()

    def name(**changes: object) -> str:
        return temporary_name(own.model_copy(update=changes))

    dead = {"pid": 2**22 + 1}
    foreign = [".a.json.tmp", f".a.json.{own.host}.{2**22 + 1}.tmp", f"{name(**dead)}x", name(pid="x")]
    elsewhere = {"machine_id": "0" * 16, "boot_id": "0" * 36}
    kept = [name(), name(**elsewhere, **dead), *foreign]
    swept = [name(started_ticks=1.0), name(**dead)]
    for each in (*kept, *swept):
        (tmp_path / "cell/trials" / each).touch()
        (tmp_path / each).touch()
    assert sorted(path.name for path in sweep_temporaries(tmp_path)) == sorted(2 * swept)
    assert {path.name for path in (tmp_path / "cell/trials").iterdir()} == set(kept)


# ---- locks


ELSEWHERE: dict[str, object] = {"machine_id": "b" * 16, "boot_id": "another"}
"""What makes a process one of another machine."""


def leave(path: Path, owner: ProcessIdentity) -> None:
    (path / ".locks").mkdir()
    (path / ".locks/sweep.json").write_text(json.dumps({"name": WHOLE, "owner": owner.model_dump()}))


@pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"started_ticks": 1.0}, {"boot_id": "before"}])
def test_a_lock_of_a_process_that_has_ended_is_taken(
    tmp_path: Path, change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suite.process_identity.machine_id", lambda: "a" * 16)  # a container knows none
    leave(tmp_path, ProcessIdentity.own().model_copy(update=change))
    assert holders(tmp_path) == []
    with locked(tmp_path, WHOLE):
        assert holders(tmp_path)[0].owner == ProcessIdentity.own()


def test_a_lock_of_another_machine_is_respected_until_it_is_said_to_have_ended(tmp_path: Path) -> None:
    leave(tmp_path, ProcessIdentity.own().model_copy(update={"host": "elsewhere", **ELSEWHERE}))
    with pytest.raises(RequestError, match="on elsewhere runs") as caught, locked(tmp_path, WHOLE):
        pytest.fail("taken from another machine")
    assert "--take-over" in str(caught.value.remedy)
    with locked(tmp_path, WHOLE, take_over=True):
        assert holders(tmp_path)[0].owner == ProcessIdentity.own()


@pytest.mark.parametrize(("change", "stays"), [({"pid": 2**22 + 1}, False), (ELSEWHERE, True), ({}, True)])
def test_a_lock_that_nobody_needs_any_more_is_removed_if_its_process_has_ended(
    tmp_path: Path, change: dict[str, object], *, stays: bool
) -> None:
    leave(tmp_path, ProcessIdentity.own().model_copy(update=change))
    remove_stale(tmp_path, WHOLE)
    assert (tmp_path / ".locks/sweep.json").exists() == stays


# ---- status and estimates


def test_status_counts_what_is_done_failed_running_and_missing(tmp_path: Path) -> None:
    made = make_sweep(blocks=2, matrix={"model": ["resnet50"], "profile": ["smoke"]}, budget={"retries": 0})
    directory = accept(tmp_path, made)
    (cell,) = cells_of(made)
    run = directory.cell(cell.cell_id, 0)
    plan = make_plan(targets=("bare-metal", "container"), blocks=2)
    run.begin(plan)
    ids = {(trial.block, trial.target): trial.trial_id for trial in plan.trials()}
    run.save(make_record(trial_id=ids[0, "bare-metal"], target="bare-metal", open_s=1.0, close_s=2.0, block=0))
    run.save(make_record(trial_id=ids[0, "container"], target="container", block=0, **FAILED))
    with locked(tmp_path, "block-001") as lock:
        lock.update(cell=cell.cell_id, trial=ids[1, "bare-metal"])
        now = status_of(tmp_path)
        assert now.state == "running"
        request_stop(directory.path)
        assert status_of(tmp_path).state == "stopping"
    arms = {name: counts.model_dump() for name, counts in now.cells[0].arms.items()}
    assert arms == {
        "bare-metal": {"done": 1, "failed": 0, "running": 1, "missing": 0},
        "container": {"done": 0, "failed": 1, "running": 0, "missing": 1},
    }
    assert now.blocks_left == (1,)
    assert now.left_source == "rough", "no record shows how long the container takes"
    assert now.left_s
    assert status_of(tmp_path).state == "incomplete"


def test_status_counts_a_victim_alone_and_beside_each_aggressor_apart(tmp_path: Path) -> None:
    made = make_sweep(blocks=2, matrix={"model": ["resnet50"], "profile": ["smoke"]})
    directory = accept(tmp_path, made)
    (cell,) = cells_of(made)
    sharing = Sharing(aggressors=("alexnet", "disk"))
    directory.cell(cell.cell_id, 0).begin(make_plan(scenario="shared", targets=("vm",), blocks=2, sharing=sharing))
    arms = {name: counts.missing for name, counts in status_of(tmp_path).cells[0].arms.items()}
    assert arms == {"vm": 2, "vm-beside-alexnet": 2, "vm-beside-disk": 2}


def test_the_latest_sweep_is_the_one_begun_last(tmp_path: Path) -> None:
    for number, name in enumerate(("b", "a")):
        accept(tmp_path / name, make_sweep())
        os.utime(tmp_path / name / "sweep.json", (number, number))
    assert latest_sweep(tmp_path) == tmp_path / "a"


def test_an_estimate_is_the_median_of_earlier_records_of_the_same(tmp_path: Path) -> None:
    plan = make_plan(targets=("bare-metal",), blocks=1)
    (trial,) = plan.trials()
    run = Run(tmp_path / "results/run")
    same = {"target": "bare-metal", "open_s": 1.0, "close_s": 0.5}
    for number, elapsed_s in enumerate((1.0, 3.0, 50.0)):
        run.save(make_record(trial_id=f"t{number}", elapsed_s=elapsed_s, **same))
    run.save(make_record(trial_id="other", elapsed_s=900.0, **same | {"model": "alexnet"}))
    run.save(make_record(trial_id="failed", elapsed_s=900.0, **same | FAILED))
    (tmp_path / "results/run/trials/torn.json").write_text('{"trial')
    durations = durations_below(tmp_path / "results")
    assert durations.of(trial) == 4.5
    assert durations.of(trial.with_job(recipe="tuned")) is None
    assert durations.guess(*make_plan(blocks=1).trials()).source == "rough", "two of its targets never ran"
    assert Durations().of(trial) is None


def header(**changes: Any) -> RecordHeader:
    return RecordHeader.of(make_record(**changes).model_dump_json().encode())


def test_a_trial_beside_an_aggressor_is_estimated_apart_from_one_alone() -> None:
    sharing = Sharing(aggressors=("alexnet",))
    plan = make_plan(scenario="shared", targets=("vm",), sharing=sharing)
    alone, beside = sorted(plan.trials_of(0), key=lambda trial: str(trial.aggressor))
    durations = Durations()
    durations.add(header(scenario="shared", sharing=sharing))
    assert (durations.of(alone), durations.of(beside)) == (5.0, None)
    other = make_plan(scenario="shared", targets=("vm",), sharing=Sharing(aggressors=("alexnet",), copies=2))
    assert [durations.of(trial) for trial in other.trials_of(0)] == [None, None]


def test_an_emulated_guest_says_nothing_of_one_under_kvm() -> None:
    plan = make_plan(targets=("vm",), accelerator="kvm")
    (trial, *_) = plan.trials()
    durations = Durations()
    durations.add(header(accelerator="tcg"))
    assert durations.of(trial) is None
    durations.add(header(accelerator="kvm"))
    assert durations.of(trial) == 5.0


def test_a_trial_lasts_until_the_next_one_begins_unless_there_was_a_pause(tmp_path: Path) -> None:
    run = Run(tmp_path / "results/run")
    (trial,) = make_plan(targets=("vm",), blocks=1).trials()
    for number, begun in enumerate(("10:00:00", "10:00:07", "12:00:00", "12:00:07")):
        run.save(make_record(trial_id=f"t{number}", elapsed_s=5.0, started_at=f"2026-01-01T{begun}+00:00"))
    durations = durations_below(tmp_path / "results")
    assert durations.of(trial) == 6.0, "of 7, 5, 7 and 5 s: the suite itself took 2 s, and once there was a pause"
    assert durations.guess(trial) == Guess(6.0, "records")
    elsewhere = durations_below(tmp_path / "results", here=Host(hostname="another"))
    assert elsewhere.guess(trial).source == "rough"


def test_what_was_never_run_is_guessed_from_other_sizes_and_else_roughly() -> None:
    (trial,) = make_plan(targets=("vm",), blocks=1).trials()
    durations = Durations()
    durations.add(header(elapsed_s=10.0, timeline=Timeline(measured_s=6.0)))
    sizes: Any = trial.job.sizes
    assert durations.guess(trial) == Guess(10.0, "records")
    # 10 s are 2 s, and 4 steps of 2 s: a warm-up and three measured ones.
    longer = trial.with_job(sizes=sizes.model_copy(update={"steps": 9}))
    assert durations.guess(longer) == Guess(22.0, "similar")
    other = trial.with_job(model="inception_v3", sizes=sizes.model_copy(update={"batch": 2 * sizes.batch}))
    assert durations.guess(other).source == "similar"
    assert durations.guess(other).seconds > 10, "it has more operations"
    assert durations.guess(trial.model_copy(update={"target": "container"})).source == "rough"


@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_a_rough_guess_is_longer_where_more_is_done(accelerator: str) -> None:
    trials = make_plan(targets=("bare-metal", "vm"), blocks=1, accelerator=accelerator).trials()
    bare, vm = (Durations().guess(trial).seconds for trial in sorted(trials, key=lambda trial: trial.target))
    assert 1 < bare < vm < 3600


def machine(name: str = "n1", **changed: Any) -> PoolMember:
    facts = {
        "hostname": name, "kernel": "6.1", "cpu_model": "Xeon", "cpus": [0, 1], "memory_bytes": 64 * GIB,
        "mitigations": {"meltdown": "Not affected"},
    }  # fmt: skip
    own = {"suite_version": "1", "image": "abc"}
    own |= {key: changed.pop(key) for key in own if key in changed}
    return PoolMember.model_validate({**own, "environment": checked_part(Environment, {**facts, **changed})})


def test_the_first_machine_sets_what_the_others_must_be_like(tmp_path: Path) -> None:
    join_pool(tmp_path / "out", machine("n1"))
    join_pool(tmp_path / "out", machine("n2"))
    join_pool(tmp_path / "out", machine("n1"))
    with pytest.raises(RequestError, match=r"n3 is unequal to n1.*kernel: n1 6.1, n3 6.2"):
        join_pool(tmp_path / "out", machine("n3", kernel="6.2"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["pool.json"]
    (tmp_path / "out/pool.json").write_text("{}")
    with pytest.raises(RequestError, match="was not written by this suite"):
        join_pool(tmp_path / "out", machine())


def test_of_many_that_come_at_once_one_is_first_and_the_unequal_are_refused(tmp_path: Path) -> None:
    kernels = ["a", "b"] * 10
    start = threading.Barrier(len(kernels))

    def refused(kernel: str) -> bool:
        start.wait()
        try:
            join_pool(tmp_path, machine(kernel, kernel=kernel))
        except RequestError:
            return True
        return False

    with ThreadPoolExecutor(len(kernels)) as pool:
        assert [*pool.map(refused, kernels)] in ([False, True] * 10, [True, False] * 10)


def test_the_outbox_tells_new_and_changed_files_once(tmp_path: Path) -> None:
    old, new = tmp_path / "sweep.json", tmp_path / "cell/trials/x.json"
    old.write_text("{}")
    outbox = Outbox(tmp_path)
    outbox.mark_sent(old)
    assert list(outbox.unsent()) == []
    new.parent.mkdir(parents=True)
    new.write_text("1")
    (tmp_path / "cell/trials/.x.json.tmp").write_text("half")
    assert list(outbox.unsent()) == [new]
    assert list(outbox.unsent()) == []
    os.utime(new, ns=(1, 1))
    assert list(outbox.unsent()) == [new]
