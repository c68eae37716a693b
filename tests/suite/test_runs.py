"""Runs are found and summarised, and their records read by every reader, unless a later suite has written them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from analysis.load.records import load, read_record
from suite.errors import RequestError
from suite.plan import Plan
from suite.records.headers import headers, read_head, read_header
from suite.records.reader import NewerRecordError, clean_record
from suite.records.record import SCHEMA_VERSION, TrialRecord
from suite.results.runs import find_run, find_runs, summarise
from suite.results.store import Run
from tests.suite.conftest import FAILED, make_plan, make_record


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
    assert (found.run_id, found.scenario, found.blocks, found.problem) == ("one", "synthetic", 2, None)
    assert (found.ok, found.failed, found.unreadable) == (1, 1, 1)
    assert (found.started_at[:10], found.last_at[:10]) == ("2026-01-01", "2026-01-02")
    assert found.size_bytes == sum(path.stat().st_size for path in run.glob("trials/[a-c].json"))


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


def test_a_plan_that_cannot_be_read_is_in_the_summary(run: Path) -> None:
    (run / "plan.json").write_text("{}")
    assert "is not a plan of this suite" in str(summarise(run).problem)
    assert summarise(run).ok == 1


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


def test_the_gpus_of_an_older_suite_are_read(tmp_path: Path) -> None:
    directory = run_of(tmp_path / "run")
    (path,) = (directory / "trials").iterdir()
    record = json.loads(path.read_bytes())
    gpu = {"pci_address": "0000:01:00.0", "utilisation": 0.5, "peak_memory_bytes": 1000}
    path.write_text(json.dumps(record | {"resources": {"gpus": [gpu]}}))
    (stored,) = Run(directory).records()
    assert [gpu.utilisation for gpu in (stored.resources and stored.resources.gpus) or ()] == [0.5]
    assert load([directory]).trials["gpu_strangers"].isna().all()


def test_a_run_goes_on_under_the_same_plan(tmp_path: Path) -> None:
    shutil.copy(PLAN, tmp_path / "plan.json")
    plan = Plan.model_validate(json.loads(PLAN.read_bytes()))
    Run(tmp_path).begin(plan)
    Run(tmp_path).begin(plan.model_copy(update={"blocks": 5}))


def test_the_data_set_of_an_older_suite_is_one_of_names_and_sizes() -> None:
    records: list[Any] = [
        TrialRecord.model_validate_json(path.read_bytes())
        for path in SAMPLES.rglob("*.json")
        if b'"data_use": {' in (content := path.read_bytes()) and b'"listing_sha256"' not in content
    ]
    assert len(records) > 5
    for record in records:
        assert (record.job.dataset.digest, record.job.dataset.listing_sha256) == ("listing", None)
        assert record.job.dataset.listed_sha256 == record.data_use.sha256


def test_a_record_comes_back_as_it_is_however_it_is_formatted() -> None:
    content = RECORD.read_bytes()
    sorted_keys = json.dumps(json.loads(content), sort_keys=True).encode()
    assert clean_record(content) is content
    assert clean_record(sorted_keys) is sorted_keys


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b"[]", b'{"schema_version": "1"}', b'{"schema_version": 0}']
)
def test_what_is_no_record_comes_back_as_it_is(content: bytes) -> None:
    assert clean_record(content) is content


def test_a_record_of_a_later_suite_is_refused_and_never_run_over(tmp_path: Path) -> None:
    directory = run_of(tmp_path / "run")
    (path,) = (directory / "trials").iterdir()
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(NewerRecordError, match=rf"b\d+\.json: its schema version is {SCHEMA_VERSION + 1}") as caught:
        list(Run(directory).finished())
    assert "the suite that wrote it" in str(caught.value.remedy)
