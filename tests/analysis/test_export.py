import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyarrow import parquet

from analysis.load.records import load
from analysis.report.export import COUNTS, FORMATS, STEP_COLUMNS, steps_tables, text, trials_table, write
from analysis.warnings.types import AnalysisWarning
from suite.errors import RequestError
from suite.records.record import MetricValue, Steps
from tests.analysis.conftest import probe


def back(path: Path, form: str) -> pd.DataFrame:
    if form == "parquet":
        return pd.read_parquet(path)
    return pd.read_csv(path) if form == "csv" else pd.read_json(path, lines=True, precise_float=True)


@pytest.mark.parametrize("form", FORMATS)
def test_every_trial_comes_back_from_every_format_with_its_values(tmp_path: Path, save: Any, form: Any) -> None:
    save(block=0, throughput_per_s=1 / 3)
    save(block=1, failed="no memory", substitutes=["accelerator:tcg", "b"])
    save(warm_up=True)
    path = tmp_path / "deep/trials.x"
    assert write([trials_table(load([tmp_path / "run"], warm_ups=True))], form, path) == 3
    found = back(path, form).set_index("trial_id")
    ok = found.loc["synthetic-resnet50-bare-metal-b000"]
    assert ok["throughput_per_s"] == pytest.approx(1 / 3, rel=1e-12)
    assert (ok["memory_bytes"], ok["elapsed_s"], bool(ok["ok"])) == (2 << 30, 20.0, True)
    failed = found.loc["synthetic-resnet50-bare-metal-b001"]
    assert (failed["error_message"], failed["substitutes"]) == ("no memory", "accelerator:tcg\nb")
    assert pd.isna(failed["throughput_per_s"])
    assert bool(found.loc["synthetic-resnet50-bare-metal-w000"]["warm_up"])
    assert [one.name for one in path.parent.iterdir()] == ["trials.x"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_step_of_the_trials_that_are_ok_is_a_row(tmp_path: Path, save: Any, form: Any) -> None:
    save(block=0, steps=Steps(elapsed_s=[0.3, 0.4], data_s=[0.1, 0.2], compute_s=[0.2, 0.2], copy_s=[0.0, 0.1]))
    save(block=1, steps=Steps(elapsed_s=[0.5], data_s=[0.1], compute_s=[0.4]))
    save(block=2, failed="no memory")
    path = tmp_path / "steps"
    skipped: list[AnalysisWarning] = []
    assert write(steps_tables(load([tmp_path / "run"]), skipped), form, path) == 3
    found = back(path, form)
    assert tuple(found.columns) == STEP_COLUMNS
    assert found["block"].tolist() == [0, 0, 1]
    assert found["step"].tolist() == [0, 1, 0]
    assert found["elapsed_s"].tolist() == [0.3, 0.4, 0.5]
    assert found["copy_s"].fillna(-1).tolist() == [0.0, 0.1, -1]
    assert skipped == []


def test_the_metrics_of_probes_are_columns_with_their_units(tmp_path: Path, save: Any) -> None:
    save(**probe("disk", seq_read=(512.0, "MB/s", "more")))
    (row,) = text(trials_table(load([tmp_path / "run"])), "jsonl").splitlines()
    assert json.loads(row)["disk/seq-read [MB/s]"] == 512.0
    assert json.loads(row)["throughput_per_s"] is None


def test_tables_one_after_the_other_have_one_line_of_names(tmp_path: Path, save: Any) -> None:
    save()
    table = trials_table(load([tmp_path / "run"]))
    path = tmp_path / "twice.csv"
    write([table, table], "csv", path)
    assert len(pd.read_csv(io.StringIO(path.read_text()))) == 2


def test_without_a_step_nothing_is_written_and_an_older_file_stays(tmp_path: Path, save: Any) -> None:
    save(failed="no memory")
    path = tmp_path / "steps.parquet"
    path.write_text("old")
    for form in FORMATS:
        with pytest.raises(RequestError, match="nothing to export"):
            write(steps_tables(load([tmp_path / "run"]), []), form, path)
    assert path.read_text() == "old"


def test_a_record_that_has_vanished_is_named(tmp_path: Path, save: Any) -> None:
    save(block=0)
    gone = save(block=1)
    records = load([tmp_path / "run"])
    (tmp_path / "run/trials" / f"{gone.trial_id}.json").unlink()
    skipped: list[AnalysisWarning] = []
    assert sum(map(len, steps_tables(records, skipped))) == 3
    (one,) = skipped
    assert gone.trial_id in one.message


def test_a_record_whose_columns_of_steps_are_not_equally_long_is_named(tmp_path: Path, save: Any) -> None:
    even = Steps(elapsed_s=[1.0, 1.0], data_s=[0.1, 0.1], compute_s=[0.9, 0.9])
    records = [save(block=block, steps=even) for block in range(2)]
    path = tmp_path / "run/trials" / f"{records[0].trial_id}.json"
    uneven = json.loads(path.read_text())
    uneven["steps"]["compute_s"].pop()
    path.write_text(json.dumps(uneven))
    skipped: list[AnalysisWarning] = []
    assert sum(map(len, steps_tables(load([tmp_path / "run"]), skipped))) == 2
    (one,) = skipped
    assert "columns of steps are not equally long" in one.message


def test_parquet_has_one_schema_for_all_runs_with_integers_and_timestamps(tmp_path: Path, save: Any) -> None:
    save("training", block=0, engine="podman", metrics={})
    save("probing", engine="runc", **probe("disk", seq_read=(512.0, "MB/s", "more")))
    save("measured", metrics={"own-frechet": MetricValue(value=37.0, unit="", better="less")})
    save("failing", failed="no memory")
    schemas = []
    for name in ("training", "probing", "measured", "failing"):
        path = tmp_path / f"{name}.parquet"
        write([trials_table(load([tmp_path / name]))], "parquet", path)
        schemas.append(parquet.read_schema(path))
    assert all(schema == schemas[0] for schema in schemas)
    (without_unit,) = parquet.read_table(tmp_path / "measured.parquet").to_pylist()
    assert without_unit["metrics"] == [("training/resnet50/own-frechet", 37.0)]
    types = {field.name: str(field.type) for field in schemas[0]}
    assert {types[name] for name in COUNTS} == {"int64"}
    assert types["started_at"] == "timestamp[us, tz=UTC]"
    assert types["engine"] == "string"
    assert types["metrics"].startswith("map<string, double")
    assert (types["ok"], types["elapsed_s"]) == ("bool", "double")
    (row,) = parquet.read_table(tmp_path / "probing.parquet").to_pylist()
    assert (row["metrics"], row["engine"]) == ([("disk/seq-read [MB/s]", 512.0)], "runc")
    assert row["started_at"].isoformat() == "2026-01-01T00:00:00+00:00"
    assert (row["memory_bytes"], row["batch"]) == (2 << 30, None)


def test_whole_numbers_are_whole_in_every_format(tmp_path: Path, save: Any) -> None:
    save(block=3)
    table = trials_table(load([tmp_path / "run"]))
    header, row = text(table, "csv").splitlines()
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    assert (cells["block"], cells["memory_bytes"]) == ("3", str(2 << 30))
    assert '"memory_bytes":2147483648,' in text(table, "jsonl")
