"""The files of a generated set: an image is there with the content it must have, or it is drawn."""

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from scenarios.datasets.manifest import SetPlan
from scenarios.datasets.pictures import picture


@dataclass(frozen=True)
class Task:
    """Some images of a set, each with the hash it is known by; None where it has to be drawn."""

    directory: Path
    plan: SetPlan
    wanted: tuple[tuple[int, str | None], ...]


@dataclass(frozen=True)
class Made:
    """An image that is there. ``fresh``: it was drawn now."""

    index: int
    sha256: str
    fresh: bool


def ensure(task: Task) -> list[Made]:
    """Make the images of a task, in a worker process. Raises OSError when a file cannot be written."""
    return [_ensure(task.directory, task.plan, index, known) for index, known in task.wanted]


def _ensure(directory: Path, plan: SetPlan, index: int, known: str | None) -> Made:
    path = directory / plan.path_of(index)
    if known and hash_of(path) == known:
        return Made(index, known, fresh=False)
    content = picture(plan.seed, index, plan.size)
    write_whole(path, content)
    return Made(index, hashlib.sha256(content).hexdigest(), fresh=True)


def hash_of(path: Path) -> str | None:
    """Return the SHA-256 of a file's content; None where there is no file."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return None


def write_whole(path: Path, content: bytes) -> None:
    """Write under another name first: whoever stops half-way leaves no half image."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
