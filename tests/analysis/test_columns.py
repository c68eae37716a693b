"""Every field of a record is a column, or exempt with a reason; a new one that is shown is a field and a row."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from analysis.load import records as loading
from analysis.load.records import load
from analysis.report.export import trials_table
from suite.part import Seconds
from suite.records.columns import AUDIT, FURTHER, SECONDS, TABLE, Column, Field
from suite.records.differences import fields_of
from suite.records.reader import Projection, UnusableRecordError
from suite.records.record import TrialRecord
from tests.analysis.conftest import Save

COLUMNS = (*TABLE, *AUDIT, *FURTHER)
RECORD = (Path(__file__).parents[1] / "samples" / "record.json").read_bytes()
EXEMPT = {
    "conditions.absent": "explains why others are null",
    "conditions.frequency_mhz": "two moments beside the job",
    "conditions.load_1min": "conditions.other_cpu_s is counted over the whole job",
    "conditions.sampler_cpu_s": "the cost of measuring, which is the same on every target",
    "environment": "the facts that differences.py treats are one column; tables show some of them",
    "resources": "recorded to explain a trial; tables show cpu_s, memory, disk, energy and cache misses",
    "details": "notes of the scenario; they promise nothing",
}
"""The fields, and all below them, that no row reads, each with the reason."""


def leaves(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield every field of a model, and of the models in it, by its dotted path."""
    for name, field in model.model_fields.items():
        inner = list(models(field.annotation))
        for one in inner:
            yield from leaves(one, f"{path}{name}.")
        if not inner:
            yield path + name


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models(part)


def unread(model: type[BaseModel], columns: tuple[Column, ...]) -> list[str]:
    """Return the fields that no column reads, not even as a part of something larger, and nothing exempts."""
    read = {column.path for column in columns if column.kind.type is not None} | {"job"} | EXEMPT.keys()
    return [leaf for leaf in leaves(model) if not any(f"{leaf}.".startswith(f"{path}.") for path in read)]


def test_every_field_is_a_column_or_exempt_with_a_reason() -> None:
    assert unread(TrialRecord, COLUMNS) == []
    fields = list(leaves(TrialRecord))
    assert [path for path in EXEMPT if not any(f"{leaf}.".startswith(f"{path}.") for leaf in fields)] == []
    assert all(EXEMPT.values())


def test_every_column_has_a_name_of_its_own() -> None:
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)


class ToyRecord(TrialRecord):
    toy_s: Seconds | None = None


TOY = Column("toy_s", "toy_s", SECONDS, Field("", "measured", "a toy"))


def test_a_new_field_that_is_shown_is_the_models_and_one_row(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unread(ToyRecord, COLUMNS) == ["toy_s"]
    assert unread(ToyRecord, (*COLUMNS, TOY)) == []
    assert [(one.path, one.treatment) for one in fields_of([TOY])] == [("toy_s", "measured")]
    for block, toy_s in enumerate((1.5, None)):
        made = ToyRecord.model_validate(save(block=block).model_dump() | {"toy_s": toy_s})
        (tmp_path / f"run/trials/{made.trial_id}.json").write_text(made.model_dump_json(indent=1))
    monkeypatch.setattr(loading, "RECORD", Projection((*TABLE, TOY, *AUDIT), FURTHER))
    monkeypatch.setattr(loading, "COLUMNS", (*loading.COLUMNS, "toy_s"))
    table = trials_table(load([tmp_path / "run"]))
    assert table["toy_s"].dtype == "float64"
    assert table["toy_s"].fillna(0).tolist() == [1.5, 0]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("elapsed_s", -1, "elapsed_s: Expected `float` >= 0.0"),
        ("elapsed_s", 1e16, "elapsed_s: Expected `float` <= "),
        ("block", 1 << 60, "block: Expected `int` <= "),
        ("warm_up", "yes", "warm_up: Expected `bool`, got `str`"),
        ("trial_id", "../x", "trial_id: Expected `str` matching regex"),
        ("outcome.status", "perhaps", "outcome.status: Invalid enum value 'perhaps'"),
        ("steps.data_s", [0.1, -0.1], "steps.data_s"),
        ("conditions.steal_s", [], "conditions.steal_s: Expected `float | null`, got `array`"),
        ("metrics", {"x": {"value": 1e300, "unit": "s", "better": "less"}}, "metrics"),
    ],
)
def test_a_value_of_another_type_or_beyond_its_bounds_is_named(path: str, value: object, message: str) -> None:
    record = json.loads(RECORD)
    *parts, last = path.split(".")
    part = record
    for name in parts:
        part = part[name]
    part[last] = value
    with pytest.raises(UnusableRecordError) as caught:
        Projection((*TABLE, *AUDIT), FURTHER).decode(json.dumps(record).encode())
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("path", ["environment.host.memory_bytes", "job.sizes.batch"])
def test_the_job_and_the_machines_keep_within_bounds_too(path: str) -> None:
    record = json.loads(RECORD)
    *parts, last = path.split(".")
    part = record
    for name in parts:
        part = part[name]
    part[last] = 1 << 61
    columns = Projection((*TABLE, *AUDIT), FURTHER)
    with pytest.raises(UnusableRecordError, match=path.partition(".")[0]):
        columns.row(columns.decode(json.dumps(record).encode()))
