"""Verifies that a generated set is still what it was when it was finished, byte by byte."""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from scenarios.datasets.images import hash_of
from scenarios.datasets.manifest import MANIFEST, PLAN, read_manifest, read_plan
from scenarios.datasets.parallel import Progress, spread, worker_count
from suite.errors import BenchError, RequestError
from worker.data.listing import files

_AT_ONCE = 256


@dataclass(frozen=True)
class _Task:
    directory: Path
    expected: tuple[tuple[str, str], ...]


def verify(directory: Path, workers: int | None = None, progress: Progress | None = None) -> list[str]:
    """Return what is missing, foreign or changed, a line each, sorted; nothing when the set is whole.

    Raises RequestError where there is no finished set, and BenchError when a file cannot be read.
    """
    manifest, count = read_manifest(directory), worker_count(workers)
    if manifest is None and read_plan(directory):
        raise RequestError(
            f"{directory} is not finished", remedy="run the bench data make again with which it was begun"
        )
    if manifest is None:
        raise RequestError(f"{directory} holds no {MANIFEST}", remedy="name a set that bench data list shows")
    expected = list(manifest.files.items())
    starts = range(0, len(expected), _AT_ONCE)
    tasks = (_Task(directory, tuple(expected[start : start + _AT_ONCE])) for start in starts)
    done = 0
    try:
        there = (os.fsdecode(path) for path, _ in files(directory))
        found = [f"{path}: is no part of the set" for path in there if path not in manifest.files and path != PLAN]
        if not (directory / PLAN).exists():
            found.append(f"{PLAN}: is missing")
        elif (directory / PLAN).read_text(errors="replace") != manifest.text():
            found.append(f"{PLAN}: other content")
        with closing(spread(_differences, tasks, min(count, len(starts)))) as results:
            for differences in results:
                found += differences
                done = min(done + _AT_ONCE, len(expected))
                if progress:
                    progress(done, len(expected))
    except OSError as error:
        raise BenchError(
            f"cannot read {error.filename or directory}: {error.strerror}", remedy="mend it, and verify again"
        ) from error
    return sorted(found)


def _differences(task: _Task) -> list[str]:
    """Return the differences of a task's files, in a worker process."""
    found = []
    for path, expected in task.expected:
        seen = hash_of(task.directory / path)
        if seen != expected:
            found.append(f"{path}: other content" if seen else f"{path}: is missing")
    return found
