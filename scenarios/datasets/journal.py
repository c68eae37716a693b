"""The images that a set already has while it is being made: one line ``INDEX SHA256`` each.

Hidden, so that it is no part of the data; gone when the manifest is there, which holds the same.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO

from scenarios.datasets.images import Made
from scenarios.datasets.manifest import Manifest, write_readable

JOURNAL = ".made"
_LINE = re.compile(r"(\d{1,9}) ([0-9a-f]{64})")


def read_journal(directory: Path) -> dict[int, str]:
    """Return the hashes by index. A line that a crash left half-written does not count."""
    try:
        lines = (directory / JOURNAL).read_text("ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    return {int(match[1]): match[2] for match in map(_LINE.fullmatch, lines) if match}


def known_images(directory: Path, manifest: Manifest | None) -> dict[int, str]:
    """Return the hashes of what was made before, by index."""
    if manifest is None:
        return read_journal(directory)
    hashes = ((index, manifest.files.get(manifest.path_of(index))) for index in range(manifest.images))
    return {index: sha256 for index, sha256 in hashes if sha256} | read_journal(directory)


def begin_journal(directory: Path, known: Mapping[int, str]) -> None:
    """Write the journal anew: lines that are appended must not continue a half one."""
    write_readable(directory / JOURNAL, "".join(f"{index} {sha256}\n" for index, sha256 in known.items()))


def append(journal: TextIO, made: Iterable[Made]) -> None:
    journal.write("".join(f"{each.index} {each.sha256}\n" for each in made if each.fresh))
    journal.flush()
