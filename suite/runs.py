"""Directories of runs: finding them, and what can be told of each at a glance.

Made for 100,000 records: of each file only the beginning is read, and nothing is validated.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from suite.errors import RequestError
from suite.plan import Plan
from suite.store import RESULTS

PLAN, TRIALS, SWEEP = "plan.json", "trials", "sweep.json"
_HEAD_BYTES = 4096
_DEPTH = 3
"""As deep as runs lie below results: in a sweep, which a schedule has made in a directory of its own."""
_GLANCE = re.compile(rb'\n "started_at": "([^"]*)".*?\n "outcome": \{\s*"status": "(ok|failed)"', re.DOTALL)
"""As the store writes a record: these stand before the steps, which are most of it."""


@dataclass(frozen=True)
class Glance:
    """What the beginning of a record tells. ``ok`` is None where the file is no record."""

    trial_id: str
    """From the name of the file."""
    started_at: str
    ok: bool | None
    size_bytes: int


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


def glances(run: Path) -> Iterator[Glance]:
    """One per record file, in the order of the names."""
    try:
        with os.scandir(run / TRIALS) as entries:
            paths = sorted(entry.path for entry in entries if entry.name.endswith(".json") and entry.name[0] != ".")
    except OSError:
        return
    for path in paths:
        yield glance(path)


def glance(path: str) -> Glance:
    """Of one record file."""
    name = os.path.basename(path).removesuffix(".json")  # noqa: PTH119 (100,000 times)
    try:
        # Not Path.open: with 100,000 files, its objects and buffers are most of the time.
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            size_bytes = os.fstat(file.fileno()).st_size
            head = file.read(_HEAD_BYTES)
            if found := _GLANCE.search(head):
                return Glance(name, found[1].decode(errors="replace"), found[2] == b"ok", size_bytes)
            return _parsed(name, head + file.readall(), size_bytes)
    except OSError:
        return Glance(name, "", None, 0)


def _parsed(name: str, content: bytes, size_bytes: int) -> Glance:
    """Of a record that another program has formatted."""
    try:
        record = json.loads(content)
        return Glance(name, str(record["started_at"]), record["outcome"]["status"] == "ok", size_bytes)
    except (ValueError, KeyError, TypeError, RecursionError):
        return Glance(name, "", None, size_bytes)


def stored_plan(run: Path) -> Plan:
    """The plan of a run. Raises RequestError where it cannot be read."""
    try:
        return Plan.model_validate_json((run / PLAN).read_bytes())
    except (OSError, ValidationError) as error:
        problem = error.strerror if isinstance(error, OSError) else error.errors(include_url=False)[0]["msg"]
        raise RequestError(
            f"{run / PLAN} is not a plan of this suite: {problem}", remedy="give another directory"
        ) from error


def summarise(run: Path) -> RunSummary:
    """Never raises for what the run holds: what is wrong with it is in the summary."""
    problem = None
    plan = None
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
        scenario=plan.scenario if plan else "",
        models=plan.models if plan else (),
        targets=plan.targets if plan else (),
        blocks=plan.blocks if plan else 0,
        ok=sum(one.ok is True for one in found),
        failed=sum(one.ok is False for one in found),
        unreadable=sum(one.ok is None for one in found),
        size_bytes=sum(one.size_bytes for one in found),
        problem=problem,
    )
