import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from suite import schema
from suite.records.record import Outcome, Steps, TrialRecord
from suite.records.usage import Conditions, Usage
from tests.suite.conftest import record_fields

FAILED = Outcome(status="failed", kind="boot", message="no guest")


def test_the_published_schema_is_that_of_the_model() -> None:
    assert schema.SCHEMA.read_text() == schema.record_schema(), "run: python -m suite.schema"


def test_what_was_not_measured_is_null_and_not_zero() -> None:
    record = TrialRecord(**record_fields())
    written = json.loads(record.model_dump_json())
    for name in ("open_s", "steps", "clock_ratio", "conditions", "resources"):
        assert written[name] is None
    assert written["environment"]["host"]["memory_bytes"] is None
    assert written["schema_version"] == 3
    with pytest.raises(ValidationError, match="frozen"):
        record.elapsed_s = 1.0


@pytest.mark.parametrize("absent", ["throughput_per_s", "elapsed_s"])
def test_a_trial_that_is_ok_has_its_numbers(absent: str) -> None:
    with pytest.raises(ValidationError, match="a trial that is ok has elapsed_s, and throughput"):
        TrialRecord(**record_fields(**{absent: None}))


def test_a_failed_trial_has_no_throughput() -> None:
    with pytest.raises(ValidationError, match="a failed trial has no throughput"):
        TrialRecord(**record_fields(outcome=FAILED))
    assert TrialRecord(**record_fields(outcome=FAILED, throughput_per_s=None)).outcome == FAILED


@pytest.mark.parametrize("change", [{"kind": None}, {"message": None}, {"message": ""}])
def test_a_failure_says_why(change: dict[str, str | None]) -> None:
    with pytest.raises(ValidationError, match="a failed outcome has a kind and a message"):
        Outcome.model_validate({"status": "failed", "kind": "boot", "message": "no guest"} | change)


@pytest.mark.parametrize("name", ["throughput_per_s", "elapsed_s", "open_s", "close_s", "clock_ratio"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_number_that_is_none_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=name):
        TrialRecord(**record_fields(**{name: value}))
    with pytest.raises(ValidationError, match="throughput_per_s"):
        TrialRecord(**record_fields(throughput_per_s=0.0))


@pytest.mark.parametrize(
    "columns",
    [
        {"elapsed_s": [1.0, 2.0], "data_s": [1.0], "compute_s": [1.0, 1.0]},
        {"elapsed_s": [1.0], "data_s": [1.0], "compute_s": [1.0], "copy_s": [1.0, 1.0]},
        {"elapsed_s": [1.0], "data_s": [1.0], "compute_s": [1.0], "communicate_s": []},
        {"elapsed_s": [], "data_s": [], "compute_s": []},
    ],
)
def test_the_columns_of_the_steps_have_one_length(columns: dict[str, list[float]]) -> None:
    with pytest.raises(ValidationError, match="the columns of the steps have the lengths"):
        Steps.model_validate(columns)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        *((Steps, {"compute_s": [s], "elapsed_s": [1.0], "data_s": [0.0]}) for s in (float("nan"), float("inf"), -0.1)),
        (Conditions, {"load_1min": float("nan")}),
        (Usage, {"cpu_s": float("inf")}),
    ],
)
def test_a_counter_that_is_no_number_is_refused(part: type[BaseModel], wrong: dict[str, Any]) -> None:
    """The published schema proves bounds, types and keys; JSON has no word for these numbers."""
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        part.model_validate(wrong)
