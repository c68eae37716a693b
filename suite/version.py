"""The version of the suite: its number, and a digest of the code that is installed, which changes with every commit."""

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from suite import __version__

MAIN = "cli.py"
ROOMS = ("commands", "suite", "worker", "scenarios", "provisioning", "analysis")
"""The packages that are installed with ``MAIN``, in a checkout as from a wheel."""
NAMES = (*ROOMS, Path(MAIN).stem)
"""The names by which all of these are imported."""
_DECIDING = (".py", ".toml", ".fio", ".csv", ".j2")
"""The endings of the files that decide what is measured, how it is judged, and what is said of it."""
_DIGITS = 12


@cache
def suite_version() -> str:
    """Return the number of the version and the digest of the installed code: ``0.1.0+3f9a2c5d41e0``."""
    return f"{__version__}+{code_digest(Path(__file__).resolve().parents[1])}"


def code_digest(installed: Path) -> str:
    """Return the digest of the suite's code below a directory: a checkout, or site-packages."""
    digest = hashlib.sha256()
    for path in sorted(_code_files(installed)):
        content = (installed / path).read_bytes()
        digest.update(f"{path} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:_DIGITS]


def _code_files(installed: Path) -> Iterator[str]:
    """Yield the paths of the files that decide, relative to ``installed``. What a checkout has as links is included."""
    yield MAIN
    for room in ROOMS:
        for folder, _, names in os.walk(installed / room, followlinks=True):
            for name in names:
                if name.endswith(_DECIDING):
                    yield Path(folder, name).relative_to(installed).as_posix()
