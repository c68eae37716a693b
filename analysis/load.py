"""Records to one table: a row per trial, failed ones too.

Made for 100,000 records: of each file only the fields that the tables need are validated and kept. What else a record
holds, above all the steps, is read again from ``path`` by who needs it.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from analysis.fields import COLUMNS, USED, Apart, Environments, Fields
from analysis.metrics import METRICS, Metric, spread
from analysis.warnings import AnalysisWarning, CopiedRecords, EmptyRun, SkippedRecord
from suite.errors import RequestError
from suite.records import SCHEMA_VERSION

FLOATS = (
    *("throughput_images_per_s", "elapsed_s", "open_s", "clock_ratio"),
    *("seen_cpus", "seen_memory_bytes", "seen_threads"),
    *("interval_s", "steal_s", "other_cpu_s", "throttled_s", "thermal_throttles", "swapped_bytes", "numa_nodes"),
    *("batch", "image_px", "warmup_steps", "steps"),
    *USED,
    *("devices", "data_bytes", "images_read", "damaged"),
    *("aggressor_before_per_s", "aggressor_beside_per_s"),
)
_CATEGORIES = ("run_id", "scenario", "data", "profile", "recipe", "model", "target")


@dataclass(frozen=True)
class Records:
    """The trials of one or more runs that count: those of warm-up blocks are left out by that rule.

    ``trials`` has one row per trial; its columns are ``fields.COLUMNS``, ``path``, the record's file, and in place of
    ``metrics`` a column of each of the ``metrics``. Absent values are missing, never zero. ``options`` and
    ``substitutes`` hold one item per line.
    """

    trials: pd.DataFrame
    directories: tuple[Path, ...]
    warnings: tuple[AnalysisWarning, ...]
    metrics: tuple[Metric, ...] = METRICS
    warmup_trials: int = 0
    """How many were left out."""


def load(directories: Sequence[Path]) -> Records:
    """Read DIR/trials/*.json of every directory.

    A file that is no usable record is left out with a SkippedRecord. Raises RequestError when a directory does not
    exist or when there is no usable record at all.
    """
    rows: list[tuple[Any, ...]] = []
    warnings: list[AnalysisWarning] = []
    unique = list(dict.fromkeys(Path(os.path.normpath(directory)) for directory in directories))
    for directory in unique:
        before = len(rows)
        for path in _files(directory):
            row = _read(path)
            if isinstance(row, SkippedRecord):
                warnings.append(row)
            else:
                rows.append((*row, path))
        if len(rows) == before:
            warnings.append(EmptyRun(directory))
    if not rows:
        raise _nothing(unique, warnings)
    return _table(rows, tuple(unique), warnings)


def _table(rows: list[tuple[Any, ...]], directories: tuple[Path, ...], warnings: list[AnalysisWarning]) -> Records:
    trials = pd.DataFrame.from_records(rows, columns=[*COLUMNS, "path"])
    # Without this a column that no trial has a value in would not be numeric. Categories make grouping fast.
    trials = trials.astype(dict.fromkeys(FLOATS, "float64") | dict.fromkeys(_CATEGORIES, "category"))
    copies = trials.duplicated(["run_id", "trial_id", "started_at"])
    if copies.any():
        warnings.append(CopiedRecords(int(copies.sum()), Path(str(trials.loc[copies, "path"].iloc[0]))))
        trials = trials[~copies].reset_index(drop=True)
    warm_up = trials["warm_up"].astype(bool)
    if warm_up.all():
        raise RequestError(
            f"there are {len(trials)} warm-up trials and no other in {', '.join(map(str, directories))}",
            remedy="let the run go on: the same bench run continues it",
        )
    if warm_up.any():
        trials = trials[~warm_up].reset_index(drop=True)
    counted = spread(trials)
    found = (*warnings, *counted.warnings)
    return Records(counted.trials, directories, found, counted.metrics, int(warm_up.sum()))


def _files(directory: Path) -> Iterator[str]:
    """The record files of a run, in the order of their names."""
    if not directory.is_dir():
        raise RequestError(f"no directory {directory}", remedy="name the directory of a run: the one given to --out")
    try:
        with os.scandir(directory / "trials") as entries:
            yield from sorted(entry.path for entry in entries if entry.name.endswith(".json"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise RequestError(f"cannot read {directory / 'trials'}: {error.strerror}") from error


def _read(path: str) -> tuple[Any, ...] | SkippedRecord:
    try:
        # Not Path.open: with 100,000 files, the objects and buffers of the easier ways are a third of the time.
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            content = file.readall()
    except OSError as error:
        return SkippedRecord(Path(path), f"it cannot be read ({error.strerror})", "check the file and its permissions")
    try:
        rest, _ = _cut(content, b"steps")
        rest, environment = _cut(rest, b"environment")
        if environment is None:
            return Fields.model_validate_json(rest).row()
        return Apart.model_validate_json(rest).row_in(_environments(environment))
    except ValidationError as error:
        return _diagnosis(Path(path), content, error)


def _cut(content: bytes, key: bytes) -> tuple[bytes, bytes | None]:
    """The record with null in place of what stands under a key, and that; None where it was not found.

    Step times and environments are most of a file and most of the time to parse it: the ones are not needed, and the
    others are nearly always those of the record before. Relies on how the store writes: one key of the record per line,
    indented by one. A line break cannot stand inside a JSON string, so in such a file the marks are what they look
    like; in a file written otherwise there are none.
    """
    mark = b'\n "' + key + b'": '
    begin = content.find(mark + b"{")
    end = content.find(b"\n }", begin)
    if begin < 0 or end < 0:
        return content, None
    begin += len(mark)
    return content[:begin] + b"null" + content[end + 3 :], content[begin : end + 3]


@lru_cache(maxsize=1024)
def _environments(content: bytes) -> Environments:
    return Environments.model_validate_json(content)


def _diagnosis(path: Path, content: bytes, error: ValidationError) -> SkippedRecord:
    """Why a file is not a record that can be used, from the most to the least foreign."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as reason:
        return SkippedRecord(path, f"it is not JSON ({reason})")
    version = found.get("schema_version") if isinstance(found, dict) else None
    if not isinstance(version, int):
        return SkippedRecord(path, "it is not a record of this suite (it has no schema_version)", "remove the file")
    if version > SCHEMA_VERSION:
        newer = f"its schema version is {version}, this suite reads up to {SCHEMA_VERSION}"
        return SkippedRecord(path, newer, "read it with the suite that wrote it, or a newer one")
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the record"
    return SkippedRecord(path, f"{place}: {first['msg']}")


def _nothing(directories: Sequence[Path], warnings: Sequence[AnalysisWarning]) -> RequestError:
    where = ", ".join(str(directory) for directory in directories)
    skipped = [warning.message for warning in warnings if isinstance(warning, SkippedRecord)]
    why = f" ({len(skipped)} files are left out; {skipped[0]})" if skipped else ""
    return RequestError(f"no usable record in {where}{why}", remedy="make some with: bench run --target all")
