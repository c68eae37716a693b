"""Files on their way between machines that share no file system: one line of JSON each.

A line is written when its file is finished, so what has arrived is whole, and what has not is missing and nothing
worse. The far side is believed no path: only names that a run's directory can hold are taken.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from suite.errors import BenchError
from suite.results.store import write_atomic

GIVEN = '{"given": "all"}'
"""The line after the last file that the far side is given."""
ENDED = '{"ended": true}'
"""The line after the last file that comes back: the element has come to its end."""
DEEPEST = 3
"""CELL/trials/ID.json"""
_PART = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]{0,199}")


class ParcelError(BenchError):
    """What arrived is no file of a run."""

    kind = "parcel"


def pack(root: Path, path: Path) -> str:
    """The file ``path`` below ``root`` as one line, without its end."""
    return parcel(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))


def parcel(name: str, text: str) -> str:
    """``text``, which the far side is to have as the file ``name``, as one line."""
    return json.dumps({"path": name, "text": text})


def unpack(root: Path, line: str) -> Path:
    """Write what the line holds below ``root``, whole or not at all; returns where. Raises ParcelError, StoreError."""
    name, text = opened(line)
    write_atomic(root / name, text)
    return root / name


def opened(line: str) -> tuple[str, str]:
    """The name of the file, which is one that a run's directory can hold, and its text. Raises ParcelError."""
    try:
        found = json.loads(line)
        name, text = found["path"], found["text"]
    except (ValueError, TypeError, KeyError) as error:
        raise ParcelError(f"not a parcel: {line[:100]!r}") from error
    if not (isinstance(name, str) and isinstance(text, str)) or not _is_ours(name):
        raise ParcelError(f"a parcel for {str(name)[:200]!r}, which is no file of a run")
    return name, text


def _is_ours(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return 0 < len(parts) <= DEEPEST and name.endswith((".json", ".toml")) and all(map(_PART.fullmatch, parts))


class Outbox:
    """Tells which files of a directory are new or changed since it was last asked."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sent: dict[Path, int] = {}

    def known(self, path: Path) -> None:
        """Take the file, as it is now, as sent."""
        self._sent[path] = path.stat().st_mtime_ns

    def fresh(self) -> Iterator[Path]:
        """Each new or changed file once, in the order of their names."""
        for path in self._files():
            stamp = path.stat().st_mtime_ns
            if self._sent.get(path) != stamp:
                self._sent[path] = stamp
                yield path

    def _files(self) -> list[Path]:
        found = sorted(self._root.rglob("*.json"))
        return [path for path in found if _is_ours(path.relative_to(self._root).as_posix())]
