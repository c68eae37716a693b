"""Files that users write. Some can make this process run commands: who may write those may run commands as this user.

A plan names an inventory, an inventory names an ssh_config(5) with its ``ProxyCommand`` and ``Match exec``, and a plan
for Slurm has options of sbatch. OpenSSH refuses an ssh_config of the user's that others may write; so are all of these.
"""

import grp
import os
import pwd
import stat
import tomllib
from pathlib import Path
from typing import Any

from suite.errors import RequestError

_LARGEST_BYTES = 1 << 20


def read_toml(path: Path, what: str, remedy: str) -> dict[str, Any]:
    """Return the content of a file. Raises RequestError if it cannot be read; ``what`` names it there."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_BYTES + 1)
        if len(text) > _LARGEST_BYTES:
            raise RequestError(f"{what} is larger than 1 MiB", remedy=remedy)
        return tomllib.loads(text.decode())
    except OSError as error:
        raise RequestError(f"cannot read {what}: {error.strerror}", remedy=remedy) from error
    # Not UTF-8, not TOML, a number of more digits than Python reads, or nested too deeply.
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{what} is not TOML: {error}", remedy=remedy) from error


def refuse_writable_by_others(path: Path, what: str) -> None:
    """Raise RequestError where anybody but this user and root may write the file, or put another in its place.

    A group of this user alone, as many systems make it for each, is nobody else. ``what`` says what the file is.
    """
    try:
        info = path.stat()
        directory = path.parent.stat()
    except OSError as error:
        raise RequestError(f"{what} {path}: {error.strerror}", remedy="name a file that can be read") from error
    if info.st_uid not in _trusted():
        why = f"it belongs to {_user(info.st_uid)}"
    elif info.st_mode & stat.S_IWOTH or (info.st_mode & stat.S_IWGRP and not _is_private(info.st_gid)):
        why = "others may write it"
    elif directory.st_mode & stat.S_IWOTH and not directory.st_mode & stat.S_ISVTX:
        why = f"others may put another in its place: they may write {path.parent}"
    else:
        return
    raise RequestError(
        f"{what} {path} is refused: {why}, and it can make bench run commands",
        remedy=f"see that it is what you mean, then: chown {os.geteuid()} {path}; chmod go-w {path} {path.parent}",
    )


def _trusted() -> set[int]:
    """Return the users whose files are trusted: root, this user, and the user that became root by sudo."""
    by_sudo = ""
    if os.geteuid() == 0:
        by_sudo = os.environ.get("SUDO_UID", "")
    return {0, os.geteuid(), *([int(by_sudo)] if by_sudo.isdigit() else [])}


def _is_private(group: int) -> bool:
    """Return whether the group is that of a trusted user, and has no other member."""
    try:
        entry = grp.getgrgid(group)
        owners = {pwd.getpwuid(user).pw_name for user in _trusted()}
    except KeyError:
        return False
    return entry.gr_name in owners and set(entry.gr_mem) <= {entry.gr_name}


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
