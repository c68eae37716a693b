"""How long trials take, from records of earlier ones like them. What nothing like it is known of stays unknown."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from suite.errors import RequestError
from suite.job.job import leaves
from suite.plan import VMS, Plan, Trial
from suite.records.migrations import current
from suite.results.store import TRIALS

MOST_RECORDS = 5000
"""Of the newest directories: what was measured long ago says no more, and an estimate is to be there at once."""


class Durations:
    """Medians of opening, elapsed and closing together, by what was run."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, record: Mapping[str, Any]) -> None:
        """A record as its JSON has it; one that failed says nothing of how long it takes."""
        if (record.get("outcome") or {}).get("status") == "ok":
            self._seconds[_key(record)].append(duration_s(record))

    def of(self, trial: Trial) -> float | None:
        """Return the median in seconds; None where no record is like the trial."""
        found = self._seconds.get(_key(trial.model_dump(mode="json", include={"job", "target", "aggressor"})))
        return statistics.median(found) if found else None

    def of_block(self, plan: Plan, block: int) -> float | None:
        """Seconds of one block of a plan; None as soon as one of its trials is unknown."""
        each = [self.of(trial) for trial in plan.trials_of(block)]
        return None if None in each else sum(filter(None, each))


def duration_s(record: Mapping[str, Any]) -> float:
    return sum(record.get(name) or 0.0 for name in ("open_s", "elapsed_s", "close_s"))


def durations_below(directory: Path) -> Durations:
    """Of the newest records below a directory of runs and sweeps."""
    found = Durations()
    for number, record in enumerate(_records(directory)):
        if number >= MOST_RECORDS:
            break
        found.add(record)
    return found


def raw_records(run: Path) -> Iterator[dict[str, Any]]:
    """The records of a run as their JSON has them; what is none is left out."""
    for path in sorted((run / TRIALS).glob("*.json")):
        try:
            record = json.loads(current(path.read_bytes()))
        except (OSError, ValueError, RequestError):
            continue
        if isinstance(record, dict) and isinstance(record.get("trial_id"), str):
            yield record


def _records(directory: Path) -> Iterator[dict[str, Any]]:
    runs = [directory, *directory.glob("*"), *directory.glob("*/*")]
    begun = [run for run in runs if (run / TRIALS).is_dir()]
    for run in sorted(begun, key=lambda each: (each / TRIALS).stat().st_mtime, reverse=True):
        yield from raw_records(run)


def _key(what: Mapping[str, Any]) -> str:
    """Return what trials that take equally long have in common: the job, the target, and what runs beside it."""
    job = dict(leaves(what.get("job") or {}))
    # Neither says much of how long a trial takes, and a new image or another engine is to find earlier records.
    other = [name for name in job if name.startswith("layers.") and name != "layers.accelerator"]
    if what.get("target") not in VMS:
        other.append("layers.accelerator")
    same = {name: value for name, value in job.items() if name not in other}
    return json.dumps([same, what.get("target"), what.get("aggressor")], sort_keys=True)


def total(seconds: Iterable[float | None]) -> float | None:
    """The sum; None as soon as one is unknown."""
    each = list(seconds)
    return None if None in each else sum(filter(None, each))
