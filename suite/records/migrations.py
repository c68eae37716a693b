"""Records of older schema versions, brought to the present one: a chain of functions, each from a version to the next.

Every reader of records passes what it read through ``current``. A plan has no version: what an older suite did not know
of a plan has the default that leaves the trials as they were.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from suite.errors import RequestError
from suite.records.record import SCHEMA_VERSION

Record = dict[str, Any]
_CURRENT = re.compile(rb'\s*\{\s*"schema_version":\s*%d\s*[,}]' % SCHEMA_VERSION)
"""How the store begins a record. Of one that another program has formatted the version is found by parsing it."""


class NewerRecordError(RequestError):
    """A record that a later suite has written."""

    kind = "newer-record"


def _from_1(record: Record) -> Record:
    """The page cache was one of the conditions; and without ``exit_s``, ``launch_s`` held the end of the job too.

    Of such a sum it is not known how much of it was the launch: it is absent, and analysis shows it as unexplained.
    """
    conditions, timeline = record.get("conditions"), record.get("timeline")
    if isinstance(conditions, dict) and "page_cache" in conditions:
        conditions = dict(conditions)
        found = conditions.pop("page_cache")
        record = {**record, "conditions": conditions, "page_cache": record.get("page_cache") or found}
    if isinstance(timeline, dict) and "exit_s" not in timeline:
        record = {**record, "timeline": {**timeline, "launch_s": None}}
    return {**record, "schema_version": 2}


MIGRATIONS: Mapping[int, Callable[[Record], Record]] = {1: _from_1}
"""By the version that each one takes; it gives the next."""


def migrate(record: Record) -> Record:
    """A record of any past version at the present one; its argument stays as it is.

    Raises NewerRecordError for a version that is yet to come, and KeyError for one that never was.
    """
    version = record["schema_version"]
    if version > SCHEMA_VERSION:
        raise NewerRecordError(
            f"its schema version is {version}, this suite reads up to {SCHEMA_VERSION}",
            remedy="read it with the suite that wrote it, or a newer one",
        )
    for step in range(version, SCHEMA_VERSION):
        record = MIGRATIONS[step](record)
    return record


def current(content: bytes) -> bytes:
    """The text of a record at the present version; what is no record comes back as it is, for the model to refuse.

    Raises NewerRecordError.
    """
    if _CURRENT.match(content):
        return content
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return content
    version = found.get("schema_version") if isinstance(found, dict) else None
    if type(version) is not int or version == SCHEMA_VERSION or version < min(MIGRATIONS):
        return content
    return json.dumps(migrate(found), indent=1).encode()
