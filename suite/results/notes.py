"""The notes and tags that people put on a run: ``notes.json`` in its directory.

Neither a record nor a manifest, a comparison or a pack holds them.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from suite.errors import RequestError
from suite.part import Part
from suite.results import files
from suite.results.store import write_atomic
from suite.results.summary import RunSummary
from suite.untrusted.parse import has_control_characters

FILE = "notes.json"
MOST_LETTERS = 4000
MOST_TAGS = 20
_TAG = r"^[\w.+-]{1,40}$"
Tag = Annotated[str, Field(pattern=_TAG)]


class RunNotes(Part):
    """The content of ``notes.json``."""

    schema_version: Literal[1] = 1
    text: Annotated[str, Field(max_length=MOST_LETTERS)] = ""
    tags: Annotated[tuple[Tag, ...], Field(max_length=MOST_TAGS)] = ()

    @classmethod
    def of(cls, text: str, tags: Collection[str]) -> "RunNotes":
        """Return notes as somebody has typed them. Raises RequestError for what cannot be kept."""
        lines = [line.rstrip() for line in text.strip().splitlines()]
        text = "\n".join(lines)
        if len(text) > MOST_LETTERS:
            raise RequestError(f"the note has {len(text):,} characters", remedy=f"give {MOST_LETTERS:,} at most")
        if any(map(has_control_characters, lines)):
            raise RequestError("the note has a character that steers terminals", remedy="remove it")
        for tag in tags:
            if not re.fullmatch(_TAG, tag):
                raise RequestError(
                    f"{tag!r} is no tag", remedy="use up to 40 letters, digits and . + - _, without spaces"
                )
        if len(tags) > MOST_TAGS:
            raise RequestError(f"{len(tags)} tags are too many", remedy=f"give {MOST_TAGS} at most")
        return cls(text=text, tags=tuple(dict.fromkeys(tags)))


def read_notes(run: Path) -> RunNotes:
    """Return the notes on a run; empty ones if it has none. Raises RequestError for a file that holds none."""
    try:
        return RunNotes.model_validate_json(files.read_small(run / FILE))
    except FileNotFoundError:
        return RunNotes()
    except (OSError, ValidationError) as error:
        raise RequestError(f"{run / FILE} holds no notes of this suite", remedy="remove it") from error


def readable_notes(run: Path) -> RunNotes:
    """Return the notes on a run for a list of many; empty ones for a file that holds none, too."""
    try:
        return read_notes(run)
    except RequestError:
        return RunNotes()


def write_notes(run: Path, notes: RunNotes) -> None:
    """Write the notes on a run; without text and tags it has none. Raises StoreError."""
    if notes == RunNotes():
        (run / FILE).unlink(missing_ok=True)
    else:
        write_atomic(run / FILE, notes.model_dump_json(indent=1) + "\n", below=run)


def matches(text: str, name: str, summary: RunSummary | None, notes: RunNotes) -> bool:
    """Return whether every word of a text is in the name of a run, its scenario, models, targets, note or tags."""
    described = [name, notes.text, *notes.tags]
    if summary:
        described += [summary.scenario, *summary.models, *summary.targets]
    searched = " ".join(described).lower()
    return all(word in searched for word in text.lower().split())
