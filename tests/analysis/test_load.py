"""Records as they are read and exported: what is left out; every field is a column, or exempt with a reason."""

import errno
import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import pandas as pd
import pytest
from msgspec import Meta
from pyarrow import parquet
from pydantic import ValidationError

from analysis.compare.comparison import compare
from analysis.load import records as loading
from analysis.load.records import load, read_record
from analysis.report.export import COUNTS, FORMATS, STEP_COLUMNS, steps_tables, text, trials_table, write
from analysis.warnings.types import AnalysisWarning
from suite.errors import RequestError
from suite.part import Seconds
from suite.records.columns import AUDIT, FURTHER, NUMBER, TABLE, Column, Field
from suite.records.differences import fields_of
from suite.records.fields import checked_part
from suite.records.reader import Projection, UnusableRecordError
from suite.records.record import MetricValue, Steps, TrialRecord
from suite.results.files import open_small
from suite.results.store import Run
from tests.analysis.conftest import Save, edited, probe, record
from tests.analysis.test_audit import put
from tests.analysis.test_differences import LEAVES, leaves
from tests.jobs import identity


def file_of(save: Save, **changes: Any) -> Path:
    """Return the file of a record that is saved with these changes."""
    return save.path / "run" / "trials" / f"{save(**changes).trial_id}.json"


def test_a_record_that_another_program_formatted_reads_the_same(save: Save) -> None:
    path = file_of(save)
    before = save.load().trials
    for indent in (None, 2, 4):
        path.write_text(json.dumps(json.loads(path.read_text()), indent=indent))
        pd.testing.assert_frame_equal(save.load().trials, before)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1, 2]", "not a record of this suite"),
        (b'{"name": "pytest-benchmark"}', "not a record of this suite"),
        (b'{"schema_version": 99}', "its schema version is 99, this suite reads up to 3"),
        (b'{"schema_version": 1}', "schema_version: Invalid enum value 1"),
        (b'{"schema_version": 3}', "run_id: field required"),
    ],
)
def test_a_file_that_is_no_usable_record_is_named_with_the_reason(save: Save, content: bytes, why: str) -> None:
    bad = file_of(save).with_name("bad.json")
    bad.write_bytes(content)
    records = save.load()
    (found,) = records.warnings
    assert (len(records.trials), found.kind) == (1, "skipped-record")
    assert found.message.startswith(f"{bad} is left out: ")
    assert why in found.message


@pytest.mark.parametrize(
    ("key", "value"),
    [("throughput_per_s", None), ("steps", {"note": "a } in a text", "inner": {"deeper": {}}, "elapsed_s": {}})],
)
def test_a_record_edited_to_nonsense_is_left_out(save: Save, key: str, value: object) -> None:
    save()
    edited(file_of(save, block=1), lambda record: record.update({key: value}))
    records = save.load()
    assert len(records.trials) == 1
    assert key in records.warnings[0].message


def test_a_record_that_was_cut_off_is_left_out_wherever_it_was_cut(save: Save) -> None:
    save()
    path = file_of(save, block=1)
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(len(lines)):
        path.write_bytes(b"".join(lines[:count]))
        assert "not JSON" in read_record(str(path)).message
    records = save.load()
    assert len(records.trials) == 1
    assert "not JSON" in records.warnings[0].message


