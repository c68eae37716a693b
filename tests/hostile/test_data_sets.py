"""Data sets whose files claim what they do not hold: refused with little memory, on the host and in a target."""

import errno
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.datasets import processes
from scenarios.datasets.generated import MANIFEST
from scenarios.datasets.processes import limited
from scenarios.datasets.resolve import resolve
from scenarios.datasets.writer import make
from suite.errors import BenchError, RequestError
from worker.data.kinds.kind import DataSetError
from worker.data.sets import FileSet

REPOSITORY = Path(__file__).parents[2]
GIB = 1 << 30
MOST_BYTES = GIB // 2
PICKLE, PIXELS = "cifar-10-batches-py/batches.meta", "MNIST/raw/t10k-images-idx3-ubyte"
# All sets are read in one process, whose peak is at least that of each. getrusage(2) would tell the peak of the tests'
# own process, if that was higher when it started this one.
PEAK = """
import json, re, resource, sys
from pathlib import Path
{reading}
said = [read(named) for named in sys.argv[1:]]
own = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps([said, max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) << 10]))
"""
HOST = """
from scenarios.datasets.resolve import resolve
from suite.errors import RequestError
def read(named):
    try:
        return str(resolve(named, Path("/nowhere"))[1])
    except RequestError as error:
        return f"refused: {error.message}"
"""
TARGET = """
from worker.data.loader import open_images
from worker.protocol import JobError
from worker.spec import Data
def read(named):
    kind, _, directory = named.partition(":")
    try:
        return str(open_images(Data(f"worker.data.kinds.{kind}:{kind.upper()}", directory, 0, "auto")))
    except JobError as error:
        return f"refused: {error}"
"""


def claims(opcode: bytes, size_bytes: int) -> Callable[[Path], None]:
    """A pickle of some bytes that asks for so many."""

    def write(path: Path) -> None:
        path.write_bytes(b"\x80\x05" + opcode + struct.pack("<Q", size_bytes) + b"..")

    return write


def holes(header: bytes, size_bytes: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(header)
        os.truncate(path, len(header) + size_bytes)

    return write


def idx(count: int) -> tuple[bytes, int]:
    return struct.pack(">4I", 0x803, count, 28, 28), count * 28 * 28


CLAIMS = (
    ("cifar10", PICKLE, claims(b"\x96", 3 * GIB), "has the opcode 0x96"),
    ("cifar10", PICKLE, claims(b"\x8e", 3 * GIB), "has the opcode 0x8e"),
    ("cifar10", PICKLE, claims(b"\x95", 3 * GIB), "has the opcode 0x95"),
    ("cifar10", PICKLE, holes(b"\x80\x02}", 4 * GIB), "at most 1073741824 are read"),
    ("cifar10", PICKLE, holes(b"\x80\x02}", 900 << 20), "is sparse"),
    ("mnist", PIXELS, holes(*idx(5_700_000)), "at most 1073741824 are read"),
    ("mnist", PIXELS, holes(*idx(1_200_000)), "is sparse: of its 940800016 bytes 4096 are on the disk"),
    ("celeba", "list_eval_partition.txt", holes(b"000001.jpg 0\n", 3 * GIB), "at most 33554432 are read"),
    ("celeba", "list_eval_partition.txt", holes(b"000001.jpg 0\n", 30 << 20), "is sparse"),
    ("frames", "ucfTrainTestlist/trainlist01.txt", holes(b"a/b.avi 1\n", 3 * GIB), "at most 33554432 are read"),
)
"""Data sets whose file of this name was damaged so, and why they are refused."""


@pytest.mark.parametrize("reading", [HOST, TARGET], ids=["host", "target"])
def test_files_that_claim_gigabytes_are_refused_with_little_memory(reading: str, tmp_path: Path) -> None:
    for name in dict.fromkeys(name for name, *_ in CLAIMS):
        make(tmp_path / name, 6, workers=1, name=name)
    words = []
    for number, (name, file, damage, _) in enumerate(CLAIMS):
        damaged = shutil.copytree(tmp_path / name, tmp_path / f"{number}")
        (damaged / file).unlink()
        damage(damaged / file)
        words.append(f"{name}:{damaged}")
    argv = [sys.executable, "-c", PEAK.format(reading=reading), *words]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=REPOSITORY, check=True, timeout=300)
    said, peak_bytes = json.loads(done.stdout)
    for text, (*_, word) in zip(said, CLAIMS, strict=True):
        assert (text[:9], word in text) == ("refused: ", True), text
    assert peak_bytes < MOST_BYTES


def test_the_limit_of_memory_ends_what_no_rule_has_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_LEAST_BYTES", 1 << 28)
    make(tmp_path, 6, workers=1, name="cifar10")
    (tmp_path / PICKLE).unlink()
    (tmp_path / PICKLE).write_bytes(b"\x80\x02" + b"(" * (8 << 20))  # a list of 100 bytes for each of one
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with pytest.raises(RequestError) as refused:
        resolve(f"cifar10:{tmp_path}", tmp_path)
    assert refused.value.remedy
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 1 << 20), "in KiB"


def test_a_kind_that_needs_too_much_is_refused_with_the_numbers() -> None:
    with pytest.raises(DataSetError, match=r"reading it takes more than 2\.1 GB of memory, and its files have 0\.0 GB"):
        limited(lambda: len(np.ones(6 * GIB, np.uint8)), 1000)
    assert limited(lambda: len(np.ones(1000, np.uint8)), 1000) == 1000


def killed() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


@pytest.mark.parametrize(
    ("work", "error", "word"),
    [
        (killed, BenchError, "has ended with status -9"),
        (lambda: len(os.listdir("/nowhere/at/all")), FileNotFoundError, "/nowhere/at/all"),
    ],
)
def test_the_end_of_the_reading_process_is_told(work: Callable[[], Any], error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        limited(work, 1000)


def test_a_manifest_or_an_image_of_gigabytes_is_refused(tmp_path: Path) -> None:
    make(tmp_path, 6, workers=1, name="mnist")
    os.truncate(tmp_path / MANIFEST, 100 * GIB)
    with pytest.raises(RequestError, match=r"manifest\.json has more than 512 MiB"):
        resolve(f"generated:{tmp_path}", tmp_path)
    holes(b"\xff\xd8", 5 * GIB)(tmp_path / "1.jpg")
    with pytest.raises(OSError, match=r"1\.jpg") as refused:
        FileSet.of(tmp_path, [b"1.jpg"], [0]).read(0)
    assert refused.value.errno == errno.EFBIG
