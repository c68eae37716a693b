"""The files of a run held against its manifest."""

import os
from collections.abc import Iterator
from pathlib import Path

from analysis.audit.findings import Finding, Kind
from suite.errors import RequestError
from suite.records.headers import record_entries
from suite.results.manifest import MANIFEST, ListedFile, Manifest, read_manifest
from suite.results.store import PLAN, TRIALS

EDITED = Kind(
    "edited", "refused", "the file is not what the run has left: restore it from a copy, or run the trial again"
)
MISSING = Kind("missing", "named", "results with files taken away are another selection: restore them, or say why")
UNLISTED = Kind(
    "unlisted", "named", "the run was killed, or is going on, or the files were put there: bench run continues it"
)
NO_MANIFEST = Kind(
    "no-manifest", "named", "the run is of an older suite, was killed, or is going on: edits cannot be seen"
)
_READ_BYTES = 64 << 20
"""The size of a run up to which a comparison reads its files once more for their digests."""


def files(run: Path, *, every_digest: bool) -> Iterator[Finding]:
    """Yield files that were edited, added or taken away. Sizes are always compared, digests where that is quick."""
    try:
        manifest = read_manifest(run)
    except RequestError as error:
        yield EDITED.at(run, error.message)
        return
    if manifest is None:
        yield NO_MANIFEST.at(run, f"there is no {MANIFEST}")
        return
    there = _there(run)
    digests = every_digest or sum(there.values()) <= _READ_BYTES
    for name, size_bytes in there.items():
        listed = manifest.files.get(name)
        if listed and (listed.size_bytes != size_bytes or (digests and ListedFile.of(run / name) != listed)):
            # Nobody can say what the trials of an edited plan were to be.
            yield EDITED.at(run if name == PLAN else run / name, f"{name} is not the file that {MANIFEST} lists")
    yield from _counted(run, manifest, there)


def _there(run: Path) -> dict[str, int]:
    """Return the sizes of the plan and of the records; a link in the place of one is none."""
    plan = {PLAN: (run / PLAN).stat().st_size} if (run / PLAN).is_file() and not (run / PLAN).is_symlink() else {}
    records = (entry for entry in record_entries(run) if entry.is_file(follow_symlinks=False))
    return plan | {f"{TRIALS}/{entry.name}": entry.stat().st_size for entry in records}


def _counted(run: Path, manifest: Manifest, there: dict[str, int]) -> Iterator[Finding]:
    for kind, names, text in (
        (MISSING, manifest.files.keys() - there, f"listed in {MANIFEST}, and gone"),
        (UNLISTED, there.keys() - manifest.files, f"not listed in {MANIFEST}"),
    ):
        if names:
            first = os.path.basename(min(names))  # noqa: PTH119 (a name, and no path here)
            yield kind.at(run, f"{len(names)} files are {text} (the first: {first})")