def test_records_of_several_environments_in_turn_keep_each_their_own(save: Save) -> None:
    for block in range(6):
        save(block=block, userland="ab"[block % 2] * 64, capability=("AVX2", "AVX512")[block // 3])
    trials = save.load().trials
    assert trials["userland_sha256"].str[0].tolist() == ["a", "b"] * 3
    assert trials["torch_cpu_capability"].tolist() == ["AVX2"] * 3 + ["AVX512"] * 3


def test_a_directory_among_the_records_is_left_out_with_a_warning_and_a_half_written_file_without(save: Save) -> None:
    path = file_of(save)
    path.with_name(".x.json.abcd").write_text("{")
    assert save.load().warnings == ()
    path.with_name("odd.json").mkdir()
    assert "cannot be read" in save.load().warnings[0].message


def lack(way: Callable[..., object], error: Exception) -> Callable[..., object]:
    """Return a way to read a file that fails, once."""
    errors = [error]

    def read(*words: object) -> object:
        if errors:
            raise errors.pop()
        return way(*words)

    return read


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENOMEM, "no memory"), MemoryError()]
)
def test_what_this_process_lacks_for_a_moment_is_no_fault_of_a_record(
    save: Save, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer without that record would be kept for as long as no file changes."""
    save()
    save(block=1)
    monkeypatch.setattr(loading, "open_small", lack(open_small, error))
    with pytest.raises(type(error)):
        save.load()
    records = save.load()
    assert (len(records.trials), records.warnings) == (2, ())


def test_no_record_at_all_is_refused_with_what_was_found_instead(tmp_path: Path) -> None:
    trials = tmp_path / "run" / "trials"
    with pytest.raises(RequestError, match="no directory"):
        load([tmp_path / "run"])
    trials.mkdir(parents=True)
    with pytest.raises(RequestError, match="no usable record"):
        load([tmp_path / "run"])
    (trials / "x.json").write_text("{}")
    with pytest.raises(RequestError, match=r"1 files are left out; .*x\.json"):
        load([tmp_path / "run"])


def test_an_empty_run_and_a_copy_are_named_and_a_run_named_twice_counts_once(tmp_path: Path, save: Save) -> None:
    made = save()
    (tmp_path / "empty").mkdir()
    (found,) = save.load("run", "empty").warnings
    assert (found.kind, found.message) == ("empty-run", f"{tmp_path / 'empty'} holds no usable record")
    assert len(load([tmp_path / "run", tmp_path / "." / "run"]).trials) == 1
    copy = tmp_path / "copy" / "trials" / "other-name.json"
    copy.parent.mkdir(parents=True)
    copy.write_text(made.model_dump_json())
    records = save.load("run", "copy")
    (found,) = records.warnings
    assert (len(records.trials), found.kind) == (1, "copied-records")
    place = f"{copy.parents[1]} is a copy of the run in {tmp_path / 'run'}"
    assert found.message == f"1 records are copies of others and count once (the first: {copy}): {place}"


def test_copies_of_a_run_that_went_on_apart_are_refused(tmp_path: Path, save: Save) -> None:
    save()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    save("run", block=1)
    Run(tmp_path / "copy").save(record("run", block=1, started_at="2026-01-02T00:00:00+00:00"))
    with pytest.raises(RequestError, match=r"copies of one run that went on apart: each has its own .*-b001"):
        save.load("run", "copy")


def test_two_runs_of_one_name_are_two_runs(tmp_path: Path) -> None:
    """Targets differ, so that no trial's name occurs twice: by the name alone, they would be paired across days."""
    for place, target in (("a", "bare-metal"), ("b", "container")):
        Run(tmp_path / place / "night").save(record(place, target=target, throughput_per_s=5.0))
    found = load([tmp_path / "a/night", tmp_path / "b/night"])
    assert set(found.trials["run_id"]) == {identity("a"), identity("b")}
    over = compare(found).of_kind("target")
    assert all(own["throughput"].ratio is None for arm, own in over.items() if arm.target == "container")


def test_cells_of_one_name_are_two_runs(tmp_path: Path) -> None:
    for sweep, network, speed in (("a", "overlay", 5.0), ("b", "host", 10.0)):
        for target, now in (("bare-metal", 10.0), ("container", speed)):
            made = record(sweep, target=target, throughput_per_s=now, engine=network)
            Run(tmp_path / sweep / "cell").save(made)
    found = load([tmp_path / "a/cell", tmp_path / "b/cell"])
    assert set(found.trials["run_id"]) == {identity("a"), identity("b")}
    over = compare(found).of_kind("target").items()
    ratios = {arm.job.variant: own["throughput"].ratio for arm, own in over if arm.target != "bare-metal"}
    assert ratios == pytest.approx({"engine=overlay": 0.5, "engine=host": 1.0})


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


def unread(model: type[TrialRecord], columns: tuple[Column, ...]) -> list[str]:
    """Return the fields that no column reads, not even as a part of something larger, and nothing exempts."""
    schema = model.model_json_schema()
    read = {column.path for column in columns if column.is_decoded} | {"job"} | EXEMPT.keys()
    fields = leaves(schema, schema=schema)
    return [leaf for leaf in fields if not any(f"{leaf}.".startswith(f"{path}.") for path in read)]


def test_every_field_is_a_column_of_a_name_of_its_own_or_exempt_with_a_reason() -> None:
    assert unread(TrialRecord, COLUMNS) == []
    assert [path for path in EXEMPT if not any(f"{leaf}.".startswith(f"{path}.") for leaf in LEAVES)] == []
    assert all(EXEMPT.values())
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


class ToyRecord(TrialRecord):
    toy_s: Seconds | None = None


TOY = Column("toy_s", "toy_s", NUMBER, Field("", "measured", "a toy"))


def test_a_new_field_that_is_shown_is_the_models_and_one_row(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unread(ToyRecord, COLUMNS) == ["toy_s"]
    assert unread(ToyRecord, (*COLUMNS, TOY)) == []
    assert [(one.path, one.treatment) for one in fields_of([TOY])] == [("toy_s", "measured")]
    for block, toy_s in enumerate((1.5, None)):
        made = ToyRecord.model_validate(save(block=block).model_dump() | {"toy_s": toy_s})
        (tmp_path / f"run/trials/{made.trial_id}.json").write_text(made.model_dump_json(indent=1))
    monkeypatch.setattr(loading, "RECORD", Projection((*TABLE, TOY, *AUDIT), FURTHER, model=ToyRecord))
    monkeypatch.setattr(loading, "COLUMNS", (*loading.COLUMNS, "toy_s"))
    column = trials_table(save.load())["toy_s"]
    assert (str(column.dtype), column.fillna(0).tolist()) == ("float64", [1.5, 0])


def test_a_part_is_read_as_what_the_suite_makes(save: Save) -> None:
    rate = MetricValue(value=2.0, unit="GB/s", better="more", samples=[1.0, 2.0, 3.0])
    steps = Steps(elapsed_s=[0.5], data_s=[0.1], compute_s=[0.4])
    read = read_record(str(file_of(save, metrics={"triad": rate}, steps=steps)))
    assert (read.metrics, read.steps.elapsed_s) == ({"triad": rate}, [0.5])


def test_what_a_later_suite_adds_to_a_part_is_left_out_and_the_suite_makes_no_such_part(save: Save) -> None:
    rate = {"value": 2.0, "unit": "GB/s", "better": "more"}
    path = file_of(save)
    edited(path, lambda record: record["metrics"].update(triad={**rate, "later": 1}))
    assert read_record(str(path)).metrics["triad"] == MetricValue(value=2.0, unit="GB/s", better="more")
    with pytest.raises(ValidationError, match="later"):
        checked_part(MetricValue, {**rate, "later": 1})


def bounds_of_numbers(kind: Any, *, bounded: bool = False) -> Iterator[bool]:
    """Yield whether msgspec has bounds for each number that an annotation allows."""
    if get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        yield from bounds_of_numbers(inner, bounded=any(isinstance(mark, Meta) for mark in marks))
    elif kind in (int, float):
        yield bounded
    else:
        for inner in get_args(kind):
            yield from bounds_of_numbers(inner)


def parts_in(kind: Any) -> Iterator[type]:
    """Yield the dataclasses in an annotation, and all that are in them."""
    if is_dataclass(kind):
        yield cast("type", kind)
        for hint in get_type_hints(kind).values():
            yield from parts_in(hint)
    for inner in get_args(kind):
        yield from parts_in(inner)


def test_every_number_of_a_file_has_bounds_for_whatever_reads_it() -> None:
    hints = get_type_hints(TrialRecord)
    parts = {part for hint in hints.values() for part in parts_in(hint)}
    assert len(parts) > 20
    for part in (TrialRecord, *parts):
        for name, kind in get_type_hints(part, include_extras=True).items():
            assert all(bounds_of_numbers(kind)), f"{part.__name__}.{name}"


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
        ("environment.host.memory_bytes", 1 << 61, "environment"),
        ("job.sizes.batch", 1 << 61, "job"),
    ],
)
def test_a_value_of_another_type_or_beyond_its_bounds_is_named(path: str, value: object, message: str) -> None:
    record = json.loads(RECORD)
    put(path, value)(record)
    columns = Projection((*TABLE, *AUDIT), FURTHER)
    with pytest.raises(UnusableRecordError) as caught:
        columns.row(columns.decode(json.dumps(record).encode()))
    assert message in str(caught.value)


