"""The files of a generated set: one is there with the content it must have, or it is drawn.

While a set is being made, a journal holds the files it already has: one line ``INDEX SHA256`` each. It is hidden, so
that it is no part of the data, and gone when the manifest is there, which holds the same.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from scenarios.datasets.formats.format import SetFormat
from scenarios.datasets.manifest import SetManifest, SetPlan, write_readable
from suite.registries import DATA_FORMATS
from suite.results import files

JOURNAL = ".made"
_LINE = re.compile(r"(\d{1,9}) ([0-9a-f]{64})")


@dataclass(frozen=True)
class Task:
    """Some files of a set, each with the hash it is known by; None where it has to be drawn."""

    directory: Path
    plan: SetPlan
    wanted: tuple[tuple[int, str | None], ...]


@dataclass(frozen=True)
class Made:
    """A file that is there. ``fresh``: it was drawn now."""

    index: int
    sha256: str
    fresh: bool


def format_of(plan: SetPlan) -> SetFormat:
    """Return the declaration of the plan's format. Raises RequestError for one that is unknown here."""
    form: SetFormat = DATA_FORMATS.get(plan.format)
    return form


def paths_of(plan: SetPlan) -> list[str]:
    """Return the path of every file, in the order of their numbers."""
    form = format_of(plan)
    return [form.path(plan, index) for index in range(form.files(plan))]


def ensure(task: Task) -> list[Made]:
    """Make the files of a task, in a worker process. Raises OSError when a file cannot be written."""
    made, form = [], format_of(task.plan)
    for index, known in task.wanted:
        path = task.directory / form.path(task.plan, index)
        if known and hash_of(path) == known:
            made.append(Made(index, known, fresh=False))
            continue
        content = form.content(task.plan, index)
        write_whole(path, content, task.directory)
        made.append(Made(index, hashlib.sha256(content).hexdigest(), fresh=True))
    return made


def hash_of(path: Path) -> str | None:
    """Return the SHA-256 of a file's content; None where there is no file."""
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError, files.SpecialFileError),
        open(path, "rb", opener=files.open_regular) as file,
    ):
        return hashlib.file_digest(file, "sha256").hexdigest()
    return None


def write_whole(path: Path, content: bytes, directory: Path) -> None:
    """Write a file of the set in ``directory``: whoever stops half-way leaves no half file."""
    with files.whole(path, below=directory, sync=False) as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o644)


def read_journal(directory: Path) -> dict[int, str]:
    """Return the hashes by index. A line that a crash left half-written does not count."""
    try:
        lines = files.read(directory / JOURNAL).decode("ascii", errors="replace").splitlines()
    except (FileNotFoundError, files.SpecialFileError):
        return {}
    return {int(match[1]): match[2] for match in map(_LINE.fullmatch, lines) if match}


def known_files(directory: Path, manifest: SetManifest | None) -> dict[int, str]:
    """Return the hashes of what was made before, by index."""
    if manifest is None:
        return read_journal(directory)
    form = format_of(manifest)
    hashes = ((index, manifest.files.get(form.path(manifest, index))) for index in range(form.files(manifest)))
    return {index: sha256 for index, sha256 in hashes if sha256} | read_journal(directory)


def begin_journal(directory: Path, known: Mapping[int, str]) -> None:
    """Write the journal anew: lines that are appended must not continue a half one."""
    write_readable(directory / JOURNAL, "".join(f"{index} {sha256}\n" for index, sha256 in known.items()))


def append(journal: TextIO, made: Iterable[Made]) -> None:
    journal.write("".join(f"{each.index} {each.sha256}\n" for each in made if each.fresh))
    journal.flush()
