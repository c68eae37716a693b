"""One record file to one row, fast: what is not needed is not parsed, and what is as before is not parsed again."""

import json
import os

from pydantic import ValidationError

from analysis.load.evidence import StepFields
from analysis.load.fields import Apart, EnvironmentsFields, Fields, JobColumns, Row, job_columns
from analysis.warnings.types import AnalysisWarning, skipped_record
from suite.job.job import Job
from suite.records.reader import NewerRecordError, clean_record
from suite.results.files import open_small

_JOB, _STEPS, _ENVIRONMENT = b'\n "job": {', b'\n "steps": {', b'\n "environment": {'
"""The marks, in the order in which the store writes them: a line per key, indented by one. A JSON string holds no line
break, so a mark is what it looks like; in a file written otherwise there are none."""
_CLOSING = b"\n }"
_MOST_JOBS = 1000
_CHUNK = 1 << 16


class Reader:
    """Read record files. Remember jobs, of which runs have few, and the environment of the record before."""

    def __init__(self) -> None:
        self._jobs: dict[bytes, JobColumns] = {}
        self._text = b""
        self._environments: EnvironmentsFields | None = None

    def __call__(self, path: str) -> Row | AnalysisWarning:
        """Return the row of a record, or why there is none."""
        try:
            content = _content(path)
        except OSError as error:
            return skipped_record(path, f"it cannot be read ({error.strerror})", "check the file and its permissions")
        try:
            return self._row(clean_record(content))
        except NewerRecordError as error:
            return skipped_record(path, error.message, str(error.remedy))
        except ValidationError as error:
            return _diagnosis(path, content, error)
        except Exception as error:  # noqa: BLE001 (one file of a stranger must not end what reads thousands)
            return skipped_record(path, f"it cannot be used ({error or type(error).__name__})")

    def _row(self, content: bytes) -> Row:
        try:
            job = content.find(_JOB)
            environment = content.find(_ENVIRONMENT, job)
            if 0 < job < environment:
                return self._cut(content, job + len(_JOB) - 1, environment + len(_ENVIRONMENT) - 1)
        except ValueError:  # pydantic's is one, too; of a file that was cut off, the end of a part is missing
            pass  # the whole record says what is wrong with it, if anything is
        return Fields.model_validate_json(content).row()

    def _cut(self, content: bytes, job: int, environment: int) -> Row:
        """Parse a record without its job, its steps and its environment: these begin at the places given.

        Together they are most of a file; of the first and the last most records of a run have the same.
        """
        job_end = content.index(_CLOSING, job) + len(_CLOSING)
        parts = [content[:job]]
        begin, measured = job_end, None
        if (steps := content.find(_STEPS, job_end, environment) + 1) > 0:
            steps += len(_STEPS) - 2
            parts.append(content[begin:steps])
            begin = content.index(_CLOSING, steps) + len(_CLOSING)
            measured = StepFields.model_validate_json(content[steps:begin])
        if not self._text or not content.startswith(self._text, environment):
            closing = content.index(_CLOSING, environment) + len(_CLOSING)
            self._text = b""
            self._environments = EnvironmentsFields.model_validate_json(content[environment:closing])
            self._text = content[environment:closing]
        assert self._environments is not None  # noqa: S101 (for the type checker: the text has one)
        parts += [content[begin:environment], content[environment + len(self._text) :]]
        rest = Apart.model_validate_json(b"null".join(parts))
        text = content[job:job_end]
        if text not in self._jobs:
            if len(self._jobs) >= _MOST_JOBS:
                self._jobs.clear()
            self._jobs[text] = job_columns(Job.model_validate_json(text))
        own = self._jobs[text]
        return rest.row_in(own, self._environments, measured), rest.evidence(own, measured)


def _content(path: str) -> bytes:
    """Read a file. With 100,000 of them, the objects and buffers of the easier ways are a third of the time."""
    descriptor = open_small(path)
    try:
        parts = [os.read(descriptor, _CHUNK)]
        while parts[-1]:
            parts.append(os.read(descriptor, _CHUNK))
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _diagnosis(path: str, content: bytes, error: ValidationError) -> AnalysisWarning:
    """Say why a file is not a record that can be used, from the most to the least foreign."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as reason:
        return skipped_record(path, f"it is not JSON ({reason})")
    version = found.get("schema_version") if isinstance(found, dict) else None
    if not isinstance(version, int):
        return skipped_record(path, "it is not a record of this suite (it has no schema_version)", "remove the file")
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the record"
    return skipped_record(path, f"{place}: {first['msg']}")
