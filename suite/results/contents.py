"""Tell what the suite has written in the directory of a run or a sweep from what others have put there.

A run is known by its plan, or by a manifest that lists one; a sweep by its accepted plan. A file belongs to it only if
it has a name that the suite gives in that place, and is a record where records lie.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.errors import RequestError
from suite.records.headers import read_head
from suite.records.reader import NewerRecordError
from suite.results import files, layout, notes, quality
from suite.results.layout import PLAN, SWEEP, TRIALS
from suite.results.runs import accepted_sweep
from suite.results.store import ATTEMPTS, LOCK, LOCKS, LOG, MANIFEST, MODELS, STOP, read_manifest, stored_plan

_ANYWHERE = {LOG, LOCK, STOP, notes.FILE, layout.REPORT}
_AT_TOP = {
    "run": {PLAN, MANIFEST, quality.FILE, *_ANYWHERE},
    "sweep": {SWEEP, layout.CONVERGED, layout.POOL, layout.CLUSTER, layout.FIRING, *_ANYWHERE},
    "log": {LOG, LOCK, STOP, notes.FILE},
}
"""The files of a directory itself. A request that was refused before its run began has left a log alone."""
_BELOW: Mapping[str, re.Pattern[str]] = {
    TRIALS: re.compile(r".+\.json"),
    ATTEMPTS: re.compile(r".+\.json"),
    MODELS: re.compile(r"[0-9a-f]{64}\.pt"),
    layout.PLOTS: re.compile(rf".+\.({'|'.join(layout.FIGURE_FORMATS)})"),
    layout.KEPT: re.compile(r"[0-9a-f]{32}"),
    layout.LOGS: re.compile(r".+\.log"),
    LOCKS: re.compile(r"[a-z0-9-]+\.json"),
}
"""The files of each directory below it. Those of records must be records, too."""


@dataclass(frozen=True)
class Contents:
    """The files that lie in the directory of a run or a sweep."""

    directory: Path
    kind: str
    """``run``, ``sweep``, or ``log`` for what a request has left that was refused before its run began."""
    runs: tuple[Path, ...]
    """The run itself, or the cells of the sweep."""
    identity: files.FileIdentity
    own: Mapping[Path, files.FileIdentity]
    """The files of the suite's; those that say what it is come last."""
    folders: tuple[Path, ...]
    """The directories of the suite's below it."""
    foreign: tuple[Path, ...]
    """What the suite has not written: files, links, whole directories."""
    size_bytes: int
    """The size of ``own``."""

    @property
    def trials(self) -> int:
        return Counter(path.parent.name for path in self.own)[TRIALS]


def kind_of(directory: Path) -> str | None:
    """Return the kind of what a directory holds, see ``Contents``; None if nothing says that the suite has made it."""
    if directory.is_file():
        return None
    if is_known_run(directory):
        return "run"
    if accepted_cells(directory) is not None:
        return "sweep"
    children = directory.iterdir()
    names = {path.name for path in children if path.is_file() and not path.is_symlink()}
    if LOG in names and names <= _AT_TOP["log"] and len(names) == len(os.listdir(directory)):
        return "log"
    return None


def is_known_run(directory: Path) -> bool:
    """Return whether a plan can be read there, or a manifest that lists one."""
    try:
        stored_plan(directory)
    except RequestError:
        return PLAN in _listed(directory) and (directory / PLAN).is_file()
    return True


def accepted_cells(directory: Path) -> frozenset[str] | None:
    """Return the names of a sweep's cells; None unless an accepted plan of a sweep can be read there."""
    try:
        accepted = accepted_sweep(directory)
    except RequestError:
        return None
    if accepted is None:
        return None
    return frozenset(accepted.cells)


def sweep_of_cell(run: Path) -> Path | None:
    """Return the sweep around a run, which must be one by its accepted plan; None for a run alone."""
    if accepted_cells(run.parent) is None:
        return None
    return run.parent


def contents_of(directory: Path) -> Contents:
    """Divide what lies in a directory. Raises RequestError unless it is a run, a sweep, or a log alone."""
    kind = kind_of(directory)
    if kind is None:
        raise RequestError(
            f"{directory} is no run and no sweep", remedy="name the directory of one: bench results list shows them"
        )
    identity = files.identity_of(directory.lstat())
    divided = [*_divided(directory, kind)]
    states = {path: path.lstat() for path, is_own in divided if is_own}
    own_files = [path for path, state in states.items() if stat.S_ISREG(state.st_mode)]
    own_files.sort(key=lambda path: (path.name == SWEEP, path.name == PLAN, path))
    return Contents(
        directory=directory,
        kind=kind,
        runs=_runs(directory, kind, own_files),
        identity=identity,
        own={path: files.identity_of(states[path]) for path in own_files},
        folders=tuple(sorted(states.keys() - own_files)),
        foreign=tuple(sorted(path for path, is_own in divided if not is_own)),
        size_bytes=sum(states[path].st_size for path in own_files),
    )


def _runs(directory: Path, kind: str, own: Sequence[Path]) -> tuple[Path, ...]:
    if kind == "sweep":
        plans = (path.parent for path in own if path.name == PLAN and path.parent != directory)
        return tuple(sorted(plans))
    return (directory,) if kind == "run" else ()


def kept_output(contents: Contents) -> dict[Path, files.FileIdentity]:
    """Return the files of the output that comparisons have kept in a run or a sweep."""
    return {path: identity for path, identity in contents.own.items() if path.parent.name == layout.KEPT}


def _divided(directory: Path, kind: str) -> Iterator[tuple[Path, bool]]:
    """Yield each file, link and directory, and whether it is the suite's; of foreign directories not the content."""
    listed = _listed(directory)
    cells = None
    if kind == "sweep":
        cells = accepted_cells(directory)
    for path in directory.iterdir():
        is_directory = path.is_dir() and not path.is_symlink()
        if not is_directory:
            named = path.name in _AT_TOP[kind] or files.is_temporary(path.name)
            yield path, named and _is_regular(path)
        elif path.name in _BELOW:
            yield from _divided_below(path, listed)
            yield path, True
        elif cells is not None and (path.name in cells or is_known_run(path)):
            yield from _divided(path, "run")
            yield path, True
        else:
            yield path, False


def _divided_below(directory: Path, listed: Mapping[str, object]) -> Iterator[tuple[Path, bool]]:
    form = _BELOW[directory.name]
    for path in directory.iterdir():
        named = form.fullmatch(path.name) is not None and _is_regular(path)
        if named and directory.name in (TRIALS, ATTEMPTS):
            named = f"{directory.name}/{path.name}" in listed or _is_record(path)
        yield path, named or (files.is_temporary(path.name) and _is_regular(path))


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _is_record(path: Path) -> bool:
    try:
        return read_head(path) is not None
    except NewerRecordError:
        return True


def _listed(directory: Path) -> Mapping[str, object]:
    try:
        manifest = read_manifest(directory)
    except RequestError:
        return {}
    return manifest.files if manifest else {}
