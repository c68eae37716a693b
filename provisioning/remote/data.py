"""The data set on a machine of the inventory, and the disk that a virtual machine there has of it.

The disk is made of the copy that lies there, as it is on this machine: a data set can be large, and need not travel.
"""

import json
from pathlib import Path

from provisioning.volumes import DISKS, Volume, disk_name
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Node
from suite.inventory import InventoryNode
from suite.job.datasets import Dataset

PROGRAMS = {"mke2fs": "e2fsprogs"}
"""The programs that pack it as a disk, and the packages that have them."""
HASHED_WITHIN_S = 3600.0
# The lister is written for the image's Python: a machine's may be too old to evaluate its annotations.
BEFORE = "from __future__ import annotations\n"
AFTER = """
import json, sys
try:
    entries = tuple(entries_of(sys.argv[1]))
    kind, sha256 = identify(sys.argv[1], entries)
except OSError as error:
    sys.exit(f"{error.filename or sys.argv[1]}: {error.strerror}")
print(json.dumps([kind, sha256, len(entries), sum(each.size_bytes for each in entries)]))
"""


def directory_of(planned: InventoryNode, dataset: Dataset) -> str:
    """Return the directory that the inventory gives, else the one of this machine."""
    return planned.data or dataset.directory


def check_data(machine: Node, directory: str, dataset: Dataset, lister: str) -> None:
    """Raise RequestError if other data are there. ``lister`` is the program text that defines ``identify``."""
    program = f"{BEFORE}{lister}{AFTER}".encode()
    answer = machine.run(["python3", "-I", "-", directory], stdin=program, check=False, timeout_s=HASHED_WITHIN_S)
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        raise RequestError(
            f"{machine.name} does not hold the data set: {last[:300]}",
            remedy=f"copy {dataset.directory} to it, to the same path or to one that the inventory gives as data",
        )
    kind, sha256, files, size_bytes = json.loads(answer.stdout)
    if sha256 != dataset.sha256:
        compared = "contents" if kind == "contents" else "names, sizes, times and parts of files"
        raise RequestError(
            f"{machine.name} has another data set in {directory}: {files} files of {size_bytes} bytes, and "
            f"{dataset.directory} here holds {dataset.size_bytes} bytes ({compared} are compared)",
            remedy="make them alike, for instance with: rsync -a --checksum --delete",
        )


def disk_of(planned: InventoryNode, dataset: Dataset) -> str:
    """Return where the disk of the data set is, or is to be, on the machine."""
    return f"{planned.directory}/{DISKS}/{disk_name(dataset)}"


def volume_on(machine: Node, planned: InventoryNode, dataset: Dataset) -> Volume:
    """Return the volume for a guest of the machine. Raises MeasurementError if its disk is not there."""
    directory, disk = directory_of(planned, dataset), disk_of(planned, dataset)
    answer = machine.run(["stat", "--dereference", "--format=%d", "--", directory, disk], check=False)
    if answer.returncode:
        raise MeasurementError(
            f"{machine.name} has no disk of the data set: {answer.stderr.strip()[-300:]}",
            kind="dataset",
            remedy="run again: it is made before the first trial",
        )
    return Volume(Path(directory), Path(disk), same_device=len(set(answer.stdout.split())) == 1)
