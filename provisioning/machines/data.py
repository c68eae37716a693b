"""The data set on a machine of the inventory: where it lies, and whether it is the one that this machine has."""

import json

from suite.datasets import Dataset
from suite.errors import RequestError
from suite.interfaces import Node
from suite.inventory import InventoryNode

LISTED_WITHIN_S = 3600.0
# The lister is written for the image's Python: a machine's may be too old to evaluate its annotations.
BEFORE = "from __future__ import annotations\n"
AFTER = """
import json, sys
try:
    found = listing(sys.argv[1])
except OSError as error:
    sys.exit(f"{error.filename or sys.argv[1]}: {error.strerror}")
print(json.dumps([found.sha256, found.files, found.size_bytes]))
"""


def directory_of(planned: InventoryNode, dataset: Dataset) -> str:
    """As the inventory gives it, else where it lies on this machine."""
    return planned.data or dataset.directory


def check_data(machine: Node, directory: str, dataset: Dataset, lister: str) -> None:
    """``lister``: the program text that defines ``listing``. Raises RequestError where other files lie there."""
    program = f"{BEFORE}{lister}{AFTER}".encode()
    answer = machine.run(["python3", "-I", "-", directory], stdin=program, check=False, timeout_s=LISTED_WITHIN_S)
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        raise RequestError(
            f"{machine.name} does not hold the data set: {last[:300]}",
            remedy=f"copy {dataset.directory} to it, to the same path or to one that the inventory gives as data",
        )
    sha256, files, size_bytes = json.loads(answer.stdout)
    if sha256 != dataset.sha256:
        raise RequestError(
            f"{machine.name} has another data set in {directory}: {files} files of {size_bytes} bytes, and "
            f"{dataset.directory} here holds {dataset.size_bytes} bytes (names and sizes are compared)",
            remedy="make them alike, for instance with: rsync -a --delete",
        )
