"""Planned trials that were not run: what a run that ended early, or lost a record, has no number for."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from analysis.audit.planned import plan_of
from analysis.compare.pairing import job_of
from analysis.load.records import Records
from analysis.warnings.types import AnalysisWarning, Touched
from suite.errors import RequestError
from suite.results.store import TRIALS
from suite.sweep.directory import SweepDirectory
from suite.trial_names import arm_name


def missing_trials(records: Records, trials: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield the arms of each run that lack planned trials. Warm-up trials, which count in nothing, may be missing.

    ``trials`` have ``variant``. The blocks of an open-ended sweep are planned when they begin.
    """
    for run in records.directories:
        if (plan := plan_of(run)) is None:
            continue
        found = records.evidence[records.evidence["path"].str.startswith(f"{run / TRIALS}/")]
        there, begun = set(found["trial_id"]), found["block"].max()
        open_ended = _is_open_ended(run)
        missing: Counter[tuple[str, str, str]] = Counter()
        of: Counter[tuple[str, str, str]] = Counter()
        for planned in plan.places():
            if planned.warm_up or (open_ended and planned.block > begun):
                continue
            key = planned.job.model, planned.arm[0], arm_name(*planned.arm)
            of[key] += 1
            missing[key] += planned.trial_id not in there
        for (model, target, arm), count in sorted(missing.items()):
            if count:
                # What has no trial at all has no number that the warning could stand at.
                rows = trials[(trials["model"] == model) & (trials["target"] == target)]
                own = rows[rows["path"].str.startswith(f"{run / TRIALS}/")].head(1)
                yield AnalysisWarning(
                    "missing-trials",
                    f"planned trials of {run} are missing",
                    _advice(run),
                    f"{model} on {arm}, {count} of {of[model, target, arm]}",
                    tuple(Touched(job_of(row), target, model) for _, row in own.iterrows()),
                )


def _is_open_ended(run: Path) -> bool:
    """Return whether the run is a cell of a sweep that decides as it goes how many blocks it takes."""
    try:
        accepted = SweepDirectory(run.parent).accepted()
    except RequestError:
        return False
    return accepted is not None and accepted.sweep.open_ended


def _advice(run: Path) -> str:
    if (run.parent / "sweep.json").is_file():
        return f"go on with the sweep: bench sweep run FILE --out {run.parent}"
    return f"go on with the run: bench run --continue {run}"
