"""The header of a record: which trial it is of and how that ended, without what was measured.

Made for 100,000 records. This is the only place, beside the models of whole records, that knows the keys of a record.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from suite.host_compatibility import Host
from suite.job.job import Alternating, design_of
from suite.part import Seconds
from suite.records.reader import NewerRecordError, clean_record
from suite.records.record import Outcome, TrialId
from suite.results.files import open_small
from suite.results.store import TRIALS
from suite.trial_names import arm_name

_HEAD_BYTES = 4096
_BEFORE_JOB, _BEFORE_STEPS, _END_OF_STEPS = b',\n "job":', b',\n "steps":', b"\n }"
"""The layout that the store writes: a line per key, indented by one. A JSON string holds no line break."""


def _host(facts: object) -> Host:
    if not isinstance(facts, dict):
        raise ValueError("the host is a table")
    return Host.of(facts)


class RecordHead(BaseModel):
    """The first lines of a record, the same in every schema version."""

    model_config = ConfigDict(frozen=True)

    trial_id: TrialId
    started_at: str
    outcome: Outcome

    @property
    def ok(self) -> bool:
        """Return whether the trial came to its end and its envelope was as planned."""
        return self.outcome.status == "ok"


class RecordHeader(RecordHead):
    """The part of a record that all readers but the analysis need. The rest is not validated."""

    target: str
    replica: int = 0
    ablation: str | None = None
    measured_s: float | None = Field(None, validation_alias=AliasPath("timeline", "measured_s"))
    """The seconds of the measured steps."""
    aggressor: str | None = None
    warm_up: bool = False
    job: dict[str, Any]
    """The job as its JSON has it."""
    turns: Alternating | None = Field(None, validation_alias=AliasPath("job", "turns"))
    open_s: Seconds | None = None
    elapsed_s: Seconds | None = None
    close_s: Seconds | None = None
    block_s: Seconds | None = Field(None, validation_alias=AliasPath("alternation", "block_s"))
    instances: int | None = Field(None, validation_alias=AliasPath("alternation", "instances"))
    host: Annotated[Host, BeforeValidator(_host)] = Field(validation_alias=AliasPath("environment", "host"))
    """The machine, as far as it decides whether records may be pooled."""

    @property
    def model(self) -> str:
        return str(self.job.get("model"))

    @property
    def arm(self) -> str:
        return arm_name(self.target, self.replica, self.ablation, self.aggressor, design_of(self.turns))

    @property
    def duration_s(self) -> float:
        """Seconds that the trial took: opening, the job, closing; of a job that takes turns its share of the block."""
        if self.block_s and self.instances:
            return self.block_s / self.instances
        return (self.open_s or 0.0) + (self.elapsed_s or 0.0) + (self.close_s or 0.0)


def read_head(path: str | Path) -> RecordHead | None:
    """Return what the first lines of a record tell; None if the file cannot be read or is not a record.

    Only they are read where the store has written the record. Raises NewerRecordError for one of a later suite that
    another program has formatted.
    """
    try:
        # Not Path.open: with 100,000 files, its objects and buffers are most of the time.
        with open(path, "rb", buffering=0, opener=open_small) as file:
            content = file.read(_HEAD_BYTES)
        if (end := content.find(_BEFORE_JOB)) > 0 or (end := content.find(_BEFORE_STEPS)) > 0:
            return RecordHead.model_validate_json(content[:end] + b"}")
    except (OSError, ValidationError):
        return None
    return read_header(path)


def read_header(path: str | Path) -> RecordHeader | None:
    """Return the header of a record of any past version; None if the file cannot be read or is not a record.

    Raises NewerRecordError for a record of a later suite.
    """
    try:
        with open(path, "rb", buffering=0, opener=open_small) as file:
            content = clean_record(file.readall())
    except OSError:
        return None
    except NewerRecordError as error:
        raise NewerRecordError(f"{path}: {error.message}", remedy=error.remedy) from error
    begin = content.find(_BEFORE_STEPS) + len(_BEFORE_STEPS)
    end = content.find(_END_OF_STEPS, begin)
    if content.startswith(b" {", begin) and content.count(_BEFORE_STEPS) == 1 and end > 0:
        # Steps are most of a record.
        content = content[:begin] + b" null" + content[end + len(_END_OF_STEPS) :]
    try:
        return RecordHeader.model_validate_json(content)
    except Exception:  # noqa: BLE001 (one file of a stranger must not end what reads thousands)
        return None


def headers(run: Path) -> Iterator[RecordHeader]:
    """Yield the header of each record of a run, in the order of the names. What is not a record is left out."""
    for entry in record_entries(run):
        try:
            header = read_header(entry.path)
        except NewerRecordError:
            continue
        if header:
            yield header


def record_entries(run: Path) -> "list[os.DirEntry[str]]":
    """Return the files of a run's records in the order of their names; none where the run has not begun."""
    try:
        with os.scandir(run / TRIALS) as entries:
            found = [each for each in entries if each.name.endswith(".json") and not each.name.startswith(".")]
    except OSError:
        return []
    return sorted(found, key=lambda each: each.name)
