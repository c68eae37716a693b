"""The header of a record: which trial it is of and how that ended, without what was measured.

Made for 100,000 records.
"""

import datetime
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from suite.differ import Host
from suite.job.job import Job
from suite.records.columns import AUDIT, FURTHER, TABLE, Column
from suite.records.reader import NewerRecordError, Projection, job_of
from suite.results.files import open_small
from suite.results.store import TRIALS
from suite.trial_names import arm_name

_HEAD_BYTES = 4096
_BEFORE_JOB = b',\n "job":'
"""The layout that the store writes: a line per key, indented by one. A JSON string holds no line break."""


class RecordHead(NamedTuple):
    trial_id: str
    started_at: str
    ok: bool
    """Whether the trial came to its end and its envelope was as planned."""


@dataclass(frozen=True, kw_only=True)
class RecordHeader:
    """The part of a record that all readers but the analysis need: columns by their names, the job and the host."""

    trial_id: str
    started_at: str
    target: str
    replica: int
    ablation: str | None
    aggressor: str | None
    warm_up: bool
    ok: bool
    error_kind: str | None
    error_message: str | None
    open_s: float | None
    elapsed_s: float | None
    close_s: float | None
    measured_s: float | None
    """The seconds of the measured steps."""
    block_s: float | None
    instances: int | None
    job: Job
    host: Host
    """The machine, as far as it decides whether records may be pooled."""

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return the header of a text, whose rest is not validated. Raises ValueError, and NewerRecordError."""
        record = _HEADER.decode(content)
        environment = msgspec.json.decode(record.environment, type=dict[str, Any])
        machine = environment["host"]
        names = (column.name for column in _HEADER.columns)
        columns = dict(zip(names, _HEADER.values(record), strict=True))
        datetime.datetime.fromisoformat(columns["started_at"]).timestamp()  # readers order and subtract it
        return cls(**columns, job=job_of(record.job), host=Host.of(machine))

    @property
    def arm(self) -> str:
        return arm_name(self.target, self.replica, self.ablation, self.aggressor, self.job.design)

    @property
    def duration_s(self) -> float:
        """Seconds that the trial took: opening, the job, closing; of a job that takes turns its share of the block."""
        if self.block_s and self.instances:
            return self.block_s / self.instances
        return (self.open_s or 0.0) + (self.elapsed_s or 0.0) + (self.close_s or 0.0)


def _named(*names: str) -> list[Column]:
    all_columns = (*TABLE, *AUDIT, *FURTHER)
    by_name = {column.name: column for column in all_columns}
    return [by_name[name] for name in names]


_HEAD = Projection(_named("trial_id", "started_at", "ok"), parts=())
_HEADER = Projection(_named(*(name for name in RecordHeader.__dataclass_fields__ if name not in ("job", "host"))))


def read_head(path: str | Path) -> RecordHead | None:
    """Return the first lines of a record; None if the file cannot be read or is not a record.

    Nothing else is read of a file that the store has written. Raises NewerRecordError for a record of a later suite
    that another program has formatted.
    """
    try:
        # Not Path.open: with 100,000 files, its objects and buffers are most of the time.
        with open(path, "rb", buffering=0, opener=open_small) as file:
            content = file.read(_HEAD_BYTES)
        end = content.find(_BEFORE_JOB)
        if end > 0:
            return RecordHead(*_HEAD.values(_HEAD.decode(content[:end] + b"}")))
    except (OSError, ValueError):
        return None
    header = read_header(path)
    if header:
        return RecordHead(header.trial_id, header.started_at, header.ok)
    return None


def read_header(path: str | Path) -> RecordHeader | None:
    """Return the header of a record; None for a file that is not one. Raises NewerRecordError."""
    try:
        with open(path, "rb", buffering=0, opener=open_small) as file:
            return RecordHeader.of(file.readall())
    except NewerRecordError as error:
        raise NewerRecordError(f"{path}: {error.message}", remedy=error.remedy) from error
    except Exception:  # noqa: BLE001 (one file of a stranger must not end what reads thousands)
        return None


def headers(run: Path) -> Iterator[RecordHeader]:
    """Yield the header of each record of a run, in the order of the names. Files that are not records are left out."""
    for entry in record_entries(run):
        with suppress(NewerRecordError):
            header = read_header(entry.path)
            if header:
                yield header


def record_entries(run: Path) -> "list[os.DirEntry[str]]":
    """Return the files of a run's records in the order of their names; none if the run has not begun."""
    try:
        with os.scandir(run / TRIALS) as entries:
            records = [entry for entry in entries if entry.name.endswith(".json") and not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted(records, key=lambda entry: entry.name)
