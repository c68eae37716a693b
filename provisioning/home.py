"""The suite's own folders on this machine."""

import os
import tempfile
from pathlib import Path


def home() -> Path:
    """Where images, caches and the ledger are kept: ``VIRTBENCH_HOME``, or the usual place of this user."""
    if chosen := os.environ.get("VIRTBENCH_HOME"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/virtbench")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "virtbench"


def runtime() -> Path:
    """A private directory for the sockets and keys of running trials; short: a socket's path has 108 bytes at most."""
    if os.geteuid() == 0:
        place = Path("/run/virtbench")
    else:
        base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        place = Path(base) / f"virtbench-{os.geteuid()}"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = place.stat()
    if info.st_uid != os.geteuid() or info.st_mode & 0o077:
        # Somebody else made it first, in a directory that all may write to: nothing of ours goes there.
        return Path(tempfile.mkdtemp(prefix="virtbench-"))
    return place


def state(*parts: str) -> Path:
    """A directory below ``home``, made when it is missing, readable by this user alone."""
    place = home().joinpath(*parts)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place
