"""The directory of a set: taken by one process at a time, and only where nothing else is."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scenarios.datasets.manifest import SetPlan, read_plan
from suite.errors import RequestError


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """The directory, made if need be, and held against other processes."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        why = "is a file" if directory.is_file() else error.strerror
        raise RequestError(f"cannot make {directory}: {why}", remedy="give another directory with --out") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RequestError(f"another bench is making {directory}", remedy="wait for it") from error
        yield
    finally:
        os.close(handle)


def refuse_others(directory: Path, plan: SetPlan) -> None:
    """Raises RequestError unless the directory is empty, or holds this plan or the beginning of it."""
    stored = read_plan(directory)
    if stored is None:
        found = sorted(p.name for p in directory.iterdir() if not p.name.startswith(".") and p.name != "lost+found")
        if found:
            raise RequestError(
                f"{directory} holds something else: {', '.join(found[:3])}", remedy="give an empty or new directory"
            )
        return
    differing = [name for name in ("seed", "size", "classes") if getattr(stored, name) != getattr(plan, name)]
    if differing or stored.images > plan.images:
        was = f"--images {stored.images} --size {stored.size} --seed {stored.seed} --classes {stored.classes}"
        raise RequestError(
            f"{directory} holds a set of another plan: {', '.join(differing or ['images'])} differ",
            remedy=f"it was made with {was}; only --images may grow; or give another directory with --out",
        )
