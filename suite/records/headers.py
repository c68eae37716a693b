"""The header of a record: which trial it is of and how that ended, without what was measured.

Made for 100,000 records.
"""

import datetime
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from suite.host_compatibility import Host
from suite.job.job import Alternating, design_of
from suite.records.columns import AUDIT, FURTHER, TABLE
from suite.records.reader import NewerRecordError, Projection
from suite.results.files import open_small
from suite.results.store import Run
from suite.trial_names import arm_name


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
    job: Mapping[str, Any]
    """The job as its JSON has it."""
    turns: Alternating | None
    host: Host
    """The machine, as far as it decides whether records may be pooled."""

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return the header of a record's text. The rest is not validated.

        Raises ValueError for text that is not a record, and NewerRecordError.
        """
        record = _HEADER.decode(content)
        job = msgspec.json.decode(record.job, type=dict[str, Any])
        machine = msgspec.json.decode(record.environment, type=dict[str, Any])["host"]
        columns = dict(zip((column.name for column in _HEADER.columns), _HEADER.values(record), strict=True))
        datetime.datetime.fromisoformat(columns["started_at"]).timestamp()  # readers order and subtract it
        return cls(
            **columns,
            job=job,
            turns=Alternating.model_validate(job["turns"]) if job.get("turns") else None,
            host=Host.of(machine),
        )

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


_HEADER = Projection(
    [column for column in (*TABLE, *AUDIT, *FURTHER) if column.name in RecordHeader.__dataclass_fields__]
)


def read_header(path: str | Path) -> RecordHeader | None:
    """Return the header of a record; None if the file cannot be read or is not a record.

    Raises NewerRecordError for a record of a later suite.
    """
    try:
        with open(path, "rb", buffering=0, opener=open_small) as file:
            return RecordHeader.of(file.readall())
    except NewerRecordError as error:
        raise NewerRecordError(f"{path}: {error.message}", remedy=error.remedy) from error
    except Exception:  # noqa: BLE001 (one file of a stranger must not end what reads thousands)
        return None


def headers(run: Path) -> Iterator[RecordHeader]:
    """Yield the header of each record of a run, in the order of the names. Files that are not records are left out."""
    for path in Run(run).record_files():
        with suppress(NewerRecordError):
            if header := read_header(path):
                yield header
