"""A user without root for the tests: an account that every Debian has, with a home of the suite's and a bench there."""

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provisioning.paths import home
from tests.integration.machine import require_root_and_image
from tests.integration.remote_sweep import REPOSITORY

ACCOUNT = "games"


@dataclass(frozen=True)
class User:
    """``place`` is a directory of the user's."""

    place: Path
    bench: str
    """The command, with an environment of the user's."""

    def run(self, argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> "subprocess.CompletedProcess[str]":
        account = pwd.getpwnam(ACCOUNT)
        become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--"]
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.place), "USER": ACCOUNT, **env}
        where: dict[str, Any] = {"env": variables, "cwd": self.place, "timeout": timeout_s}
        return subprocess.run([*become, *argv], check=False, capture_output=True, text=True, **where)


@contextmanager
def user_without_root() -> Iterator[User]:
    """Make the user's home, with the image that root has as hard links, and remove all of it at the end."""
    image = require_root_and_image()
    place = Path(tempfile.mkdtemp(prefix="vb-user-", dir=home()))
    try:
        place.chmod(0o755)
        images = place / "home" / "images"
        images.mkdir(parents=True)
        subprocess.run(["cp", "--archive", "--link", str(image.directory), str(images)], check=True)
        # Root's own interpreter may be in a folder that nobody else enters.
        python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
        if python is None:
            pytest.skip(f"no Python 3.{sys.version_info.minor} that everybody may run")
        subprocess.run([python, "-m", "venv", "--without-pip", str(place / "venv")], check=True)
        (packages,) = (place / "venv/lib").glob("*/site-packages")
        (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
        user, variables = User(place, str(place / "bench")), [f"HOME={place}", f"VIRTBENCH_HOME={place}/home"]
        words = [*variables, "PYTHONDONTWRITEBYTECODE=1", f"{place}/venv/bin/python", f"{REPOSITORY}/cli.py"]
        Path(user.bench).write_text(f'#!/bin/sh\nexec env {" ".join(words)} "$@"\n')
        Path(user.bench).chmod(0o755)
        account = pwd.getpwnam(ACCOUNT)
        for path in (place, place / "home", images):  # no link to a file of root's
            os.chown(path, account.pw_uid, account.pw_gid)
        if (tried := user.run([user.bench, "--version"], {}, 120)).returncode:
            pytest.skip(f"a user without root cannot run bench from here: {tried.stderr[-500:]}")
        yield user
    finally:
        shutil.rmtree(place)
