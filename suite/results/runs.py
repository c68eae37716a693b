"""Directories of runs: finding them, and a summary of each."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.errors import RequestError
from suite.records.headers import glances
from suite.results.store import PLAN, RESULTS, stored_plan

SWEEP = "sweep.json"
_DEPTH = 3
"""As deep as runs lie below results: in a sweep, which a schedule has made in a directory of its own."""


@dataclass(frozen=True)
class RunSummary:
    """One run. ``started_at`` and ``last_at`` are of its first and last trial, empty where there is none."""

    run_id: str
    directory: str
    started_at: str
    last_at: str
    scenario: str
    models: tuple[str, ...]
    targets: tuple[str, ...]
    blocks: int
    ok: int
    failed: int
    unreadable: int
    size_bytes: int
    """Of the records."""
    problem: str | None = None
    """Why the plan cannot be read."""


def is_run(directory: Path) -> bool:
    return (directory / PLAN).is_file()


def is_sweep(directory: Path) -> bool:
    """Whether it holds runs, and is none itself."""
    return not is_run(directory) and any(map(is_run, _below(directory)))


def find_runs(places: Sequence[Path]) -> list[Path]:
    """The runs at and below places: a run itself, runs in a directory, runs of sweeps there. In their order.

    Raises RequestError for a place that does not exist.
    """
    for place in places:
        if not place.is_dir():
            raise RequestError(f"no directory {place}", remedy="name a run, a sweep, or a directory of them")
    return list(dict.fromkeys(run for place in places for run in _runs(place, _DEPTH)))


def _runs(place: Path, depth: int) -> Iterator[Path]:
    if is_run(place):
        yield place
    elif depth:
        for child in _below(place):
            yield from _runs(child, depth - 1)


def _below(directory: Path) -> list[Path]:
    """The directories in a directory; links are not followed: what they lead to belongs elsewhere."""
    try:
        with os.scandir(directory) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def find_run(name: str, results: Path = RESULTS) -> Path:
    """A run by its directory or by its id below ``results``. Raises RequestError where there is none, or several."""
    if is_run(Path(name)):
        return Path(name)
    known = find_runs([results]) if results.is_dir() else []
    found = [run for run in known if name in (run.name, f"{run.parent.name}/{run.name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise RequestError(f"{name} is the name of {len(found)} runs", remedy=f"choose {', '.join(map(str, found))}")
    raise RequestError(f"there is no run {name}", remedy="name a directory, or an id that bench results list shows")


def summarise(run: Path) -> RunSummary:
    """Never raises for what the run holds: what is wrong with it is in the summary."""
    plan, problem = None, None
    try:
        plan = stored_plan(run)
    except RequestError as error:
        problem = error.message
    found = list(glances(run))
    times = [one.started_at for one in found if one.started_at]
    return RunSummary(
        run_id=run.resolve().name,
        directory=str(run),
        started_at=min(times, default=""),
        last_at=max(times, default=""),
        scenario=plan.job.scenario if plan else "",
        models=plan.models if plan else (),
        targets=plan.targets if plan else (),
        blocks=plan.blocks if plan else 0,
        ok=sum(one.ok is True for one in found),
        failed=sum(one.ok is False for one in found),
        unreadable=sum(one.ok is None for one in found),
        size_bytes=sum(one.size_bytes for one in found),
        problem=problem,
    )
