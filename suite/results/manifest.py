"""The manifest of a run: a digest of its plan and of each record, so that an edited, missing or added file is seen.

DIR/manifest.json, written by rename at every orderly end of a run. A digest that is listed stays until the suite itself
writes that file again: to continue a run must not turn an edited record into a listed one. A run that was killed has no
manifest, or one that lists fewer files than it has.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from suite.errors import RequestError
from suite.part import Count, Part
from suite.results.files import open_regular, read

MANIFEST = "manifest.json"


class ListedFile(Part):
    """One file as it was when its run ended. The size alone shows most edits, and costs no reading."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Count

    @classmethod
    def of(cls, path: Path) -> "ListedFile":
        """Return what lists the file as it is now. Raises OSError."""
        with open(path, "rb", opener=open_regular) as file:
            return cls(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size_bytes=file.tell())


class Manifest(Part):
    """The content of ``manifest.json``; ``files`` by their paths in the run's directory."""

    schema_version: Literal[1] = 1
    files: dict[str, ListedFile]


def read_manifest(run: Path) -> Manifest | None:
    """Return the manifest of a run; None where it has none. Raises RequestError for a file that is not one."""
    path = run / MANIFEST
    try:
        return Manifest.model_validate_json(read(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else "or of a newer suite"
        raise RequestError(
            f"{path} is not a manifest ({why})", remedy="remove it, if nobody can say what it listed"
        ) from error
