"""Records as one flat table, for other programs: a row per trial, or a row per step of the trials that are ok.

``docs/results.md`` says what every column is.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ValidationError

from analysis.load.records import Records
from analysis.warnings.types import AnalysisWarning, skipped_record
from suite.errors import RequestError
from suite.records.migrations import current
from suite.records.record import Steps
from suite.results.store import StoreError

Format = Literal["parquet", "csv", "jsonl"]
FORMATS: tuple[Format, ...] = ("parquet", "csv", "jsonl")
STEP_KEYS = ("run_id", "trial_id", "scenario", "model", "target", "replica", "ablation", "warm_up", "block")
STEP_COLUMNS = (*STEP_KEYS, "step", *Steps.model_fields)
NOT_EXPORTED = ("facts", "forced")
"""Columns that serve the comparison alone; the records hold what they are made of."""
_TRIALS_AT_ONCE = 2000
"""The trials whose steps are in memory together: those of 100,000 would not fit."""

_ROWS_AT_ONCE = 5000
"""The rows that are turned into text together: the text of 100,000 takes a gigabyte."""


class _Stepped(BaseModel):
    steps: Steps | None = None


def trials_table(records: Records) -> pd.DataFrame:
    """Return a row per trial: ``fields.COLUMNS`` without ``NOT_EXPORTED``, ``path``, and one column for each metric.

    Metrics of probes are named ``PROBE/METRIC [UNIT]``, those of workloads ``training/MODEL/METRIC [UNIT]``.
    """
    units = {one.column: f"{one.column} [{one.unit}]" for one in records.metrics if one.model}
    return records.trials.drop(columns=[*NOT_EXPORTED]).rename(columns=units)


def steps_tables(records: Records, skipped: list[AnalysisWarning]) -> Iterator[pd.DataFrame]:
    """Yield a row per measured step, ``STEP_COLUMNS``, some thousand trials at a time."""
    ok = records.trials[records.trials["ok"].astype(bool)]
    for begin in range(0, len(ok), _TRIALS_AT_ONCE):
        part = ok.iloc[begin : begin + _TRIALS_AT_ONCE]
        found = [_steps(path, skipped) for path in part["path"]]
        has_steps = [steps is not None for steps in found]
        if any(has_steps):
            yield _steps_table(part.loc[has_steps, list(STEP_KEYS)], [steps for steps in found if steps is not None])


def _steps_table(keys: pd.DataFrame, found: Sequence[Steps]) -> pd.DataFrame:
    """Return the keys of each trial beside each of its steps, of the same types even if a phase is absent."""
    counts = [len(steps.elapsed_s) for steps in found]
    rows = keys.iloc[np.repeat(np.arange(len(found)), counts)].reset_index(drop=True)
    columns = {name: np.concatenate([_column(steps, name) for steps in found]) for name in Steps.model_fields}
    texts = dict.fromkeys(("run_id", "trial_id", "scenario", "model", "target", "ablation"), "str")
    return rows.assign(step=np.concatenate([np.arange(count) for count in counts]), **columns).astype(texts)


def _column(steps: Steps, name: str) -> "np.typing.NDArray[np.float64]":
    values = getattr(steps, name)
    return np.full(len(steps.elapsed_s), np.nan) if values is None else np.asarray(values, dtype=np.float64)


def _steps(path: str, skipped: list[AnalysisWarning]) -> Steps | None:
    try:
        return _Stepped.model_validate_json(current(Path(path).read_bytes())).steps
    except (OSError, ValidationError) as error:
        skipped.append(skipped_record(path, f"its steps cannot be read ({type(error).__name__})"))
        return None


def write(tables: Iterable[pd.DataFrame], form: Format, path: Path) -> int:
    """Write tables of the same columns one after the other; the file is there whole or not at all. Returns the rows.

    Raises StoreError where it cannot be written, and RequestError where there is not a row.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            rows = _parquet(tables, temporary) if form == "parquet" else _text(tables, form, temporary)
            if not rows:
                raise RequestError("there is nothing to export: no trial of these is ok and has steps")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror or error}", remedy="free some space, or give another --out"
        ) from error
    return rows


def _text(tables: Iterable[pd.DataFrame], form: Format, path: Path) -> int:
    rows = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        for table in tables:
            for begin in range(0, len(table), _ROWS_AT_ONCE):
                part = table.iloc[begin : begin + _ROWS_AT_ONCE]
                file.write(text(part, form, header=not rows))
                rows += len(part)
        file.flush()
        os.fsync(file.fileno())
    return rows


def text(table: pd.DataFrame, form: Format, *, header: bool = True) -> str:
    """Return CSV with one line of names, or JSON Lines: an object per line, null for what is absent."""
    if form == "csv":
        return table.to_csv(index=False, header=header, lineterminator="\n")
    # 15 digits are what pandas has to give: the last bit of a double may differ from the record's.
    return table.to_json(orient="records", lines=True, double_precision=15) if len(table) else ""


def _parquet(tables: Iterable[pd.DataFrame], path: Path) -> int:
    import pyarrow
    from pyarrow import parquet

    rows = 0
    with ExitStack() as closing:
        writer = None
        for table in tables:
            converted = pyarrow.Table.from_pandas(table, preserve_index=False)
            if writer is None:
                writer = closing.enter_context(parquet.ParquetWriter(path, converted.schema))
            writer.write_table(converted)
            rows += len(table)
    return rows
