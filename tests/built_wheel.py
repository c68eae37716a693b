"""Building the wheel of this checkout without leaving anything in it."""

import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def build_wheel(place: Path) -> Path:
    """Build the wheel from a copy of the checkout in ``place``, with the setuptools of this environment; return it."""
    source = place / "source"
    shutil.copytree(REPOSITORY, source, symlinks=True, ignore=_ignored)
    program = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=source, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # setuptools warns, and goes on, where a package would be left out.
    assert "Warning" not in done.stderr + done.stdout, done.stderr
    (wheel,) = (source / "dist").glob("*.whl")
    return wheel


def _ignored(place: str, names: list[str]) -> set[str]:
    at_the_top = {"build", "results", "tests"} if Path(place) == REPOSITORY else set()
    return {name for name in names if name.startswith(".") or name.endswith((".egg-info", "__pycache__"))} | at_the_top
