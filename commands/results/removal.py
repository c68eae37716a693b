"""Removes runs and sweeps: judges what a directory holds, moves the suite's files out of it, and deletes them.

Everything that deletes results comes here: ``bench results remove``, the pages, schedules and ``bench clean --all``.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from provisioning import ledger
from suite.errors import RequestError
from suite.results.contents import Contents, contents_of, kind_of, sweep_of_cell
from suite.results.layout import DOOMED
from suite.results.runs import contains
from suite.results.store import StoreError
from suite.sweep.locks import holders
from suite.units import count


def removable(place: Path) -> Contents:
    """Return what would be removed of a run or a sweep. Raises RequestError for what must not be removed."""
    if place.is_symlink():
        raise RequestError(f"{place} is a link, and no run and no sweep", remedy=f"name {place.resolve()}")
    directory = place.resolve()
    if not directory.is_dir():
        raise RequestError(f"{place} is no run and no sweep", remedy="name the directory of one: bench results list")
    if contains(directory, Path.cwd()):
        raise RequestError(f"{place} is or holds the working directory", remedy="leave it first: cd")
    if sweep := sweep_of_cell(directory):
        raise RequestError(f"{place} is a cell of a sweep", remedy=f"remove the whole sweep: {sweep}")
    contents = contents_of(directory)
    _refuse_what_is_used(place, contents)
    return contents


def _refuse_what_is_used(place: Path, contents: Contents) -> None:
    if mounted := [point for point in ledger.mounts() if point.is_relative_to(contents.directory)]:
        raise RequestError(f"something is mounted on {mounted[0]}", remedy="unmount it first, or leave it there")
    if other := next(_other_runs(contents), None):
        raise RequestError(f"{place} holds another run: {other}", remedy="move it to another directory first")
    writing = [Path(entry.what) for entry in ledger.living() if entry.kind == "run-directory"]
    if any(contains(contents.directory, path) for path in writing) or holders(contents.directory):
        raise RequestError(f"a running bench writes {place}", remedy="stop it first: bench sweep stop, or Ctrl-C")


def _other_runs(contents: Contents) -> Iterator[Path]:
    """Yield the runs and sweeps inside the directories that are not the suite's."""
    for foreign in contents.foreign:
        for directory, _, _ in os.walk(foreign):
            if kind_of(Path(directory)) in ("run", "sweep"):
                yield Path(directory)


def described(contents: Contents) -> str:
    """Return ``sweep, 2 runs, 24 trials, 1.3 MB``."""
    runs = count(len(contents.runs), "run")
    parts = [contents.kind] if contents.kind != "run" else []
    return ", ".join([*parts, runs, count(contents.trials, "trial"), f"{contents.size_bytes / 1e6:,.1f} MB"])


def remove(contents: Contents) -> None:
    """Rename the suite's files into a doomed directory beside the run, then delete that. Foreign files stay.

    After a kill in between, ``bench clean`` deletes what was renamed. Raises OSError.
    """
    doomed = contents.directory.parent / ledger.fresh(DOOMED)
    with ExitStack() as stack:
        try:
            stack.enter_context(ledger.holding("removal", str(doomed)))
        except StoreError:  # the disk of the ledger is full, and removing may be what frees it
            stack.callback(shutil.rmtree, doomed, ignore_errors=True)
        if contents.foreign:
            doomed.mkdir(mode=0o700)
            _move(contents.directory, contents.own, doomed)
        else:
            contents.directory.rename(doomed)


def _move(directory: Path, own: Sequence[Path], doomed: Path) -> None:
    for path in own:
        target = doomed / path.relative_to(directory)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    emptied = {parent for path in own for parent in path.relative_to(directory).parents}
    for parent in sorted(emptied, key=lambda parent: len(parent.parts), reverse=True):
        with suppress(OSError):  # it holds a foreign file
            (directory / parent).rmdir()
