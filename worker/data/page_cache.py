"""The page cache of the place the worker runs in: emptied of files or filled with them, and how much it then holds.

What is emptied and filled is the content of files. The metadata that leads to them (directories, inodes) is cached in
both states and on every target alike, since listing the set reads all of it. Needs no capability and no writable place.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict

from suite.userland import walk
from worker.data.listing import files, summary
from worker.environment import named

LARGE_BYTES = 1 << 20
"""Of a userland, files from this size on are looked at: they are nearly all of its bytes, and few of its files."""
_CHUNK_BYTES = 1 << 20
_CAP_FOWNER = 1 << 3
_LOWEST_BIT = bytes(value & 1 for value in range(256))  # the others of mincore's bytes are reserved


def arrange(state: str, directory: str) -> dict[str, object]:
    """Bring the files into the state, and tell what they are and which share of their pages the cache holds.

    The share is null where the kernel hides it. Raises OSError for what cannot be read.
    """
    entries = list(files(directory))
    paths = [os.fsencode(directory) + b"/" + path for path, size_bytes in entries if size_bytes]
    if state == "cold":
        os.sync()  # a page that waits to be written is not dropped
    chunk = bytearray(_CHUNK_BYTES)
    for path in paths:
        if state == "cold":
            _drop(path)
            continue
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (bytes)
            while file.readinto(chunk):
                pass
    return {**asdict(summary(entries)), "page_cache_share": share(paths)}


def empty(root: str, directories: Iterable[str]) -> dict[str, object]:
    """Drop the userland at ``root`` and the files of directories. Returns the share of the large ones that stays.

    What running programs have mapped stays, and what this user may not read, which no job of this user reads either.
    The share is null where the kernel hides it. Raises OSError for a directory that cannot be read.
    """
    sizes = {
        os.fsencode(os.path.join(root, entry.path)): entry.size  # noqa: PTH118
        for entry in walk(root, None, [])
        if entry.kind == "file" and entry.size
    }
    for directory in directories:
        sizes |= {os.fsencode(directory) + b"/" + path: size_bytes for path, size_bytes in files(directory)}
    os.sync()
    dropped = []
    for path, size_bytes in sizes.items():
        with suppress(PermissionError):
            _drop(path)
            if size_bytes >= LARGE_BYTES:
                dropped.append(path)
    return {"page_cache_share": share(dropped)}


def _drop(path: bytes) -> None:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (bytes)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def share(paths: Iterable[bytes]) -> float | None:
    """Resident pages over all pages of files that are not empty; None without any, or where the kernel hides it."""
    libc = ctypes.CDLL(None, use_errno=True)
    owns_all = bool(int(named("proc/self/status", "CapEff") or "0", 16) & _CAP_FOWNER)
    resident = pages = 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (bytes)
            # Since Linux 5.2 every page is called resident to who neither owns the file nor could write to it.
            owns = owns_all or os.fstat(file.fileno()).st_uid == os.geteuid()
            if not owns and not os.access(path, os.W_OK, effective_ids=True):
                return None
            # A private mapping, because Python gives no address of memory that cannot be written to.
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
                vector = ctypes.create_string_buffer(-(-len(mapped) // mmap.PAGESIZE))
                address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
                start = ctypes.c_void_p(address)
                if libc.mincore(start, ctypes.c_size_t(len(mapped)), vector):
                    raise OSError(ctypes.get_errno(), f"mincore: {os.strerror(ctypes.get_errno())}")
        resident += vector.raw.translate(_LOWEST_BIT).count(1)
        pages += len(vector)
    return resident / pages if pages else None
