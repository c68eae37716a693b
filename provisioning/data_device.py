"""A block device of the user's that holds one data set: written once, by ``bench data disk``, and only read after that.

Nothing is ever written to a device that is in use or that carries any signature (of a file system, a partition table,
a volume manager, swap), except to one whose writing was interrupted: its label says so.
"""

import errno
import json
import os
import stat
import uuid
from pathlib import Path

from provisioning.images.pack import filesystem
from provisioning.nodes import local_node
from provisioning.volumes import inodes_of, packed_bytes
from suite.errors import BenchError, CommandError, RequestError, option
from suite.interfaces import Note
from suite.job.datasets import Dataset

LABEL = "virtbench-data"
UNFINISHED = "virtbench-part"
"""The labels of the file system. The first is set last: what carries it is whole."""
Signature = tuple[str, str | None, str | None]
"""Type, UUID and label, as wipefs(8) tells them."""


def check(device: str, dataset: Dataset, data: str) -> None:
    """Raise RequestError unless the device holds this data set, whole, and is free to be read by a run.

    ``data`` is the data set as the user names it, for the command that would write it.
    """
    if os.geteuid():
        raise RequestError(
            f"{option('data_disk')} {device} needs root: it is mounted for bare metal", remedy="run bench as root"
        )
    _refuse_busy(device)
    signatures = _signatures(device)
    if _whole(dataset) not in signatures:
        raise RequestError(
            f"{option('data_disk')} {device} does not hold this data set: {_describe(signatures)}",
            remedy=f"write it there, once: bench data disk --device {device} --data {data}",
        )


def write(device: str, dataset: Dataset, note: Note) -> None:
    """Put the data set on the device, which is refused if it holds anything else. Holding it already, it is left alone.

    Raises RequestError for a device that may not be written, and BenchError when the writing fails.
    """
    _refuse_busy(device)
    signatures = _signatures(device)
    if _whole(dataset) in signatures:
        note(f"{device} holds the data set already")
        return
    foreign = [signature for signature in signatures if signature[2] != UNFINISHED]
    if foreign:
        raise RequestError(
            f"{device} is left alone: {_describe(foreign)}",
            remedy=f"name an empty device; if nothing on this one is needed any more: wipefs --all {device}",
        )
    with Path(device).open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
    needed = packed_bytes(dataset)
    if size_bytes < needed:
        raise RequestError(
            f"{device} has {size_bytes / 1e9:.2f} GB, and the data set needs {needed / 1e9:.2f} GB",
            remedy=f"name a larger device, or a smaller data set with {option('data')}",
        )
    note(f"writing {dataset.images} images, {dataset.size_bytes / 1e9:.1f} GB, to {device}")
    try:
        with local_node((), None) as node:
            content = Path(dataset.directory)
            inodes = inodes_of(dataset)
            filesystem(node, content, Path(device), journal=False, inodes=inodes, label=UNFINISHED)
            node.run(["tune2fs", "-U", _identity(dataset), device], timeout_s=600.0)
            node.run(["tune2fs", "-L", LABEL, device])
    except CommandError as error:
        raise BenchError(
            f"{device} could not be written: {error.message}",
            remedy="see whether it is read-only or failing; the same command begins anew",
        ) from error


def _identity(dataset: Dataset) -> str:
    """Return the UUID of the file system that holds the data set: the beginning of the data set's digest."""
    return str(uuid.UUID(dataset.sha256[:32]))


def _whole(dataset: Dataset) -> Signature:
    return "ext4", _identity(dataset), LABEL


def _refuse_busy(device: str) -> None:
    try:
        if not stat.S_ISBLK(Path(device).stat().st_mode):
            raise RequestError(f"{device} is no block device", remedy="name one, such as /dev/sdb; lsblk lists them")
        # Exclusive: the kernel refuses it for what is mounted, swapped to, or part of another device.
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise RequestError(
                f"{device} is in use: mounted, or part of another device",
                remedy="see lsblk; umount it, or name another",
            ) from error
        raise RequestError(
            f"{device} cannot be opened: {error.strerror}", remedy="name a block device that exists; root may open it"
        ) from error


def _signatures(device: str) -> list[Signature]:
    with local_node((), None) as node:
        listed = json.loads(node.run(["wipefs", "--no-act", "--json", device]).stdout or "{}")
    signatures = listed.get("signatures", ())
    return [(entry["type"], entry.get("uuid"), entry.get("label")) for entry in signatures]


def _describe(signatures: list[Signature]) -> str:
    if not signatures:
        return "it is empty"
    named = [f"{kind}{f' labelled {label}' if label else ''}" for kind, _, label in signatures]
    return f"it holds {', '.join(named)}"
