"""The memory of this machine. A guest that is lent may begin with little and be given more as it uses it."""

import mmap
import re
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

DRIVERS = ("sys/bus/virtio/drivers/virtio_mem", "sys/bus/vmbus/drivers/hv_balloon")
"""The drivers of devices by which a host adds memory to a guest while it runs."""
KERNEL_KEEPS_AT_MOST = 0.1
"""The share of its memory that a kernel keeps for itself; a balloon takes more, and gives it back when it is needed."""
CHUNK_BYTES = 256 << 20
SPARE_BYTES = 512 << 20
"""What stays free, so that nothing else is killed, and no page cache is lost."""
GROWS_WITHIN_S = 5.0
ASKED_EVERY_S = 0.2


def total_bytes(wanted_bytes: int, root: Path = Path("/")) -> int:
    """Return the memory of this machine. A guest that may be given more, and has less than is wanted, is touched."""
    total: int = psutil.virtual_memory().total
    if total < wanted_bytes and may_grow(total, root):
        return touch(wanted_bytes)
    return total


def may_grow(total_bytes: int, root: Path) -> bool:
    """Return whether a host can give this machine memory: by a device, or as a balloon has taken some of it."""
    if any(device.is_symlink() for driver in DRIVERS for device in (root / driver).glob("*[0-9]*")):
        return True
    try:
        text = (root / "proc/iomem").read_text()
    except OSError:
        return False
    ranges = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) : System RAM\b", text, re.MULTILINE)
    firmware_bytes = sum(int(last, 16) - int(first, 16) + 1 for first, last in ranges if int(last, 16))
    return (1 - KERNEL_KEEPS_AT_MOST) * firmware_bytes > total_bytes


def touch(wanted_bytes: int) -> int:
    """Use free memory until the machine has as much as is wanted, or grows no more; free it, return what there is."""
    with ExitStack() as held:
        while psutil.virtual_memory().total < wanted_bytes and _has_room():
            chunk = held.enter_context(mmap.mmap(-1, CHUNK_BYTES))
            for offset in range(0, CHUNK_BYTES, mmap.PAGESIZE):
                chunk[offset] = 1
        return int(psutil.virtual_memory().total)


def _has_room() -> bool:
    """Return whether there is memory for a chunk, perhaps after the machine was given some."""
    end_s = time.monotonic() + GROWS_WITHIN_S
    while psutil.virtual_memory().free < CHUNK_BYTES + SPARE_BYTES:
        if time.monotonic() > end_s:
            return False
        time.sleep(ASKED_EVERY_S)
    return True
