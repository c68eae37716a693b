"""Whether a set fits on its disk: said before the first of a million files, with the arithmetic."""

import os
from pathlib import Path

from scenarios.datasets.manifest import SetPlan
from scenarios.datasets.pictures import MAKES
from suite.errors import RequestError


def check_room(directory: Path, plan: SetPlan, missing: int) -> None:
    """Raises RequestError when ``missing`` more images of the set do not fit where the directory lies or will lie."""
    place = next(path for path in (directory, *directory.absolute().parents) if path.is_dir())
    room = os.statvfs(place)
    each, free = MAKES[plan.size].room_bytes, room.f_bavail * room.f_frsize
    if missing * each > free:
        asked = f"{missing:,} images of about {each / 1e3:.0f} kB are {_size(missing * each)}"
        raise RequestError(
            f"{asked}; {place} has {_size(free)} free",
            remedy=f"{free // each:,} images fit: give fewer with --images, or a larger disk with --out",
        )
    # Some file systems have no fixed number of files, and say 0.
    if room.f_files and missing > room.f_favail:
        raise RequestError(
            f"{missing:,} images are {missing:,} files; {place} has room for {room.f_favail:,} more",
            remedy="give fewer with --images, or another disk with --out",
        )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"
