"""One record file to one row, fast: what is not needed is not parsed, and what is as before is not parsed again."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from analysis.load.fields import Apart, Environments, Fields
from analysis.warnings.types import SkippedRecord
from suite.records.migrations import NewerRecordError, current

_STEPS, _ENVIRONMENT = b'\n "steps": {', b'\n "environment": {'
"""As the store writes: a line per key, indented by one. A JSON string holds no line break, so a mark is what it looks
like; in a file written otherwise there are none."""


class Reader:
    """Reads record files. Remembers the environment of the one before: it nearly always is that of the next."""

    def __init__(self) -> None:
        self._text = b""
        self._environments: Environments | None = None

    def __call__(self, path: str) -> tuple[Any, ...] | SkippedRecord:
        """The values of ``fields.COLUMNS``, or why there are none."""
        try:
            # Not Path.open: with 100,000 files, the objects and buffers of the easier ways are a third of the time.
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                content = file.readall()
        except OSError as error:
            return SkippedRecord(
                Path(path), f"it cannot be read ({error.strerror})", "check the file and its permissions"
            )
        try:
            return self._row(current(content))
        except NewerRecordError as error:
            return SkippedRecord(Path(path), error.message, str(error.remedy))
        except ValidationError as error:
            return _diagnosis(Path(path), content, error)

    def _row(self, content: bytes) -> tuple[Any, ...]:
        try:
            rest, environments = self._cut(content)
            if environments is not None:
                return Apart.model_validate_json(rest).row_in(environments)
        except ValidationError:
            pass  # the whole record says what is wrong with it, if anything is
        return Fields.model_validate_json(content).row()

    def _cut(self, content: bytes) -> tuple[bytes, Environments | None]:
        """The record with null in place of its steps and environments, and these; None where they were not found.

        Both together are most of a file and most of the time to parse it.
        """
        head, end = b"", 0
        if (steps := content.find(_STEPS) + 1) > 0:
            begin = steps + len(_STEPS) - 2
            end = content.find(b"}", begin) + 1  # steps hold numbers alone, and no object
            head = content[:begin] + b"null"
        if (found := content.find(_ENVIRONMENT, end)) < 0:
            return content, None
        place = found + len(_ENVIRONMENT) - 1
        if not self._text or not content.startswith(self._text, place):
            closing = content.find(b"\n }", place)
            self._text = b""
            self._environments = Environments.model_validate_json(content[place : closing + 3])
            self._text = content[place : closing + 3]
        return head + content[end:place] + b"null" + content[place + len(self._text) :], self._environments


def _diagnosis(path: Path, content: bytes, error: ValidationError) -> SkippedRecord:
    """Why a file is not a record that can be used, from the most to the least foreign."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as reason:
        return SkippedRecord(path, f"it is not JSON ({reason})")
    version = found.get("schema_version") if isinstance(found, dict) else None
    if not isinstance(version, int):
        return SkippedRecord(path, "it is not a record of this suite (it has no schema_version)", "remove the file")
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the record"
    return SkippedRecord(path, f"{place}: {first['msg']}")
