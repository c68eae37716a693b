"""The directory of a generated set: locked, free of other files, and on a disk with enough space."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scenarios.datasets.manifest import SetPlan, read_plan
from scenarios.datasets.pictures import MAKES
from suite.errors import RequestError


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make the directory if need be, and lock it against other processes."""
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
    """Raise RequestError unless the directory is empty, or holds this plan or the beginning of it."""
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


def check_disk_space(directory: Path, plan: SetPlan, missing: int) -> None:
    """Raise RequestError when ``missing`` more images do not fit where the directory lies or will lie."""
    place = next(path for path in (directory, *directory.absolute().parents) if path.is_dir())
    disk = os.statvfs(place)
    each, free = MAKES[plan.size].disk_bytes, disk.f_bavail * disk.f_frsize
    if missing * each > free:
        asked = f"{missing:,} images of about {each / 1e3:.0f} kB are {_size(missing * each)}"
        raise RequestError(
            f"{asked}; {place} has {_size(free)} free",
            remedy=f"{free // each:,} images fit: give fewer with --images, or a larger disk with --out",
        )
    # Some file systems have no fixed number of files, and say 0.
    if disk.f_files and missing > disk.f_favail:
        raise RequestError(
            f"{missing:,} images are {missing:,} files; {place} has room for {disk.f_favail:,} more",
            remedy="give fewer with --images, or another disk with --out",
        )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"
