"""Remove old runs by a stated rule: only runs, and never one that is in use or named to be kept."""

import datetime
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from suite.errors import RequestError
from suite.results import files
from suite.results.runs import find_runs, is_run, is_sweep, summarise
from suite.results.store import LOCK, PLAN, TRIALS, StoreError
from suite.sweep.locks import holders


@dataclass(frozen=True)
class PruneCandidate:
    """A run, or a sweep with its runs. ``kept`` says why it stays; with None it is to be removed."""

    directory: Path
    last_at: datetime.datetime
    size_bytes: int
    kept: str | None


@dataclass(frozen=True)
class PruneRule:
    """A run stays if it is among the ``last`` newest, or younger than ``days``, or named in ``kept``.

    Raises RequestError for a rule that would keep nothing by itself.
    """

    last: int | None = None
    days: float | None = None
    kept: Collection[Path] = ()

    def __post_init__(self) -> None:
        if self.last is None and self.days is None:
            raise RequestError("nothing says which runs stay", remedy="give --keep-last 10, --keep-days 30, or both")
        for name, value in (("--keep-last", self.last), ("--keep-days", self.days)):
            if value is not None and value <= 0:
                raise RequestError(f"{name} {value:g} would keep nothing", remedy="give a number above 0")
        for run in self.kept:
            if not run.is_dir():
                raise RequestError(
                    f"--keep {run}: there is no such run", remedy="name a directory of bench results list"
                )

    def reason(self, directory: Path, place: int, age: datetime.timedelta) -> str | None:
        """Return why the run at this place from the newest (0) stays; None if it goes."""
        own = directory.resolve()
        if any(own == run.resolve() or own in run.resolve().parents for run in self.kept):
            return "it is named to be kept"
        if self.last is not None and place < self.last:
            return f"it is among the last {self.last}"
        if self.days is not None and age < datetime.timedelta(days=self.days):
            return f"it is younger than {self.days:g} days"
        return None


def candidates(results: Path, rule: PruneRule, now: datetime.datetime) -> list[PruneCandidate]:
    """Return the runs and sweeps in a directory of results, newest first. Raises RequestError if it does not exist."""
    if not results.is_dir():
        raise RequestError(f"no directory {results}", remedy="name a directory of runs, such as results")
    found = [(directory, *_age_and_size(directory)) for directory in sorted(results.iterdir()) if _ours(directory)]
    found.sort(key=lambda one: (one[1], one[0].name), reverse=True)
    return [
        PruneCandidate(
            directory, last_at, size_bytes, rule.reason(directory, place, now - last_at) or _in_use(directory)
        )
        for place, (directory, last_at, size_bytes) in enumerate(found)
    ]


def remove(entry: PruneCandidate) -> None:
    """Remove it. Raises RequestError if it has come into use since it was listed, StoreError if that fails."""
    with ExitStack() as held:
        if entry.kept or not _ours(entry.directory) or not _hold(entry.directory, held):
            raise RequestError(f"{entry.directory} is kept: {entry.kept or 'it has come into use'}")
        # The records first: an interrupted removal leaves a run, which the next one finds.
        try:
            for run in find_runs([entry.directory]):
                with files.directory(run / TRIALS, entry.directory) as place:
                    for name in os.listdir(place):
                        os.unlink(name, dir_fd=place)
            shutil.rmtree(entry.directory)
        except OSError as error:
            raise StoreError(f"cannot remove {entry.directory}: {error.strerror}") from error


def _ours(directory: Path) -> bool:
    """Return whether it is a run that has begun (a plan and a directory of trials), or a sweep of such; no link."""
    if directory.is_symlink() or not (is_run(directory) or is_sweep(directory)):
        return False
    return all((run / TRIALS).is_dir() and not (run / TRIALS).is_symlink() for run in find_runs([directory]))


def _age_and_size(directory: Path) -> tuple[datetime.datetime, int]:
    summaries = [summarise(run) for run in find_runs([directory])]
    last_at = max(summary.last_at for summary in summaries)
    return _time(last_at, directory), sum(summary.size_bytes for summary in summaries)


def _time(last_at: str, directory: Path) -> datetime.datetime:
    """Return the time of the last trial; when the run was begun if it has no trial."""
    try:
        found = datetime.datetime.fromisoformat(last_at)
    except ValueError:
        begun_s = max((run / PLAN).stat().st_mtime for run in find_runs([directory]))
        return datetime.datetime.fromtimestamp(begun_s, datetime.UTC)
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _in_use(directory: Path) -> str | None:
    with ExitStack() as held:
        return None if _hold(directory, held) else "it is in use"


def _hold(directory: Path, held: ExitStack) -> bool:
    """Lock every run against other processes; return False where one is in use."""
    if holders(directory):
        return False
    for path in _locks(directory):
        try:
            descriptor = files.open_regular(path, os.O_RDWR)
            held.callback(os.close, descriptor)
            files.lock(descriptor)
        except OSError:
            return False
    return True


def _locks(directory: Path) -> Iterator[Path]:
    places = dict.fromkeys((directory, *find_runs([directory])))
    yield from (place / LOCK for place in places if (place / LOCK).exists())
