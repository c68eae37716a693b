"""Packs: runs in one archive, which a stranger may have written. They are unpacked, compared, and never executed.

A pack is a tar(5) archive in the ustar format, compressed by gzip. Its first file, ``pack.json``, lists every other one
with its size and digest. Only regular files with the names of a pack are taken, each once, as listed.
"""

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from suite.errors import RequestError
from suite.part import Part
from suite.plan import MOST_TRIALS
from suite.results import files
from suite.results.store import ListedFile, unwritable
from suite.untrusted.parse import parse_object

LIST = "pack.json"
MOST_BYTES = 1 << 30
"""The most bytes of all files of a pack: 40 times a sweep of a thousand records with ten columns of steps."""
_BLOCK = 512
_RECORD = 20 * _BLOCK
"""tar(5) fills an archive with zeros to a multiple of this."""
_PART = r"[A-Za-z0-9][A-Za-z0-9_.+=-]*"
_NAME = re.compile(
    r"README\.txt|CITATION\.cff|report\.html|(?:pack|audit|comparison|environment)\.json"
    r"|image/(?:guest/)?[A-Za-z][A-Za-z-]*(?:\.txt|\.cuda)?"
    rf"|runs/{_PART}(?:/{_PART}){{0,2}}/{_PART}\.json"
)
"""The names of the files of a pack. No program reads code or its own configuration from any of them."""
_OCTAL = re.compile(rb" *([0-7]{1,11})[ \0]*")
_MEBIBYTE = 1 << 20
_REMEDY = "fetch it again, and compare its digest with the one that its authors print"


class PackList(Part):
    """The content of ``pack.json``."""

    schema_version: Literal[1] = 1
    suite_version: Annotated[str, Field(max_length=100)]
    """The suite that made the pack, with the digest of its code."""
    anonymous: bool
    runs: Annotated[tuple[Annotated[str, Field(pattern=rf"^runs/{_PART}$")], ...], Field(min_length=1)]
    """The directories of the runs and sweeps, in the order in which they are compared."""
    margin: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The share within which targets are equivalent; None for that of the plans."""
    files: Annotated[dict[Annotated[str, Field(pattern=rf"^(?:{_NAME.pattern})$")], ListedFile], Field(min_length=1)]


def write_pack(path: Path, contents: Mapping[str, Path], listed: PackList) -> None:
    """Write a pack of files by their names in it. Equal files give equal bytes.

    Raises StoreError; RequestError for what exceeds the bounds of a pack.
    """
    size_bytes = sum(file.size_bytes for file in listed.files.values())
    if size_bytes > MOST_BYTES or len(listed.files) > MOST_TRIALS:
        raise RequestError(
            f"these runs have {len(listed.files):,} files of {size_bytes // _MEBIBYTE:,} MiB: "
            f"a pack holds {MOST_TRIALS:,} of {MOST_BYTES // _MEBIBYTE:,} MiB",
            remedy="pack fewer runs",
        )
    with (
        unwritable(path),
        files.output(path) as output,
        gzip.GzipFile(filename="", mode="wb", fileobj=output, mtime=0) as compressed,
    ):
        _write_member(compressed, LIST, listed.model_dump_json(indent=1).encode() + b"\n")
        for name in listed.files:
            _write_member(compressed, name, files.read(contents[name]))
        compressed.write(bytes(2 * _BLOCK))


def _write_member(output: gzip.GzipFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    try:
        header = entry.tobuf(tarfile.USTAR_FORMAT)
    except ValueError as error:
        raise RequestError(f"{name}: no pack holds so long a name", remedy="leave its run out") from error
    padding = bytes(-len(content) % _BLOCK)
    output.writelines((header, content, padding))


def extract(path: Path, directory: Path) -> PackList:
    """Write the files of a pack below an empty directory; return its list.

    Raises RequestError for a file that is no pack, is damaged, or holds anything but the files that it lists.
    """
    try:
        with (
            open(path, "rb", opener=files.open_regular) as file,
            gzip.GzipFile(fileobj=file, mode="rb") as content,
        ):
            return _extract(content, directory)
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise RequestError(f"{path} is no pack, or a damaged one: {error}", remedy=_REMEDY) from error
    except OSError as error:
        remedy = "name a file that bench results pack has written"
        raise RequestError(f"{path} cannot be unpacked: {error.strerror or error}", remedy=remedy) from error


def _extract(content: gzip.GzipFile, directory: Path) -> PackList:
    members = _members(content)
    name, text = next(members, ("", b""))
    if name != LIST:
        raise ValueError(f"its first file is {name or 'missing'}, not {LIST}")
    listed = _parse_list(text)
    waiting = dict(listed.files)
    for name, text in members:
        expected = waiting.pop(name, None)
        if expected is None:
            raise ValueError(f"{LIST} does not list {name}, or it comes twice")
        written = _write(directory / name, text, directory)
        if written != expected:
            raise ValueError(f"{name} is not the file that {LIST} lists")
    if waiting:
        raise ValueError(f"{len(waiting)} listed files are missing, the first is {next(iter(waiting))}")
    return listed


def _parse_list(text: bytes) -> PackList:
    try:
        listed = PackList.model_validate(parse_object(text))
    except ValidationError as error:
        raise ValueError(f"{LIST} is not the list of a pack, or that of a newer suite") from error
    if sum(file.size_bytes for file in listed.files.values()) > MOST_BYTES:
        raise ValueError(f"its files have more than {MOST_BYTES // _MEBIBYTE:,} MiB")
    return listed


def _write(path: Path, text: bytes, below: Path) -> ListedFile:
    """Write a new file by descriptors below a directory; see ``files.whole``. Return it as it is on the disk."""
    with files.whole(path, below=below, new=True, sync=False) as file:
        file.write(text)
    return ListedFile.of(path)


def _members(content: gzip.GzipFile) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of an archive. Raises ValueError for all that ``write_pack`` does not write.

    It reads one file at a time, each of a bounded size, and stops at the bounds of a pack.
    """
    left_bytes = MOST_BYTES
    for _ in range(MOST_TRIALS + 1):
        header = _read(content, _BLOCK)
        if not any(header):
            _check_end(content)
            return
        name, size_bytes = _parse_header(header)
        left_bytes -= size_bytes
        if left_bytes < 0:
            raise ValueError(f"its files have more than {MOST_BYTES // _MEBIBYTE:,} MiB")
        text = _read(content, size_bytes)
        if any(_read(content, -size_bytes % _BLOCK)):
            raise ValueError(f"{name} does not end where its header says")
        yield name, text
    raise ValueError(f"it holds more than {MOST_TRIALS:,} files")


