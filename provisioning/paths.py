"""The suite's own folders on this machine: its code and recipe, and what it keeps."""

import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from suite.errors import RequestError

ROOMS = Path(__file__).resolve().parents[1]
"""The directory that holds the suite's packages: a checkout of the repository, or site-packages."""
MARK = ".made-by-virtbench"
"""The name of the file that marks a directory as made by the suite; ``bench clean --all`` empties no other."""
RECIPE = (Path(__file__).parent / "images/recipe").resolve()
"""The image's recipe: a link to docker/ in a checkout, a directory of the installed package."""


def bench_argv() -> list[str]:
    """Return the command that starts this bench from anywhere: its interpreter and its file, both absolute."""
    return [sys.executable, str(ROOMS / "cli.py")]


def home() -> Path:
    """Return where images, caches and the ledger are kept: ``VIRTBENCH_HOME``, or the usual place of this user."""
    usual: str | Path
    if os.geteuid() == 0:
        usual = "/var/lib"
    else:
        usual = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    # Without links: runc refuses a root filesystem whose path has one.
    return Path(os.environ.get("VIRTBENCH_HOME") or Path(usual, "virtbench")).resolve()


def runtime() -> Path:
    """Return a private directory for the sockets and keys of running trials."""
    if os.geteuid() == 0:
        directory = Path("/run/virtbench")
    else:
        directory = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"virtbench-{os.geteuid()}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not through a link: in a directory that all may write to, somebody else could have made it first.
    if directory.lstat().st_uid != os.geteuid():
        raise RequestError(
            f"{directory} belongs to somebody else", remedy="set XDG_RUNTIME_DIR to a directory of your own"
        )
    directory.chmod(0o700)
    return directory


def state(*parts: str) -> Path:
    """Return a directory below ``home``, made if it is missing, readable by this user alone.

    Raises RequestError where others may write to it or to the home: what is kept there is believed.
    """
    directory = home().joinpath(*parts)
    part = home() / parts[0]
    home().mkdir(mode=0o755, parents=True, exist_ok=True)
    refuse_foreign(home().resolve(), "set VIRTBENCH_HOME to a directory of your own")
    mark_empty(home())
    for made in (part, directory):
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_foreign(made.resolve(), "look at what is in it, and remove it; it is made again")
        mark_empty(part)
    return directory


def mark_empty(directory: Path) -> None:
    """Mark a directory as the suite's if nothing is in it yet."""
    if not os.listdir(directory):
        with suppress(OSError):  # the disk is full, or read-only: it is taken for the user's
            (directory / MARK).touch()


def refuse_foreign(directory: Path, remedy: str) -> None:
    """Raise RequestError unless it is a directory, no link, of this user's or root's that nobody else may write to."""
    info = directory.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise RequestError(f"{directory} is no directory", remedy=remedy)
    if info.st_uid not in (os.geteuid(), 0):
        raise RequestError(f"{directory} belongs to another user (uid {info.st_uid})", remedy=remedy)
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RequestError(
            f"others may write to {directory} (mode {stat.S_IMODE(info.st_mode):o})",
            remedy=f"if you trust what is in it: chmod go-w {directory}; else {remedy}",
        )