def back(path: Path, form: str) -> pd.DataFrame:
    if form == "parquet":
        return pd.read_parquet(path)
    return pd.read_csv(path) if form == "csv" else pd.read_json(path, lines=True, precise_float=True)


@pytest.mark.parametrize("form", FORMATS)
def test_every_trial_comes_back_from_every_format_with_its_values(tmp_path: Path, save: Save, form: Any) -> None:
    save(block=0, throughput_per_s=1 / 3)
    save(block=1, failed="no memory", substitutes=["accelerator:tcg", "b"], open_s=None)
    save(warm_up=True)
    path = tmp_path / "deep/trials.x"
    assert write([trials_table(load([tmp_path / "run"], warm_ups=True))], form, path) == 3
    found = back(path, form).set_index("trial_id")
    ok = found.loc["synthetic-resnet50-bare-metal-b000", ["throughput_per_s", "memory_bytes", "elapsed_s", "ok"]]
    assert [*ok] == [pytest.approx(1 / 3, rel=1e-12), 2 << 30, 20.0, True]
    failed = found.loc["synthetic-resnet50-bare-metal-b001"]
    assert (failed["error_message"], failed["substitutes"]) == ("no memory", "accelerator:tcg\nb")
    unmeasured = failed[["throughput_per_s", "elapsed_s", "open_s", "clock_ratio"]].astype(float)
    assert pd.isna(unmeasured).all(), "it is missing, and never zero"
    assert bool(found.loc["synthetic-resnet50-bare-metal-w000"]["warm_up"])
    assert [one.name for one in path.parent.iterdir()] == ["trials.x"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_step_of_the_trials_that_are_ok_is_a_row(tmp_path: Path, save: Save, form: Any) -> None:
    save(block=0, steps=Steps(elapsed_s=[0.3, 0.4], data_s=[0.1, 0.2], compute_s=[0.2, 0.2], copy_s=[0.0, 0.1]))
    save(block=1, steps=Steps(elapsed_s=[0.5], data_s=[0.1], compute_s=[0.4]))
    save(block=2, failed="no memory")
    skipped: list[AnalysisWarning] = []
    assert write(steps_tables(save.load(), skipped), form, tmp_path / "steps") == 3
    found = back(tmp_path / "steps", form)
    assert (tuple(found.columns), skipped) == (STEP_COLUMNS, [])
    columns = found[["block", "step", "elapsed_s", "copy_s"]].fillna(-1).to_numpy().tolist()
    assert columns == [[0, 0, 0.3, 0.0], [0, 1, 0.4, 0.1], [1, 0, 0.5, -1]]


def test_tables_one_after_the_other_have_one_line_of_names(tmp_path: Path, save: Save) -> None:
    save()
    write([trials_table(save.load())] * 2, "csv", tmp_path / "twice.csv")
    assert len(pd.read_csv(tmp_path / "twice.csv")) == 2


def test_without_a_step_nothing_is_written_and_an_older_file_stays(tmp_path: Path, save: Save) -> None:
    save(failed="no memory")
    path = tmp_path / "steps.parquet"
    path.write_text("old")
    for form in FORMATS:
        with pytest.raises(RequestError, match="nothing to export"):
            write(steps_tables(save.load(), []), form, path)
    assert path.read_text() == "old"


def test_records_that_have_vanished_or_whose_columns_of_steps_are_not_equally_long_are_named(save: Save) -> None:
    even = Steps(elapsed_s=[1.0, 1.0], data_s=[0.1, 0.1], compute_s=[0.9, 0.9])
    odd, gone, _ = (file_of(save, block=block, steps=even) for block in range(3))
    edited(odd, lambda record: record["steps"]["compute_s"].pop())
    records = save.load()
    gone.unlink()
    skipped: list[AnalysisWarning] = []
    assert sum(map(len, steps_tables(records, skipped))) == 2
    messages = {path: one.message for one in skipped for path in (odd, gone) if path.stem in one.message}
    assert messages.keys() == {odd, gone}
    assert "columns of steps are not equally long" in messages[odd]


def test_parquet_has_one_schema_for_all_runs_with_integers_and_timestamps(tmp_path: Path, save: Save) -> None:
    save("training", block=0, engine="podman", metrics={})
    save("probing", engine="runc", **probe("disk", seq_read=(512.0, "MB/s", "more")))
    save("measured", metrics={"own-frechet": MetricValue(value=37.0, unit="", better="less")})
    save("failing", failed="no memory")
    paths = [tmp_path / f"{name}.parquet" for name in ("training", "probing", "measured", "failing")]
    for path in paths:
        write([trials_table(save.load(path.stem))], "parquet", path)
    schema, *others = map(parquet.read_schema, paths)
    assert all(other == schema for other in others)
    (without_unit,) = parquet.read_table(tmp_path / "measured.parquet").to_pylist()
    assert without_unit["metrics"] == [("training/resnet50/own-frechet", 37.0)]
    types = {field.name: str(field.type) for field in schema}
    assert {types[name] for name in COUNTS} == {"int64"}
    kinds = ["timestamp[us, tz=UTC]", "string", "bool", "double"]
    assert [types[name] for name in ("started_at", "engine", "ok", "elapsed_s")] == kinds
    assert types["metrics"].startswith("map<string, double")
    (row,) = parquet.read_table(tmp_path / "probing.parquet").to_pylist()
    assert (row["metrics"], row["engine"]) == ([("disk/seq-read [MB/s]", 512.0)], "runc")
    assert row["started_at"].isoformat() == "2026-01-01T00:00:00+00:00"
    assert (row["memory_bytes"], row["batch"]) == (2 << 30, None)


def test_whole_numbers_are_whole_in_every_format(save: Save) -> None:
    save(block=3)
    table = trials_table(save.load())
    header, row = text(table, "csv").splitlines()
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    assert (cells["block"], cells["memory_bytes"]) == ("3", str(2 << 30))
    assert '"memory_bytes":2147483648,' in text(table, "jsonl")


def test_json_lines_keep_all_digits_and_null() -> None:
    table = pd.DataFrame({"seconds": [1.2345678901234567e-9, math.nan], "steps": [3, 4], "name": ["a\u3000b", None]})
    rows = [json.loads(line) for line in text(table, "jsonl").splitlines()]
    assert rows == [
        {"seconds": 1.2345678901234567e-9, "steps": 3, "name": "a\u3000b"},
        {"seconds": None, "steps": 4, "name": None},
    ]
