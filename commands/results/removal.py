"""Removes runs and sweeps: judges what a directory holds, and deletes the files of the suite's.

Everything that deletes results comes here: ``bench results remove``, the pages, schedules, blocks of remote sweeps and
``bench clean --all``.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from provisioning import ledger
from provisioning.removal.deletion import delete
from suite.errors import RequestError
from suite.results.contents import Contents, contents_of, kept_output, kind_of, sweep_of_cell
from suite.results.layout import KEPT
from suite.results.runs import contains
from suite.sweep.locks import holders
from suite.units import count


def removable(place: Path) -> Contents:
    """Return what would be removed of a run or a sweep. Raises RequestError for what must not be removed."""
    if place.is_symlink():
        raise RequestError(f"{place} is a link, and no run and no sweep", remedy=f"name {place.resolve()}")
    directory = place.resolve()
    if not directory.is_dir():
        raise RequestError(f"{place} is no run and no sweep", remedy="name the directory of one: bench results list")
    owner_uid = directory.stat().st_uid
    above_uid = directory.parent.stat().st_uid
    if owner_uid not in (os.geteuid(), 0, above_uid):
        raise RequestError(f"{place} belongs to another user (uid {owner_uid})", remedy="remove it as that user")
    if contains(directory, Path.cwd()):
        raise RequestError(f"{place} is or holds the working directory", remedy="leave it first: cd")
    sweep = sweep_of_cell(directory)
    if sweep:
        raise RequestError(f"{place} is a cell of a sweep", remedy=f"remove the whole sweep: {sweep}")
    contents = contents_of(directory)
    _refuse_what_is_used(place, contents)
    return contents


def _refuse_what_is_used(place: Path, contents: Contents) -> None:
    for point in ledger.mounts():
        if point.is_relative_to(contents.directory):
            raise RequestError(f"something is mounted on {point}", remedy="unmount it first, or leave it there")
    other = next(_other_runs(contents), None)
    if other:
        raise RequestError(f"{place} holds another run: {other}", remedy="move it to another directory first")
    running = (entry for entry in ledger.living() if entry.kind == "run-directory")
    directories = [Path(entry.what) for entry in running]
    written = any(contains(contents.directory, directory) for directory in directories)
    if written or holders(contents.directory):
        raise RequestError(f"a running bench writes {place}", remedy="stop it first: bench sweep stop, or Ctrl-C")


def _other_runs(contents: Contents) -> Iterator[Path]:
    """Yield the runs and sweeps inside the directories that are not the suite's."""
    for foreign in contents.foreign:
        for directory, _, _ in os.walk(foreign):
            if kind_of(Path(directory)) in ("run", "sweep"):
                yield Path(directory)


def described(contents: Contents) -> str:
    """Return ``sweep, 2 runs, 24 trials, 1.3 MB``."""
    parts = [
        count(len(contents.runs), "run"),
        count(contents.trials, "trial"),
        f"{contents.size_bytes / 1e6:,.1f} MB",
    ]
    if contents.kind != "run":
        parts.insert(0, contents.kind)
    return ", ".join(parts)


def name_foreign(path: Path) -> None:
    """Print that a file stays because the suite has not made it."""
    click.echo(f"stays, as it is not of the suite: {path}", err=True)


def remove(contents: Contents) -> None:
    """Delete the suite's files. Foreign files stay. Raises OSError, and RequestError if a name means another now."""
    delete(contents.directory, contents.identity, contents.own, contents.folders)


def remove_kept(run: Path) -> bool:
    """Delete the kept output of comparisons in a run; return whether there was any. Raises as ``remove`` does."""
    contents = contents_of(run.resolve())
    outputs = kept_output(contents)
    if outputs:
        folders = [folder for folder in contents.folders if folder.name == KEPT]
        delete(contents.directory, contents.identity, outputs, folders)
    return bool(outputs)
