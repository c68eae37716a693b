import errno
import json
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import ValidationError

from analysis.load.records import load, read_record
from suite.errors import RequestError
from suite.job.envelope import Envelope
from suite.plan import Plan
from suite.records.headers import headers, read_head, read_header
from suite.records.reader import NewerRecordError, clean_record
from suite.records.record import SCHEMA_VERSION, TrialRecord
from suite.results import store
from suite.results.layout import latest_run
from suite.results.runs import find_run, find_runs
from suite.results.store import Run, StoreError, new_run_directory, stored_plan, write_atomic
from suite.results.summary import summarise
from suite.version import suite_version
from tests.suite.conftest import FAILED, make_plan, make_record


@pytest.mark.parametrize("end", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_a_full_disk_and_ctrl_c_leave_the_old_content_and_no_temporary(
    end: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    write_atomic(path, "old")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=end))
    with pytest.raises((StoreError, KeyboardInterrupt)) as caught:
        write_atomic(path, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file.json", "old")]
    assert isinstance(caught.value, StoreError) == isinstance(end, OSError)
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


def _hold(directory: str, held: Any, release: Any) -> None:
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


def test_a_run_has_an_identity_which_neither_its_directory_nor_its_plan_decides(tmp_path: Path) -> None:
    begun = [Run(tmp_path / place / "night").begin(make_plan()) for place in ("a", "b")]
    assert begun[0].run_id != begun[1].run_id
    (tmp_path / "a/night").rename(tmp_path / "moved")
    longer = Run(tmp_path / "moved").begin(make_plan(blocks=6))
    assert (longer.run_id, longer.suite_version) == (begun[0].run_id, suite_version())
    assert {trial.run_id for trial in longer.trials()} == {longer.run_id}


def test_a_plan_that_does_not_say_which_run_it_is_of_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(make_plan(run_id=None).model_dump_json())
    with pytest.raises(RequestError, match="run_id is missing"):
        Run(tmp_path).begin(make_plan())


def test_a_plan_that_has_not_begun_has_the_order_of_its_seed() -> None:
    targets = [trial.target for trial in make_plan(blocks=3).trials()]
    first, second, third = ("vm", "container", "bare-metal"), ("bare-metal", "vm", "container"), ("vm", "container")
    assert targets == [*first, *second, *third, "bare-metal"]


def test_another_plan_is_refused_with_what_differs_and_the_old_one_stays(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.begin(make_plan())
    with pytest.raises(RequestError, match="another plan: blocks, layers, seed differ") as caught:
        run.begin(make_plan(seed=8, engine="docker", blocks=3))
    assert "--out" in str(caught.value.remedy)
    assert run.plan() == make_plan(**run.drawn())


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


def test_trials_with_a_record_are_finished_and_failed_ones_unless_they_are_repeated(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(make_record(trial_id="good"))
    run.save(make_record(trial_id="bad", **FAILED))
    (tmp_path / "trials/foreign.json").write_text('{"schema_version": 1}')
    (tmp_path / "trials/cut.json").write_text('{"schema_ver')
    (tmp_path / "trials/.other.json.tmp").write_text("")
    assert list(run.finished()) == ["bad", "good"]
    assert list(Run(tmp_path, repeats_failed=True).finished()) == ["good"]
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


def test_equal_models_are_one_file_which_goes_with_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.keep_models({"ab" * 32: b"first", "cd" * 32: b"other"})
    run.keep_models({"ab" * 32: b"again"})
    models = {path.name: path.read_bytes() for path in (run.directory / "models").iterdir()}
    assert models == {f"{'ab' * 32}.pt": b"first", f"{'cd' * 32}.pt": b"other"}


def test_models_that_cannot_be_written_are_named_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.write_atomic

    def full(path: Path, *content: Any, **options: Any) -> None:
        if path.stem.startswith("ab"):
            raise StoreError("cannot write it: No space left on device")
        write(path, *content, **options)

    monkeypatch.setattr(store, "write_atomic", full)
    run = Run(tmp_path / "run")
    with pytest.raises(StoreError, match=f"1 of 2 models could not be kept, {'ab' * 32}.pt: .*No space left"):
        run.keep_models({"ab" * 32: b"first", "cd" * 32: b"other"})
    assert [path.stem for path in (run.directory / "models").iterdir()] == ["cd" * 32]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    store = Run(tmp_path / "results/one")
    store.begin(make_plan())
    store.save(make_record(trial_id="a", started_at="2026-01-02T00:00:00+00:00"))
    store.save(make_record(trial_id="b", started_at="2026-01-01T00:00:00+00:00", **FAILED))
    return store.directory


def test_a_summary_says_what_a_run_is_and_how_its_trials_ended(run: Path) -> None:
    (run / "trials/c.json").write_text("{")
    (run / "trials/.d.json.tmp").write_text("{")
    found = summarise(run)
    identity = stored_plan(run).run_id
    assert (found.run_id, found.scenario, found.blocks, found.problem) == (identity, "synthetic", 2, None)
    assert (found.ok, found.failed, found.unreadable) == (1, 1, 1)
    assert (found.started_at[:10], found.last_at[:10]) == ("2026-01-01", "2026-01-02")
    assert found.size_bytes == sum(path.stat().st_size for path in run.glob("trials/[a-c].json"))
    (run / "plan.json").write_text("{}")
    assert "is not a plan of this suite" in str(summarise(run).problem)
    assert summarise(run).ok == 1


def test_a_record_that_is_removed_while_a_run_is_listed_is_left_out(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    glob = Path.glob
    gone = run / "trials/gone.json"
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [*glob(self, pattern), gone])
    assert [path.name for path in Run(run).record_files()] == ["a.json", "b.json"]
    assert (summarise(run).ok, len([*headers(run)])) == (1, 2)


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_a_header_is_read_however_the_record_is_formatted(run: Path, indent: int | None) -> None:
    for path in run.glob("trials/*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()), indent=indent, sort_keys=indent == 4))
    expected = [("a", "2026-01-02", True), ("b", "2026-01-01", False)]
    assert [(one.trial_id, one.started_at[:10], one.ok) for one in headers(run)] == expected
    assert (summarise(run).ok, summarise(run).failed) == (1, 1)


def test_a_record_whose_outcome_stands_beyond_its_beginning_is_still_told(run: Path) -> None:
    path = Run(run).save(make_record(trial_id="long"))
    path.write_text(json.dumps({"long": "x" * 10_000} | json.loads(path.read_text()), indent=1))
    head: Any = read_head(path)
    assert (head.trial_id, head.ok) == ("long", True)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"outcome": 1, "started_at": 2}', "[" * 5000, "\x00"])
def test_a_file_that_is_no_record_is_unreadable_and_no_failure(run: Path, content: str) -> None:
    (run / "trials/c.json").write_text(content)
    assert (read_header(run / "trials/c.json"), read_head(run / "trials/c.json")) == (None, None)
    assert summarise(run).unreadable == 1


def test_runs_are_found_in_directories_and_sweeps_and_links_are_not_followed(run: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name in ("sweep/x", "sweep/y"):
        Run(results / name).begin(make_plan())
    (results / "link").symlink_to(run)
    (results / "empty").mkdir()
    assert find_runs([results]) == [run, results / "sweep/x", results / "sweep/y"]
    assert find_runs([run, run]) == [run]
    with pytest.raises(RequestError, match="no directory"):
        find_runs([tmp_path / "gone"])


def test_a_run_is_found_by_its_directory_or_its_id(run: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    Run(results / "s/x").begin(make_plan())
    Run(results / "t/x").begin(make_plan())
    assert find_run(str(run)) == find_run("one", results) == run
    assert find_run("t/x", results) == results / "t/x"
    with pytest.raises(RequestError, match="the name of 2 runs"):
        find_run("x", results)


def test_what_was_not_measured_is_null_and_not_zero() -> None:
    record = make_record()
    written = json.loads(record.model_dump_json())
    assert {written[name] for name in ("open_s", "steps", "clock_ratio", "conditions", "resources")} == {None}
    assert (written["environment"]["host"]["memory_bytes"], written["schema_version"]) == (None, 3)
    with pytest.raises(ValidationError, match="frozen"):
        record.elapsed_s = 1.0


SAMPLES = Path(__file__).parents[1] / "samples"
RECORD, PLAN = SAMPLES / "record.json", SAMPLES / "plan.json"


def run_of(directory: Path) -> Path:
    """A run's directory with the sample in it."""
    (directory / "trials").mkdir(parents=True)
    shutil.copy(RECORD, directory / "trials" / f"{json.loads(RECORD.read_bytes())['trial_id']}.json")
    shutil.copy(PLAN, directory / "plan.json")
    return directory


def test_a_record_is_read_by_every_reader(tmp_path: Path) -> None:
    directory = run_of(tmp_path / "run")
    (trial_id,) = Run(directory).finished()
    trials = load([directory]).trials
    assert trials["trial_id"].tolist() == [trial_id]
    assert trials["throughput_per_s"].tolist() == [13.25]
    content = clean_record(RECORD.read_bytes())
    assert TrialRecord.model_validate_json(content).schema_version == SCHEMA_VERSION
    assert read_record(str(RECORD)).elapsed_s == 5.5


def test_a_run_goes_on_under_the_same_plan(tmp_path: Path) -> None:
    shutil.copy(PLAN, tmp_path / "plan.json")
    plan = Plan.model_validate(json.loads(PLAN.read_bytes()))
    Run(tmp_path).begin(plan)
    Run(tmp_path).begin(plan.model_copy(update={"blocks": 5}))


def test_a_record_comes_back_as_it_is_however_it_is_formatted_and_so_does_what_is_none() -> None:
    content = RECORD.read_bytes()
    sorted_keys = json.dumps(json.loads(content), sort_keys=True).encode()
    foreign = (b"", b"{", b"[" * 100_000, b"[]", b'{"schema_version": "1"}', b'{"schema_version": 0}')
    for text in (content, sorted_keys, *foreign):
        assert clean_record(text) is text, text[:30]


def test_a_record_of_a_later_suite_is_refused_and_never_run_over(tmp_path: Path) -> None:
    directory = run_of(tmp_path / "run")
    (path,) = (directory / "trials").iterdir()
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(NewerRecordError, match=rf"b\d+\.json: its schema version is {SCHEMA_VERSION + 1}") as caught:
        list(Run(directory).finished())
    assert "the suite that wrote it" in str(caught.value.remedy)
