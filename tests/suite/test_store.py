import errno
import json
import multiprocessing
import multiprocessing.synchronize
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.errors import RequestError
from suite.job.envelope import Envelope
from suite.results.layout import latest_run
from suite.results.store import Run, StoreError, new_run_directory, write_atomic
from tests.suite.conftest import FAILED, make_plan, make_record


def full_disk(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupted(_descriptor: int) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", [full_disk, interrupted])
def test_a_full_disk_and_ctrl_c_leave_the_old_content_and_no_temporary(
    end: Callable[[int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    write_atomic(path, "old")
    monkeypatch.setattr(os, "fsync", end)
    with pytest.raises((StoreError, KeyboardInterrupt)) as caught:
        write_atomic(path, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file.json", "old")]
    if isinstance(caught.value, StoreError):
        assert f"cannot write {path}: No space left on device" in caught.value.message
        assert "--out" in str(caught.value.remedy)


def test_the_content_is_on_the_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    path = tmp_path / "file.json"
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.exists()))
    write_atomic(path, "new")
    assert synced == [False, True], "the file before the renaming, its directory after it"


def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        write_atomic(tmp_path / "file/record.json", "new")
    with pytest.raises(RequestError, match="cannot write"), Run(tmp_path / "file/run").exclusive():
        pytest.fail("a run was begun below a file")


def _hold(
    directory: str, held: "multiprocessing.synchronize.Event", release: "multiprocessing.synchronize.Event"
) -> None:
    with Run(Path(directory)).exclusive():
        held.set()
        release.wait(120)


def test_a_run_is_held_against_another_process_and_given_back(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(tmp_path), held, release))
    other.start()
    try:
        assert held.wait(120)
        with pytest.raises(RequestError, match="another bench is writing"), Run(tmp_path).exclusive():
            pytest.fail("two hold the same run")
    finally:
        release.set()
        other.join(120)
    with pytest.raises(KeyError), Run(tmp_path).exclusive():
        raise KeyError
    with Run(tmp_path).exclusive():
        assert other.exitcode == 0


def test_two_runs_of_one_plan_have_two_orders_and_each_keeps_its_own(tmp_path: Path) -> None:
    begun = [Run(tmp_path / str(number)).begin(make_plan(blocks=4)) for number in range(8)]
    assert len({begun_plan.order_seed for begun_plan in begun}) == 8
    assert len({tuple(trial.trial_id for trial in begun_plan.trials()) for begun_plan in begun}) > 1
    longer = Run(tmp_path / "0").begin(make_plan(blocks=6))
    assert list(longer.trials())[:12] == list(begun[0].trials())
    assert Run(tmp_path / "0").plan() == longer


def test_a_run_that_an_older_suite_has_begun_keeps_its_order(tmp_path: Path) -> None:
    stored = json.loads(make_plan(blocks=2).model_dump_json())
    del stored["order_seed"]
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    assert Run(tmp_path).begin(make_plan(blocks=5)) == make_plan(blocks=5)
    targets = [trial.target for trial in make_plan(blocks=3).trials()]
    first, second, third = ("vm", "container", "bare-metal"), ("bare-metal", "vm", "container"), ("vm", "container")
    assert targets == [*first, *second, *third, "bare-metal"]


def test_another_plan_is_refused_with_what_differs_and_the_old_one_stays(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.begin(make_plan())
    with pytest.raises(RequestError, match="another plan: blocks, layers, seed differ") as caught:
        run.begin(make_plan(seed=8, engine="docker", blocks=3))
    assert "--out" in str(caught.value.remedy)
    assert run.plan() == make_plan(order_seed=run.order_seed())


def on_cpus(*cpus: int, chosen: bool = True, **changed: Any) -> Envelope:
    return Envelope(cpus=cpus, memory_bytes=1 << 30, threads=2, node_chosen=chosen, **changed)


def test_which_cpus_a_node_has_chosen_is_no_other_plan_and_how_many_is(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.begin(make_plan(envelope=on_cpus(2, 3, node_cpus=(4, 5))))
    before = (tmp_path / "plan.json").read_bytes()
    run.begin(make_plan(envelope=on_cpus(6, 8, node_cpus=(0, 1))))
    assert (tmp_path / "plan.json").read_bytes() == before
    others = [on_cpus(6, 8, node_cpus=(0, 1), **more) for more in ({"chosen": False}, {"pinning": "quota"})]
    for other in (on_cpus(2, 3, 4, node_cpus=(4, 5)), on_cpus(6, 8), *others):
        with pytest.raises(RequestError, match="another plan: envelope differ"):
            run.begin(make_plan(envelope=other))
    own = Run(tmp_path / "own")
    own.begin(make_plan(envelope=on_cpus(2, 3, chosen=False)))
    with pytest.raises(RequestError, match="another plan: envelope differ"):
        own.begin(make_plan(envelope=on_cpus(3, 4, chosen=False)))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_plan_that_is_none_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(RequestError, match=r"plan\.json is not a plan of this suite"):
        Run(tmp_path).begin(make_plan())
    assert (tmp_path / "plan.json").read_bytes() == content


def test_only_trials_that_are_ok_are_finished(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(make_record(trial_id="good"))
    run.save(make_record(trial_id="bad", **FAILED))
    (tmp_path / "trials/foreign.json").write_text('{"schema_version": 1}')
    (tmp_path / "trials/cut.json").write_text('{"schema_ver')
    (tmp_path / "trials/.other.json.tmp").write_text("")
    assert list(run.finished()) == ["good"]
    assert list(Run(tmp_path / "new").finished()) == []


def test_the_latest_run_is_the_one_that_was_written_last_whatever_its_name(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no run in") as caught:
        latest_run(tmp_path)
    assert "bench run" in str(caught.value.remedy)
    for name in ("zero", "20260102T000000-1", "20260101T000000-9"):
        Run(tmp_path / name).begin(make_plan())
    (tmp_path / "20270101T000000-1").mkdir()
    assert latest_run(tmp_path).name == "20260101T000000-9", "without records the last begun"
    for at_ns, name in enumerate(("20260102T000000-1", "zero"), start=1):
        Run(tmp_path / name).save(make_record())
        os.utime(tmp_path / name / "trials", ns=(at_ns, at_ns))
    assert latest_run(tmp_path).name == "zero"


def test_a_new_run_has_a_directory_of_its_own_that_sorts_by_time(tmp_path: Path) -> None:
    directory = new_run_directory(tmp_path)
    assert directory.parent == tmp_path
    assert not directory.exists()
    assert directory.name > "20260101T000000"
    assert directory.name.endswith(f"-{os.getpid()}")
    assert Run(directory).run_id == directory.name


def test_equal_models_are_one_file_which_goes_with_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.keep_models({"ab" * 32: b"first", "cd" * 32: b"other"})
    run.keep_models({"ab" * 32: b"again"})
    models = {path.name: path.read_bytes() for path in (run.directory / "models").iterdir()}
    assert models == {f"{'ab' * 32}.pt": b"first", f"{'cd' * 32}.pt": b"other"}
