"""Packs that a stranger made or a transfer damaged: refused in one sentence, with nothing written outside."""

import gzip
import io
import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands.paths import unpacked
from suite.errors import RequestError
from suite.results import archive
from suite.results.archive import LIST, PackList
from suite.results.store import ListedFile
from tests.hostile.conftest import RUNS, Bench

GZIP_HEADER = 10
"""The bytes before the compressed ones: a time and a system, which no digest covers and nobody reads."""
Content = dict[str, bytes]
Entry = tuple[tarfile.TarInfo, bytes]


@pytest.fixture
def pack(bench: Bench, tmp_path: Path) -> Path:
    run = shutil.copytree(RUNS / "command", tmp_path / "night")
    assert bench("results", "pack", str(run), "--out", "good.tar.gz").exit_code == 0
    return tmp_path / "good.tar.gz"


def regular(name: str, content: bytes) -> Entry:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    return entry, content


def special(name: str, kind: bytes, target: str = "") -> Entry:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry, b""


def hostile(path: Path, *further: Entry, listed: bool = True, form: int = tarfile.USTAR_FORMAT) -> Path:
    """Write a pack of one good file and these entries, which its list has."""
    entries = [regular("README.txt", b"read me"), *further]
    described = {entry.name: ListedFile.of_content(content) for entry, content in entries if listed}
    described["README.txt"] = ListedFile.of_content(b"read me")
    names = PackList.model_construct(
        suite_version="0.1.0", anonymous=False, runs=("runs/night",), margin=None, files=described
    )
    with tarfile.open(path, "w:gz", format=form) as opened:
        for entry, content in (regular(LIST, names.model_dump_json().encode()), *entries):
            opened.addfile(entry, io.BytesIO(content))
    return path


RECORD = "runs/night/trials/a.json"
HOSTILE: dict[str, list[Entry]] = {
    "a symbolic link": [special(RECORD, tarfile.SYMTYPE, "/etc/passwd")],
    "a link to the directory above": [special("runs", tarfile.SYMTYPE, ".."), regular(RECORD, b"{}")],
    "a hard link": [special(RECORD, tarfile.LNKTYPE, "/etc/passwd")],
    "a character device": [special(RECORD, tarfile.CHRTYPE)],
    "a block device": [special(RECORD, tarfile.BLKTYPE)],
    "a pipe": [special(RECORD, tarfile.FIFOTYPE)],
    "a directory": [special("runs", tarfile.DIRTYPE)],
    "a way out": [regular("runs/../../escaped.json", b"{}")],
    "a way out at the end": [regular("runs/night/..", b"{}")],
    "an absolute name": [regular("/escaped.json", b"{}")],
    "a name of a home": [regular("~/escaped.json", b"{}")],
    "code": [regular("numpy.py", b"raise SystemExit(7)")],
    "a configuration of Matplotlib": [regular("matplotlibrc", b"backend: agg")],
    "a hidden file": [regular("runs/night/.kept/a.json", b"{}")],
    "a name that steers a terminal": [regular("runs/\x1b[2Jnight/a.json", b"{}")],
    "the same name twice": [regular(RECORD, b"{}"), regular(RECORD, b"{}")],
    "a file as a directory": [regular("runs/night/a.json", b"{}"), regular("runs/night/a.json/b.json", b"{}")],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pack_is_refused_by_name(kind: str, bench: Bench, tmp_path: Path) -> None:
    path = hostile(tmp_path / "hostile.tar.gz", *HOSTILE[kind])
    for words in (("results", "verify"), ("compare",), ("audit",)):
        done = bench(*words, str(path))
        assert done.exit_code == 2
        assert "hostile.tar.gz" in done.output
    outside = [name for name in os.listdir(tmp_path) if name != "home"]
    assert (outside, list((tmp_path / "home/ledger").glob("*.json"))) == ([path.name], [])
    assert not Path("/escaped.json").exists()


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_extensions_of_tar_are_not_read(form: int, tmp_path: Path) -> None:
    long_name = f"runs/night/trials/{'a' * 120}.json"
    path = hostile(tmp_path / "long.tar.gz", regular(long_name, b"{}"), form=form)
    with pytest.raises(RequestError, match="no pack, or a damaged one"), unpacked(path):
        pass


def test_bombs_by_size_and_by_count_are_refused_before_they_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = regular(RECORD, bytes((32 << 20) + 1))
    several = [regular(f"runs/night/trials/{number}.json", bytes(1000)) for number in range(5)]
    for entries, message in (([large], "larger than 32 MiB"), (several, "more than 3 files|more than 0 MiB")):
        path = hostile(tmp_path / "bomb.tar.gz", *entries)
        assert path.stat().st_size < 100_000
        with pytest.raises(RequestError, match=message), unpacked(path):
            pass
        monkeypatch.setattr(archive, "MOST_TRIALS", 3)
    monkeypatch.setattr(archive, "MOST_BYTES", 4000)
    with pytest.raises(RequestError, match="more than 0 MiB"), unpacked(path):
        pass


def test_an_unlisted_file_is_refused(tmp_path: Path) -> None:
    path = hostile(tmp_path / "more.tar.gz", regular(RECORD, b"{}"), listed=False)
    with pytest.raises(RequestError, match="does not list"), unpacked(path):
        pass


def damaged(content: bytes, draw: random.Random) -> Iterator[bytes]:
    """Yield the file with a byte changed, cut off, and with a byte changed inside the archive that it compresses."""
    for _ in range(10):
        position = draw.randrange(GZIP_HEADER, len(content))
        yield content[:position] + bytes([content[position] ^ draw.randrange(1, 256)]) + content[position + 1 :]
        yield content[: draw.randrange(len(content) - 1)]
        inside = gzip.decompress(content)
        after_list = 512 + int(inside[124:135], 8)
        position = draw.randrange(after_list, len(inside))
        inside = inside[:position] + bytes([inside[position] ^ draw.randrange(1, 256)]) + inside[position + 1 :]
        yield gzip.compress(inside, compresslevel=1, mtime=0)


def test_thirty_damaged_packs_are_refused(pack: Path, tmp_path: Path) -> None:
    packs = list(damaged(pack.read_bytes(), random.Random(73)))
    assert len(packs) == 30
    for number, content in enumerate(packs):
        path = tmp_path / f"{number}.tar.gz"
        path.write_bytes(content)
        with pytest.raises(RequestError, match=f"{number}.tar.gz"), unpacked(path):
            pytest.fail(f"pack {number} was unpacked")


def test_a_list_of_another_kind_is_refused(pack: Path, tmp_path: Path) -> None:
    """Runs elsewhere, a newer version, a margin beyond any share, and no list at all."""
    changes: list[Callable[[dict[str, object]], object]] = [
        lambda listed: listed.update(runs=["/etc"]),
        lambda listed: listed.update(runs=["runs/../.."]),
        lambda listed: listed.update(schema_version=2),
        lambda listed: listed.update(margin=7),
        lambda listed: listed.update(files={}),
        dict.clear,
    ]
    with tarfile.open(pack) as opened:
        content = {entry.name: opened.extractfile(entry).read() for entry in opened}  # type: ignore[union-attr]
    for change in changes:
        listed = json.loads(content[LIST])
        change(listed)
        path = tmp_path / "changed.tar.gz"
        with tarfile.open(path, "w:gz", format=tarfile.USTAR_FORMAT) as opened:
            for name, text in {**content, LIST: json.dumps(listed).encode()}.items():
                opened.addfile(*regular(name, text)[:1], io.BytesIO(text))
        with pytest.raises(RequestError, match=r"changed\.tar\.gz"), unpacked(path):
            pass
