"""Records as one flat table, for other programs: a row per trial, or a row per step of the trials that are ok.

``docs/reference/outputs.md`` says what every column is.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pandas as pd

from analysis.load.records import Records, read_record
from analysis.warnings.types import AnalysisWarning, skipped_record
from suite.errors import RequestError, missing_extra
from suite.records.columns import TABLE, counted_steps
from suite.records.record import Steps
from suite.results.files import output
from suite.results.store import unwritable

Format = Literal["parquet", "csv", "jsonl"]
FORMATS: tuple[Format, ...] = ("parquet", "csv", "jsonl")
STEP_KEYS = ("run_id", "trial_id", "scenario", "model", "target", "replica", "ablation", "warm_up", "block")
_OF_STEPS = tuple(column.name for column in fields(Steps))
STEP_COLUMNS = (*STEP_KEYS, "step", *_OF_STEPS)
_STEP_FLOATS = tuple(name for name in _OF_STEPS if name not in ("phases", "losses"))
"""The columns of steps that are numbers; the others are objects of JSON: what they name is the workload's affair."""
NOT_EXPORTED = ("losses", "busiest", "computed", "rounds_freely", "facts", "forced")
"""Columns that serve the comparison alone; the records hold what they are made of."""
COUNTS = tuple(column.name for column in TABLE if column.kind.values == "count")
_STARTED = "started_at"
_METRICS = "metrics"
"""The one column of a Parquet file for the metrics of probes and workloads, which other runs do not have."""
_TRIALS_AT_ONCE = 2000
"""The trials whose steps are in memory together: those of 100,000 would not fit."""

_ROWS_AT_ONCE = 5000
"""The rows that are turned into text together: the text of 100,000 takes a gigabyte."""


def trials_table(records: Records) -> pd.DataFrame:
    """Return a row per trial: ``records.COLUMNS`` without ``NOT_EXPORTED``, ``path``, and one column for each metric.

    Metrics of probes are named ``PROBE/METRIC [UNIT]``, those of workloads ``training/MODEL/METRIC [UNIT]``.
    """
    names = {}
    for metric in records.metrics:
        if metric.model and metric.unit:
            names[metric.column] = f"{metric.column} [{metric.unit}]"
    exported = records.trials.drop(columns=[*NOT_EXPORTED])
    table = exported.rename(columns=names)
    table["settings"] = table["settings"].astype(str)
    return table.astype(dict.fromkeys(COUNTS, "Int64"))


def steps_tables(records: Records, skipped: list[AnalysisWarning]) -> Iterator[pd.DataFrame]:
    """Yield a row per measured step, ``STEP_COLUMNS``, some thousand trials at a time."""
    finished = records.trials["ok"].astype(bool)
    ok = records.trials[finished]
    for begin in range(0, len(ok), _TRIALS_AT_ONCE):
        part = ok.iloc[begin : begin + _TRIALS_AT_ONCE]
        read = part["path"].astype(object).map(_steps_of)
        warned = read.map(lambda steps: isinstance(steps, AnalysisWarning))
        skipped.extend(read[warned])
        has_steps = read.notna() & ~warned
        if has_steps.any():
            keys = part.loc[has_steps, list(STEP_KEYS)]
            yield _steps_table(keys, list(read[has_steps]))


def _steps_of(path: str) -> Any:  # noqa: ANN401 (decoded)
    """Return the steps of a record, None if it has none, or the warning that they are left out."""
    record = read_record(path)
    if isinstance(record, AnalysisWarning):
        return record
    if record.steps and record.steps.elapsed_s is None:
        return skipped_record(
            path,
            "its steps have no times (--sync span)",
            "measure by --sync step to have them",
        )
    if record.steps and counted_steps(record.steps) != len(record.steps.elapsed_s):
        return skipped_record(
            path,
            "its columns of steps are not equally long",
            "see what else: bench audit",
        )
    return record.steps


def _steps_table(keys: pd.DataFrame, steps_of_trials: Sequence[Any]) -> pd.DataFrame:
    """Return the keys of each trial beside each of its steps, of the same types even if a phase is absent."""
    counts = [len(steps.elapsed_s) for steps in steps_of_trials]
    trial_of_step = np.repeat(np.arange(len(steps_of_trials)), counts)
    rows = keys.iloc[trial_of_step].reset_index(drop=True)
    numbers = list(map(np.arange, counts))
    columns = {"step": np.concatenate(numbers)}
    for name in _OF_STEPS:
        of_trials = [_column(steps, name) for steps in steps_of_trials]
        columns[name] = np.concatenate(of_trials)
    texts = dict.fromkeys(("run_id", "trial_id", "scenario", "model", "target", "ablation"), "str")
    return rows.assign(**columns).astype(texts)


