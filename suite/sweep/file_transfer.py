"""Transfer of files between machines that share no file system: one line of JSON each.

A line is written when its file is finished, so what has arrived is whole, and what has not is missing and nothing
worse. The other machine is not trusted with paths: only names that a run's directory can hold are accepted.
"""

import base64
import gzip
import json
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from suite.errors import BenchError
from suite.results.files import read
from suite.results.store import write_atomic
from suite.untrusted.parse import parse

GIVEN = '{"given": "all"}'
"""The line after the last file that is sent to the machine which runs a block."""
ENDED = '{"ended": true}'
"""The line after the last file that comes back: the block is complete."""
FILE = '{"path": '
"""The beginning of every line that holds a file."""
OF_A_BLOCK = re.compile("|".join(map(re.escape, (FILE, ENDED))))
"""The beginning of every line that comes back."""
LONGEST_LINE_BYTES = 64 << 20
"""A longer line is refused: a record of 100,000 steps takes less than a third of it."""
DEEPEST = 3
"""CELL/trials/ID.json"""
_PART = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]{0,199}")


class TransferError(BenchError):
    """Raised for something that arrived and is not a file of a run."""

    kind = "transfer"


def encode_file(root: Path, path: Path) -> str:
    """Return the file ``path`` below ``root`` as one line, without its end."""
    return encode(path.relative_to(root).as_posix(), read(path).decode())


def encode(name: str, text: str) -> str:
    """Return one line for a file that is to have the name and the text on the other machine."""
    return json.dumps({"path": name, "text": text})


def packed(lines: Iterable[str]) -> str:
    """Return lines as one short word, for those who can give a block no standard input."""
    return base64.b64encode(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)).decode()


def unpacked(word: str) -> list[str]:
    return gzip.decompress(base64.b64decode(word)).decode().splitlines()


def receive_file(root: Path, line: str) -> Path:
    """Write the file of a line below ``root``, whole; return its path. Raises TransferError, StoreError."""
    name, text = decode(line)
    write_atomic(root / name, text, below=root)
    return root / name


def decode(line: str) -> tuple[str, str]:
    """Return name and text of a line's file. Raises TransferError for a name that a run's directory cannot hold."""
    try:
        content = parse(line)
        name = content["path"]
        text = content["text"]
    except (ValueError, TypeError, KeyError) as error:
        raise TransferError(f"not a file of a run: {line[:100]!r}") from error
    if not (isinstance(name, str) and isinstance(text, str)) or not _is_valid(name):
        raise TransferError(f"{str(name)[:200]!r} is not the name of a file of a run")
    return name, text


def _is_valid(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return 0 < len(parts) <= DEEPEST and name.endswith((".json", ".toml")) and all(map(_PART.fullmatch, parts))


class Outbox:
    """Knows which files of a directory are new or have changed since they were sent."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sent: dict[Path, int] = {}

    def mark_sent(self, path: Path) -> None:
        self._sent[path] = path.stat().st_mtime_ns

    def unsent(self) -> Iterator[Path]:
        """Yield each new or changed file once, the uppermost first, and take it as sent."""
        # The plan of a cell before its records and attempts: the other side refuses those that are in no plan.
        for path in sorted(self._root.rglob("*.json"), key=lambda path: (len(path.parts), path)):
            info = path.lstat()
            if not stat.S_ISREG(info.st_mode) or not _is_valid(path.relative_to(self._root).as_posix()):
                continue
            if self._sent.get(path) != info.st_mtime_ns:
                self._sent[path] = info.st_mtime_ns
                yield path
