"""Estimate how long trials take from the records of earlier ones like them. Without such records it stays unknown."""

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from suite.job.job import leaves
from suite.plan import Plan, Trial
from suite.records.headers import RecordHeader, headers
from suite.results.store import TRIALS
from suite.targets import VMS
from suite.trial_names import arm_name

MOST_RECORDS = 5000
"""The newest directories suffice: what was measured long ago says no more, and an estimate is wanted at once."""


class Durations:
    """Medians of how long trials took to open, run and close, by what was run."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, header: RecordHeader) -> None:
        """Take a record into account; a failed one says nothing of how long a trial takes."""
        if header.ok:
            self._seconds[_key(header.job, header)].append(header.duration_s)

    def of(self, trial: Trial) -> float | None:
        """Return the seconds that the trial takes; None if no record is like it."""
        found = self._seconds.get(_key(trial.job.model_dump(mode="json"), trial))
        return statistics.median(found) if found else None

    def of_block(self, plan: Plan, block: int) -> float | None:
        """Return the seconds that one block of a plan takes; None as soon as one of its trials is unknown."""
        return total(self.of(trial) for trial in plan.trials_of(block))


def durations_below(directory: Path) -> Durations:
    """Return what the newest records below a directory of runs and sweeps tell."""
    runs = [directory, *directory.glob("*"), *directory.glob("*/*")]
    begun = [run for run in runs if (run / TRIALS).is_dir()]
    newest = sorted(begun, key=lambda each: (each / TRIALS).stat().st_mtime, reverse=True)
    found = Durations()
    for header in itertools.islice(itertools.chain.from_iterable(map(headers, newest)), MOST_RECORDS):
        found.add(header)
    return found


def total(seconds: Iterable[float | None]) -> float | None:
    """Return the sum; None as soon as one is unknown."""
    each = list(seconds)
    return None if None in each else sum(filter(None, each))


def _key(job: Mapping[str, Any], what: RecordHeader | Trial) -> str:
    """Return what trials that take equally long have in common: the job and the arm."""
    same = dict(leaves(job))
    accelerator = same.get("layers.accelerator") if what.target in VMS else None
    # A new image, or another engine, says little of how long a trial takes, and is to find earlier records.
    same = {name: value for name, value in same.items() if not name.startswith("layers.")}
    # The second bare metal of an A/A block is the first one again.
    arm = arm_name(what.target, 0, what.ablation, what.aggressor)
    return json.dumps([same, accelerator, arm], sort_keys=True)
