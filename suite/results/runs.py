"""Find the directories of runs and the sweeps around them, without importing what reads them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from suite.errors import RequestError
from suite.results import layout
from suite.results.layout import PLAN, TRIALS

if TYPE_CHECKING:
    from suite.sweep.directory import Accepted

SWEEP = layout.SWEEP
_DEPTH = 3
"""How deep runs lie below results: in a sweep that a schedule has made in a directory of its own."""


def is_run(directory: Path) -> bool:
    return (directory / PLAN).is_file()


def find_runs(directories: Sequence[Path]) -> list[Path]:
    """Return the runs at and below directories, in their order. Raises RequestError for one that does not exist."""
    for directory in directories:
        if not directory.is_dir():
            raise RequestError(f"no directory {directory}", remedy="name a run, a sweep, or a directory of them")
    below = (run for directory in directories for run in _runs(directory, _DEPTH))
    return list(dict.fromkeys(below))


def _runs(directory: Path, depth: int) -> Iterator[Path]:
    if is_run(directory):
        yield directory
    elif depth:
        below: list[str] = []
        with suppress(OSError), os.scandir(directory) as entries:
            # Links are not followed: they lead to what belongs elsewhere.
            directories = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
            named = (entry.path for entry in directories if not entry.name.startswith(layout.DOOMED))
            below = sorted(named)
        for path in below:
            yield from _runs(Path(path), depth - 1)


def runs_and_sweeps(directories: Sequence[Path]) -> list[Path]:
    """Return directories with each that only holds runs and sweeps replaced by these; a sweep stands for its cells.

    One that is named twice stays twice, for the gate to refuse. Raises RequestError for an existing directory that
    holds none.
    """
    places: list[Path] = []
    for directory in directories:
        is_place = is_run(directory) or (directory / SWEEP).exists() or (directory / TRIALS).exists()
        if is_place or not directory.is_dir():
            places.append(directory)
            continue
        below = find_runs([directory])
        if not below:
            raise RequestError(f"{directory} holds no run", remedy="name one that bench results list shows")
        places += dict.fromkeys(sweep_around(run) or run for run in below)
    return places


def contains(directory: Path, other: Path) -> bool:
    """Return whether a directory is the other one, or holds it at any depth; links are followed."""
    return other.resolve().is_relative_to(directory.resolve())


def find_run(name: str, results: Path | None = None) -> Path:
    """Return a run by its directory or its name below ``results``. Raises RequestError if there is none, or several."""
    if is_run(Path(name)):
        return Path(name)
    results = results or layout.results_directory()
    below = []
    if results.is_dir():
        below = find_runs([results])
    runs = [run for run in below if name in (run.name, f"{run.parent.name}/{run.name}")]
    if len(runs) == 1:
        return runs[0]
    if runs:
        raise RequestError(f"{name} is the name of {len(runs)} runs", remedy=f"choose {', '.join(map(str, runs))}")
    raise RequestError(f"there is no run {name}", remedy="name a directory that bench results list shows")


def accepted_sweep(directory: Path) -> "Accepted | None":
    """Return the plan in a sweep's directory; None in any other. Raises RequestError for a damaged one."""
    if not (directory / SWEEP).is_file():
        return None
    # Its model has a key for each option of each member of each registry: a fifth of a second to import.
    from suite.sweep.directory import SweepDirectory

    return SweepDirectory(directory).accepted()


def sweep_around(run: Path) -> Path | None:
    """Return the directory of the sweep of which a run is a cell; None for a run alone."""
    if (run.parent / SWEEP).is_file():
        return run.parent
    return None


def runs_below(directory: Path) -> list[Path]:
    """Return the runs of a sweep's directory: its cells that were begun. For any other directory, return itself.

    ``DIR/*`` of a shell names ``sweep.json`` too, which is not a run. Raises RequestError for a damaged plan.
    """
    if directory.name == SWEEP and directory.is_file():
        return []
    accepted = accepted_sweep(directory)
    if accepted is None:
        return [directory]
    return [directory / name for name in accepted.cells if (directory / name / TRIALS).is_dir()] or [directory]
