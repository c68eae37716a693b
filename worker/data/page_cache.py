"""The page cache of the place the worker runs in: emptied of a data set or filled with it, and how much it then holds.

What is emptied and filled is the content of files. The metadata that leads to them (directories, inodes) is cached in
both states and on every target alike, since listing the set reads all of it. Needs no capability and no writable place.
"""

import ctypes
import mmap
import os
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from worker.data.listing import files, summary
from worker.memory import read

_CHUNK_BYTES = 1 << 20
_CAP_FOWNER = 1 << 3
_LOWEST_BIT = bytes(value & 1 for value in range(256))  # the others of mincore's bytes are reserved
_MAP_FAILED = ctypes.c_void_p(-1).value


def arrange(state: str, directory: str) -> dict[str, object]:
    """Bring the files into the state, and tell what they are and which share of their pages the cache holds.

    The share is null where the kernel hides it. Raises OSError for what cannot be read.
    """
    entries = list(files(directory))
    paths = [os.fsencode(directory) + b"/" + path for path, size_bytes in entries if size_bytes]
    if state == "cold":
        os.sync()  # a page that waits to be written is not dropped
        for path in paths:
            _drop(path)
    else:
        chunk = bytearray(_CHUNK_BYTES)
        for path in paths:
            _read(path, chunk)
    return {**asdict(summary(entries)), "page_cache_share": share(paths)}


def share(paths: Iterable[bytes]) -> float | None:
    """Resident pages over all pages; None where there are none, or where the kernel does not tell."""
    eyes = _Eyes()
    resident = pages = 0
    for path in paths:
        found = eyes.resident(path)
        if found is None:
            return None
        resident, pages = resident + found[0], pages + found[1]
    return resident / pages if pages else None


def _drop(path: bytes) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _read(path: bytes, chunk: bytearray) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        while os.readv(fd, [chunk]):
            pass
    finally:
        os.close(fd)


class _Eyes:
    """mincore(2). Python's own mmap gives no address of memory that cannot be written to."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        word = ctypes.c_size_t
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, word, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        self._libc.mincore.argtypes = [ctypes.c_void_p, word, ctypes.c_void_p]
        self._libc.munmap.argtypes = [ctypes.c_void_p, word]
        self._vector = ctypes.create_string_buffer(1 << 16)
        status = read(Path("/proc/self/status")) or ""
        capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
        self._owns_all = bool(capabilities and int(capabilities[1], 16) & _CAP_FOWNER)

    def resident(self, path: bytes) -> tuple[int, int] | None:
        """Pages of a file that is not empty, those in the cache and all; None where the kernel does not tell."""
        fd = os.open(path, os.O_RDONLY)
        try:
            info = os.fstat(fd)
            return self._count(fd, info.st_size) if self._may_ask(path, info) else None
        finally:
            os.close(fd)

    def _may_ask(self, path: bytes, info: os.stat_result) -> bool:
        """Since Linux 5.2 every page is called resident to who neither owns the file nor could write to it."""
        return info.st_uid == os.geteuid() or self._owns_all or os.access(path, os.W_OK, effective_ids=True)

    def _count(self, fd: int, size_bytes: int) -> tuple[int, int]:
        pages = -(-size_bytes // mmap.PAGESIZE)
        if pages > len(self._vector):
            self._vector = ctypes.create_string_buffer(pages)
        address = self._libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            raise _last_error("mmap")
        try:
            if self._libc.mincore(address, size_bytes, self._vector):
                raise _last_error("mincore")
        finally:
            self._libc.munmap(address, size_bytes)
        return ctypes.string_at(self._vector, pages).translate(_LOWEST_BIT).count(1), pages


def _last_error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
