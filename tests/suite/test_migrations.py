"""Every past version of a record, as the suite of that time wrote it (``tests/samples``), is read by every reader."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from analysis.explain.attribution import Parts
from analysis.load.records import load
from suite.errors import RequestError
from suite.plan import Plan
from suite.records.migrations import NewerRecordError, current, migrate, migrate_plan
from suite.records.record import SCHEMA_VERSION, TrialRecord
from suite.results.store import Run

SAMPLES = Path(__file__).parents[1] / "samples"
RECORDS = sorted(SAMPLES.glob("*.record.json"))
PLANS = sorted(SAMPLES.glob("*.plan.json"))


def read(name: str) -> TrialRecord:
    return TrialRecord.model_validate_json(current((SAMPLES / f"{name}.record.json").read_bytes()))


def run_of(sample: Path, directory: Path) -> Path:
    """A run's directory with the sample in it, as its suite left it."""
    (directory / "trials").mkdir(parents=True)
    record = json.loads(sample.read_bytes())
    shutil.copy(sample, directory / "trials" / f"{record['trial_id']}.json")
    shutil.copy(sample.with_name(sample.name.replace(".record.", ".plan.")), directory / "plan.json")
    return directory


def test_there_is_a_sample_of_every_version() -> None:
    versions = {json.loads(path.read_bytes())["schema_version"] for path in RECORDS}
    assert versions == set(range(1, SCHEMA_VERSION + 1))


@pytest.mark.parametrize("sample", RECORDS, ids=lambda path: path.name)
def test_a_record_of_any_version_is_read_by_every_reader(sample: Path, tmp_path: Path) -> None:
    directory = run_of(sample, tmp_path / "run")
    (trial_id,) = Run(directory).finished()
    trials = load([directory]).trials
    assert trials["trial_id"].tolist() == [trial_id]
    assert trials["throughput_per_s"].tolist() == [13.25]
    content = current(sample.read_bytes())
    assert TrialRecord.model_validate_json(content).schema_version == SCHEMA_VERSION
    assert Parts.model_validate_json(content).elapsed_s == 5.5


@pytest.mark.parametrize("sample", PLANS, ids=lambda path: path.name)
def test_a_run_of_an_older_suite_goes_on_under_the_same_plan(sample: Path, tmp_path: Path) -> None:
    shutil.copy(sample, tmp_path / "plan.json")
    plan = Plan.model_validate(migrate_plan(json.loads(sample.read_bytes())))
    Run(tmp_path).begin(plan)
    Run(tmp_path).begin(plan.model_copy(update={"blocks": 5}))
    with pytest.raises(RequestError, match="another plan: seed differ"):
        Run(tmp_path).begin(plan.model_copy(update={"blocks": 5, "seed": 8}))


def test_the_page_cache_of_version_1_moves_from_the_conditions_to_the_record() -> None:
    assert "page_cache" in json.loads((SAMPLES / "v1-conditions.record.json").read_bytes())["conditions"]
    assert read("v1-conditions").job.page_cache == "cold"
    assert read("v1-scenarios").job.page_cache == "cold"
    assert read("v1-first").job.page_cache is None


def test_the_data_set_of_an_older_suite_is_one_of_names_and_sizes() -> None:
    records = [
        TrialRecord.model_validate_json(current(path.read_bytes()))
        for path in SAMPLES.rglob("*.json")
        if b'"data_use": {' in path.read_bytes()
    ]
    assert len(records) > 5
    for record in records:
        assert record.job.dataset
        assert record.data_use
        assert (record.job.dataset.digest, record.job.dataset.listing_sha256) == ("listing", None)
        assert record.job.dataset.listed_sha256 == record.data_use.sha256


def test_a_launch_that_held_the_end_of_the_job_too_is_absent() -> None:
    for name, launch_s in (("v1-first", None), ("v1-conditions", None), ("v1-scenarios", 0.3)):
        timeline = read(name).timeline
        assert timeline is not None
        assert (timeline.launch_s, timeline.imports_s) == (launch_s, 1.2), name


def test_a_migration_leaves_what_it_was_given() -> None:
    record = json.loads((SAMPLES / "v1-conditions.record.json").read_bytes())
    before = json.dumps(record)
    migrate(record)
    assert json.dumps(record) == before


def test_a_record_of_the_present_version_comes_back_as_it_is_however_it_is_formatted() -> None:
    content = (SAMPLES / "v3.record.json").read_bytes()
    sorted_keys = json.dumps(json.loads(content), sort_keys=True).encode()
    assert current(content) is content
    assert current(sorted_keys) is sorted_keys


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b"[]", b'{"schema_version": "1"}', b'{"schema_version": 0}']
)
def test_what_is_no_record_comes_back_as_it_is(content: bytes) -> None:
    assert current(content) is content


def test_a_record_of_a_later_suite_is_refused_and_never_run_over(tmp_path: Path) -> None:
    directory = run_of(SAMPLES / "v2.record.json", tmp_path / "run")
    (path,) = (directory / "trials").iterdir()
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(NewerRecordError, match=rf"b\d+\.json: its schema version is {SCHEMA_VERSION + 1}") as caught:
        list(Run(directory).finished())
    assert "the suite that wrote it" in str(caught.value.remedy)


def test_what_trained_before_workloads_had_units_trained_on_images() -> None:
    old, new = (json.loads((SAMPLES / f"{name}.record.json").read_bytes()) for name in ("v3-images", "v3"))
    assert migrate(old) == new
    assert "throughput_images_per_s" in old
    old, new = (json.loads((SAMPLES / f"{name}.plan.json").read_bytes()) for name in ("v3-images", "v3"))
    assert migrate_plan(old) == new
    ranks = migrate({**new, "schema_version": 3, "ranks": [{"throughput_images_per_s": 2.0}], "job": {}})["ranks"]
    assert ranks == [{"throughput_per_s": 2.0}]
    assert read("v2").job.unit == "images"


@pytest.mark.parametrize(
    "wrong",
    [
        {"workloads": "x"},
        {"models": [[]]},
        {"options": "x"},
        {"options": {"devices": "x"}},
        {"options": {"devices": float("inf")}},
        {"options": {"decoder": "auto", "loader_workers": {}}},
    ],
)
def test_what_only_looks_like_a_plan_of_an_older_suite_is_left_to_the_model(wrong: dict[str, Any]) -> None:
    plan = {"scenario": "synthetic", "models": ["resnet50"], "workloads": {}, **wrong}
    assert migrate_plan(plan) is plan