def _column(steps: Any, name: str) -> "np.typing.NDArray[Any]":  # noqa: ANN401 (decoded)
    values = getattr(steps, name)
    count = len(steps.elapsed_s)
    if isinstance(values, dict):
        texts = [""] * count
        if values:
            rows = zip(*values.values(), strict=True)
            texts = [json.dumps(dict(zip(values, row, strict=True))) for row in rows]
        return np.array(texts, dtype=object)
    if values is None:
        return np.full(count, np.nan)
    return np.asarray(values, dtype=np.float64)


def write(tables: Iterable[pd.DataFrame], form: Format, path: Path) -> int:
    """Write tables of the same columns one after the other, a regular file whole or not at all. Returns the rows.

    Raises StoreError where it cannot be written, and RequestError where there is not a row.
    """
    with unwritable(path), output(path) as file:
        if form == "parquet":
            rows = _parquet(tables, file)
        else:
            rows = _text(tables, form, file)
        if not rows:
            raise RequestError("there is nothing to export: no trial of these is ok and has steps")
    return rows


def _text(tables: Iterable[pd.DataFrame], form: Format, file: IO[bytes]) -> int:
    rows = 0
    for table in tables:
        for begin in range(0, len(table), _ROWS_AT_ONCE):
            part = table.iloc[begin : begin + _ROWS_AT_ONCE]
            lines = text(part, form, header=not rows)
            file.write(lines.encode())
            rows += len(part)
    return rows


def text(table: pd.DataFrame, form: Format, *, header: bool = True) -> str:
    """Return CSV with one line of names, or JSON Lines: an object per line, null for what is absent."""
    if form == "csv":
        texts = {}
        for name, column in table.items():
            if not pd.api.types.is_numeric_dtype(column.dtype):
                texts[str(name)] = column.map(for_spreadsheets)
        guarded = table.assign(**texts)
        return guarded.to_csv(index=False, header=header, lineterminator="\n")
    present = table.astype(object).where(table.notna(), None)
    names = [str(name) for name in table.columns]
    # ``to_dict`` looks at each cell for types of numpy, which objects are not: twice the time of everything else.
    columns = [present.iloc[:, place].tolist() for place in range(len(names))]
    encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
    lines = []
    for cells in zip(*columns, strict=True):
        row = dict(zip(names, cells, strict=True))
        lines.append(encode(row))
        lines.append("\n")
    return "".join(lines)


def for_spreadsheets(cell: object) -> object:
    """Return a cell of CSV; before a text that a spreadsheet would take for a formula stands a quotation mark."""
    if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{cell}"
    return cell


def _parquet(tables: Iterable[pd.DataFrame], file: IO[bytes]) -> int:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "parquet") from error
    texts = pyarrow.string()
    floats = [column.name for column in TABLE if column.is_float]
    flags = [column.name for column in TABLE if column.kind.values == "flag"]
    types = {
        _STARTED: pyarrow.timestamp("us", tz="UTC"),
        _METRICS: pyarrow.map_(texts, pyarrow.float64()),
    }
    types |= dict.fromkeys((*floats, *_STEP_FLOATS), pyarrow.float64())
    types |= dict.fromkeys((*COUNTS, "step"), pyarrow.int64())
    types |= dict.fromkeys(flags, pyarrow.bool_())
    rows = 0
    with ExitStack() as closing:
        writer = None
        for table in tables:
            fixed = _with_fixed_columns(table)
            fields = [(name, types.get(name, texts)) for name in fixed.columns]
            schema = pyarrow.schema(fields)
            of_texts = [name for name, type_of_column in fields if type_of_column == texts]
            fixed = fixed.astype(dict.fromkeys(of_texts, "str"))
            if writer is None:
                writer = closing.enter_context(parquet.ParquetWriter(file, schema))
            arrow = pyarrow.Table.from_pandas(fixed, schema=schema, preserve_index=False)
            writer.write_table(arrow)
            rows += len(table)
    return rows


def _with_fixed_columns(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose columns and types do not depend on what was run: metrics become one column of pairs."""
    if _STARTED not in table:
        return table
    of_workloads = [name for name in table.columns if "/" in name]
    metrics = []
    for values in table[of_workloads].itertuples(index=False, name=None):
        pairs = zip(of_workloads, values, strict=True)
        metrics.append([(name, float(value)) for name, value in pairs if value == value])  # NaN: not measured
    fixed = table.drop(columns=of_workloads)
    fixed[_STARTED] = pd.to_datetime(
        fixed[_STARTED],
        utc=True,
        format="ISO8601",
        errors="coerce",
    )
    pairs_of_trials = pd.Series(metrics, index=table.index, dtype=object)
    return fixed.assign(**{_METRICS: pairs_of_trials})