def _read(content: gzip.GzipFile, size_bytes: int) -> bytes:
    text = content.read(size_bytes)
    if len(text) != size_bytes:
        raise ValueError("it ends in the middle of a file")
    return text


def _check_end(content: gzip.GzipFile) -> None:
    """Raise ValueError unless zeros alone follow: what comes later would be read by tar and not by the suite."""
    padding = content.read(_RECORD + 1)
    if len(padding) > _RECORD or len(padding) < _BLOCK or any(padding):
        raise ValueError("something follows its last file")


def _parse_header(header: bytes) -> tuple[str, int]:
    """Return name and size of the file that follows; see tar(5). Raises ValueError unless it is a regular file."""
    checksum = _number(header[148:156], "checksum")
    if checksum != sum(header[:148]) + sum(b" " * 8) + sum(header[156:]) or header[257:263] != b"ustar\0":
        raise ValueError("a header of its archive is damaged, or in another format than ustar")
    base, prefix = (part.rstrip(b"\0").decode("ascii") for part in (header[:100], header[345:500]))
    name = f"{prefix}/{base}" if prefix else base
    if header[156:157] != tarfile.REGTYPE:
        raise ValueError(f"{name!r} is a link, a directory, a device or another special file")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a file of a pack")
    size_bytes = _number(header[124:136], "size")
    if size_bytes > files.MOST_BYTES:
        raise ValueError(f"{name} is larger than {files.MOST_BYTES // _MEBIBYTE} MiB")
    return name, size_bytes


def _number(field: bytes, name: str) -> int:
    octal = _OCTAL.fullmatch(field)
    if octal is None:
        raise ValueError(f"a header of its archive has no {name}")
    return int(octal[1], 8)
