"""Directories that the suite has made, as tests look at them."""

from pathlib import Path

from provisioning.paths import MARK


def held_in(directory: Path) -> list[Path]:
    """Return what a directory holds, sorted, without the mark of those that the suite has made."""
    return sorted(path for path in directory.iterdir() if path.name != MARK)
