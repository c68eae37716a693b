"""Records to one table: a row per trial, failed ones too.

Made for 100,000 records: of each file only the fields that the tables need are validated and kept. What else a record
holds, above all the steps, is read again from ``path`` by who needs it.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.load.bursts import settled
from analysis.load.evidence import EVIDENCE, STEP_COLUMNS
from analysis.load.evidence import FLOATS as EVIDENCE_FLOATS
from analysis.load.fields import COLUMNS, TURNS, USED
from analysis.load.metrics import METRICS, Metric, spread
from analysis.load.reader import Reader
from analysis.warnings.types import AnalysisWarning
from suite.errors import RequestError
from suite.sweep.directory import runs_below

FLOATS = (
    *("throughput_per_s", "elapsed_s", "open_s", *STEP_COLUMNS, "clock_ratio"),
    *("host_cpus", "host_memory_bytes"),
    *("seen_cpus", "seen_memory_bytes", "seen_threads"),
    *("interval_s", "steal_s", "other_cpu_s", "throttled_s", "thermal_throttles", "swapped_bytes", "numa_nodes"),
    *("batch", "image_px", "warmup_steps", "steps"),
    *USED,
    *("devices", "data_bytes", "images_read", "damaged"),
    *("aggressor_before_per_s", "aggressor_beside_per_s"),
    *TURNS,
)
_CATEGORIES = (
    "run_id",
    "scenario",
    "data",
    "profile",
    "recipe",
    "model",
    "target",
    "engine",
    "isa",
    "design",
    "unit",
    "rounds_freely",
    "settings",
    "facts",
)


@dataclass(frozen=True)
class Records:
    """The trials of one or more runs that count: those of warm-up blocks are left out by that rule.

    ``trials`` has one row per trial; its columns are ``fields.COLUMNS``, ``path``, the record's file, and in place of
    ``metrics`` a column of each of the ``metrics``, and ``forced``, which the audit fills. Absent values are missing,
    never zero. ``settings`` is the comparison key as text, ``substitutes`` holds one per line.
    """

    trials: pd.DataFrame
    directories: tuple[Path, ...]
    warnings: tuple[AnalysisWarning, ...]
    metrics: tuple[Metric, ...] = METRICS
    warmup_trials: int = 0
    """The number of trials of warm-up blocks that were left out."""
    evidence: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False, repr=False)
    """Every record that was read, those of warm-up blocks and copies too, with the columns that the audit needs."""


def load(directories: Sequence[Path], *, warm_ups: bool = False) -> Records:
    """Read DIR/trials/*.json of every directory; of a sweep's directory, of each of its cells.

    ``warm_ups`` leaves the trials of warm-up blocks in. A file that is no usable record is left out with a
    warning. Raises RequestError when a directory does not exist or when there is no usable record at all.
    """
    rows: list[tuple[Any, ...]] = []
    warnings: list[AnalysisWarning] = []
    read = Reader()
    given = (Path(os.path.normpath(directory)) for directory in directories)
    unique = list(dict.fromkeys(run for directory in given for run in runs_below(directory)))
    for directory in unique:
        before = len(rows)
        for path in _files(directory):
            row = read(path)
            if isinstance(row, AnalysisWarning):
                warnings.append(row)
            else:
                rows.append((*row[0], *row[1], path))
        if len(rows) == before:
            advice = f"go on with its run (bench run … --out {directory}), or leave it out"
            warnings.append(AnalysisWarning("empty-run", f"{directory} holds no usable record", advice))
    if not rows:
        where = ", ".join(map(str, unique))
        skipped = [warning.message for warning in warnings if warning.kind == "skipped-record"]
        why = f" ({len(skipped)} files are left out; {skipped[0]})" if skipped else ""
        raise RequestError(f"no usable record in {where}{why}", remedy="make some with: bench run --target all")
    return _table(rows, tuple(unique), warnings, warm_ups)


def _table(
    rows: list[tuple[Any, ...]], directories: tuple[Path, ...], warnings: list[AnalysisWarning], warm_ups: bool
) -> Records:
    evidence = pd.DataFrame.from_records(rows, columns=[*COLUMNS, *EVIDENCE, "path"])
    # Without this a column that no trial has a value in would not be numeric. Categories make grouping fast.
    floats, categories = dict.fromkeys((*FLOATS, *EVIDENCE_FLOATS), "float64"), dict.fromkeys(_CATEGORIES, "category")
    evidence = evidence.astype(floats | categories)
    if evidence["alternation"].notna().any():
        evidence["burst_s"] = settled(evidence)
    trials = evidence.drop(columns=list(EVIDENCE)).assign(forced="")
    copies = trials.duplicated(["run_id", "trial_id", "started_at"])
    if copies.any():
        first = trials.loc[copies, "path"].iloc[0]
        found = f"{copies.sum()} records are copies of others and count once (the first: {first})"
        warnings.append(AnalysisWarning("copied-records", found, "name each run once"))
        trials = trials[~copies].reset_index(drop=True)
    trials = trials.assign(run_id=_run_ids(trials))
    warm_up = trials["warm_up"].astype(bool) & (not warm_ups)
    if warm_up.all():
        raise RequestError(
            f"there are {len(trials)} warm-up trials and no other in {', '.join(map(str, directories))}",
            remedy="let the run go on: the same bench run continues it",
        )
    if warm_up.any():
        trials = trials[~warm_up].reset_index(drop=True)
    counted = spread(trials)
    known = (*warnings, *counted.warnings)
    return Records(counted.trials, directories, known, counted.metrics, int(warm_up.sum()), evidence)


def _run_ids(trials: pd.DataFrame) -> pd.Series:
    """Return the ids of the runs; of runs that have the same one, such as cells of two sweeps, their directories.

    An id is the name of a directory. Two trials of one name that are no copies are of two runs, and a ratio of one to
    the other would be none inside a block.
    """
    ids = trials["run_id"]
    twice = ids.isin(ids[trials.duplicated(["run_id", "trial_id"])])
    if not twice.any():
        return ids
    directories = trials["path"].map(lambda path: str(Path(path).parents[1]))
    return ids.astype(object).mask(twice, directories).astype("category")


def _files(directory: Path) -> Iterator[str]:
    """Yield the record files of a run, in the order of their names."""
    if not directory.is_dir():
        raise RequestError(f"no directory {directory}", remedy="name the directory of a run: the one given to --out")
    try:
        with os.scandir(directory / "trials") as entries:
            yield from sorted(entry.path for entry in entries if entry.name.endswith(".json"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise RequestError(f"cannot read {directory / 'trials'}: {error.strerror}") from error
