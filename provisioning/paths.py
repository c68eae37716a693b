"""The suite's own folders on this machine: its code and recipe, and what it keeps."""

import os
import tempfile
from pathlib import Path

from suite.errors import RequestError

ROOMS = Path(__file__).resolve().parents[1]
"""The directory that holds the suite's packages: a checkout of the repository, or site-packages."""
RECIPE = (Path(__file__).parent / "images/recipe").resolve()
"""The image's recipe: a link to docker/ in a checkout, a directory of the installed package."""


def home() -> Path:
    """Return where images, caches and the ledger are kept: ``VIRTBENCH_HOME``, or the usual place of this user."""
    if chosen := os.environ.get("VIRTBENCH_HOME"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/virtbench")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "virtbench"


def runtime() -> Path:
    """Return a private directory for the sockets and keys of running trials."""
    if os.geteuid() == 0:
        place = Path("/run/virtbench")
    else:
        base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        place = Path(base) / f"virtbench-{os.geteuid()}"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not through a link: in a directory that all may write to, somebody else could have made it first.
    if place.lstat().st_uid != os.geteuid():
        raise RequestError(f"{place} belongs to somebody else", remedy="set XDG_RUNTIME_DIR to a directory of your own")
    place.chmod(0o700)
    return place


def state(*parts: str) -> Path:
    """Return a directory below ``home``, made if it is missing, readable by this user alone."""
    place = home().joinpath(*parts)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place
