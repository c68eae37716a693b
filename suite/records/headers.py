"""What can be told of a record at a glance.

Made for 100,000 records: of each file only the beginning is read, and nothing is validated.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suite.results.store import TRIALS

_HEAD_BYTES = 4096
_GLANCE = re.compile(rb'\n "started_at": "([^"]*)".*?\n "outcome": \{\s*"status": "(ok|failed)"', re.DOTALL)
"""As the store writes a record: these stand before the steps, which are most of it."""


@dataclass(frozen=True)
class Glance:
    """What the beginning of a record tells. ``ok`` is None where the file is no record."""

    trial_id: str
    """From the name of the file."""
    started_at: str
    ok: bool | None
    size_bytes: int


def glances(run: Path) -> Iterator[Glance]:
    """One per record file, in the order of the names."""
    try:
        with os.scandir(run / TRIALS) as entries:
            paths = sorted(entry.path for entry in entries if entry.name.endswith(".json") and entry.name[0] != ".")
    except OSError:
        return
    for path in paths:
        yield glance(path)


def glance(path: str) -> Glance:
    """Of one record file."""
    name = os.path.basename(path).removesuffix(".json")  # noqa: PTH119 (100,000 times)
    try:
        # Not Path.open: with 100,000 files, its objects and buffers are most of the time.
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            size_bytes = os.fstat(file.fileno()).st_size
            head = file.read(_HEAD_BYTES)
            if found := _GLANCE.search(head):
                return Glance(name, found[1].decode(errors="replace"), found[2] == b"ok", size_bytes)
            return _parsed(name, head + file.readall(), size_bytes)
    except OSError:
        return Glance(name, "", None, 0)


def _parsed(name: str, content: bytes, size_bytes: int) -> Glance:
    """Of a record that another program has formatted."""
    try:
        record = json.loads(content)
        return Glance(name, str(record["started_at"]), record["outcome"]["status"] == "ok", size_bytes)
    except (ValueError, KeyError, TypeError, RecursionError):
        return Glance(name, "", None, size_bytes)
