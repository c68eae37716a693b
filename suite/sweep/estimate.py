"""Estimate how long trials take from the records of earlier ones like them. Without such records it stays unknown."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel

from suite.plan import VMS, Plan, Trial
from suite.records.headers import RecordHeader, headers
from suite.results.store import TRIALS
from suite.trial_names import arm_name

MOST_RECORDS = 5000
"""The newest directories suffice: what was measured long ago says no more, and an estimate is wanted at once."""
Key = tuple[str | None, ...]


class Durations:
    """Medians of how long trials took to open, run and close, by what was run."""

    def __init__(self) -> None:
        self._seconds: defaultdict[Key, list[float]] = defaultdict(list)

    def add(self, header: RecordHeader) -> None:
        """Take a record into account; a failed one says nothing of how long a trial takes."""
        if header.ok:
            self._seconds[_key(header, header.options)].append(header.duration_s)

    def of(self, trial: Trial, options: Mapping[str, str]) -> float | None:
        """Return the seconds that the trial takes, None if unknown. ``options`` are those of its plan."""
        found = self._seconds.get(_key(trial, options))
        return statistics.median(found) if found else None

    def of_block(self, plan: Plan, block: int) -> float | None:
        """Return the seconds that one block of a plan takes; None as soon as one of its trials is unknown."""
        return total(self.of(trial, plan.options) for trial in plan.trials_of(block))


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


def _key(what: RecordHeader | Trial, options: Mapping[str, str]) -> Key:
    """Return what decides how long a trial takes: its job, its arm, and whether its guest is emulated."""

    def text(part: BaseModel | None) -> str | None:
        return part.model_dump_json() if part else None

    job = (what.scenario, what.model, what.profile, what.recipe, what.data, what.page_cache)
    parts = (text(what.workload), text(what.cluster), text(what.sharing))
    # The second bare metal of an A/A block is the first one again.
    arm = arm_name(what.target, 0, what.ablation, what.aggressor)
    return (*job, *parts, arm, options.get("accelerator") if what.target in VMS else None)
