"""The text of a record is read by every reader, and refused if a later suite has written it."""

import json
import shutil
from pathlib import Path

import pytest

from analysis.load.records import load, read_record
from suite.errors import RequestError
from suite.plan import Plan
from suite.records.reader import NewerRecordError, clean_record
from suite.records.record import SCHEMA_VERSION, TrialRecord
from suite.results.store import Run

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
    assert stored.resources
    assert [gpu.utilisation for gpu in stored.resources.gpus or ()] == [0.5]
    assert load([directory]).trials["gpu_strangers"].isna().all()


def test_a_run_goes_on_under_the_same_plan(tmp_path: Path) -> None:
    shutil.copy(PLAN, tmp_path / "plan.json")
    plan = Plan.model_validate(json.loads(PLAN.read_bytes()))
    Run(tmp_path).begin(plan)
    Run(tmp_path).begin(plan.model_copy(update={"blocks": 5}))
    with pytest.raises(RequestError, match="another plan: seed differ"):
        Run(tmp_path).begin(plan.model_copy(update={"blocks": 5, "seed": 8}))


def test_the_data_set_of_an_older_suite_is_one_of_names_and_sizes() -> None:
    records = [
        TrialRecord.model_validate_json(path.read_bytes())
        for path in SAMPLES.rglob("*.json")
        if b'"data_use": {' in (content := path.read_bytes()) and b'"listing_sha256"' not in content
    ]
    assert len(records) > 5
    for record in records:
        assert record.job.dataset
        assert record.data_use
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
