"""The image and the data set on a machine of the inventory.

The image is sent once, verified, and put in its place in one step. A data set stays where it is: the disk of it that a
virtual machine gets is made on the machine.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from provisioning import artefacts, ledger
from provisioning.images.image import Image
from provisioning.nodes import local_node, undone
from provisioning.paths import ROOMS
from provisioning.processes import packages_of
from provisioning.remote.machine import Machine
from provisioning.volumes import DISKS, Volume, check_disk_space, disk_name
from suite.errors import CommandError, MeasurementError, RequestError
from suite.interfaces import Completed, Node
from suite.inventory import InventoryNode
from suite.job.datasets import FILES, Dataset
from suite.userland import MANIFEST, parse_line

PROGRAMS = packages_of("mke2fs")
"""The programs that pack it as a disk, and the packages that have them."""
HASHED_WITHIN_S = 3600.0
SENT_WITHIN_S = 3600.0
VERIFIED_WITHIN_S = 900.0
LISTER = ROOMS / "worker/data/listing.py"
"""The program text that defines ``identify``: targets list a data set by it, too."""
# The lister is written for the image's Python: a machine's may be too old to evaluate its annotations.
BEFORE = "from __future__ import annotations\n"
AFTER = """
import json, sys
try:
    entries = tuple(entries_of(sys.argv[1]))
    kind, sha256 = identify(sys.argv[1], entries)
except OSError as error:
    sys.exit(f"{error.filename or sys.argv[1]}: {error.strerror}")
print(json.dumps([kind, sha256, len(entries), sum(entry.size_bytes for entry in entries)]))
"""


def directory_of(planned: InventoryNode, dataset: Dataset) -> str:
    return planned.data or dataset.directory


def check_copy(machine: Node, directory: str, dataset: Dataset) -> None:
    """Raise RequestError if the machine holds other data than this one does."""
    answer = _listed(machine, directory)
    if answer.returncode:
        last = answer.complaint()
        remedy = f"copy {dataset.directory} to it, to the same path or to one that the inventory gives as data"
        raise RequestError(f"{machine.name} does not hold the data set: {last[:300]}", remedy=remedy)
    kind, sha256, files, size_bytes = json.loads(answer.stdout)
    expected = dataset.sha256
    if dataset.digest == "manifest" or dataset.kind == FILES:
        # A machine's copy is held against this one, and not against its manifest.
        with local_node((), None) as node:
            listed_here = _listed(node, dataset.directory)
        _, expected, _, _ = json.loads(listed_here.stdout)
    if sha256 != expected:
        compared = "contents" if kind == "contents" else "names, sizes, times and parts of files"
        raise RequestError(
            f"{machine.name} has another data set in {directory}: {files} files of {size_bytes} bytes, and "
            f"{dataset.directory} here holds {dataset.size_bytes} bytes ({compared} are compared)",
            remedy="make them alike, for instance with: rsync -a --checksum --delete",
        )


def _listed(node: Node, directory: str) -> Completed:
    program = f"{BEFORE}{LISTER.read_text()}{AFTER}".encode()
    return node.run(["python3", "-I", "-", directory], stdin=program, check=False, timeout_s=HASHED_WITHIN_S)


def disk_of(planned: InventoryNode, dataset: Dataset) -> str:
    return f"{planned.directory}/{DISKS}/{disk_name(dataset)}"


def volume_on(machine: Node, planned: InventoryNode, dataset: Dataset) -> Volume:
    """Return the volume for a guest of the machine. Raises MeasurementError if its disk is not there."""
    directory = directory_of(planned, dataset)
    disk = disk_of(planned, dataset)
    answer = machine.run(["stat", "--dereference", "--format=%d", "--", directory, disk], check=False)
    if answer.returncode:
        message = f"{machine.name} has no disk of the data set: {answer.stderr.strip()[-300:]}"
        raise MeasurementError(message, kind="dataset", remedy="run again: it is made before the first trial")
    devices = set(answer.stdout.split())
    return Volume(Path(directory), Path(disk), same_device=len(devices) == 1)


@contextmanager
def scratch_on(machine: Node, planned: InventoryNode, size_bytes: int) -> Iterator[Volume]:
    """Provide room to write on the machine's disk, for as long as the trial lasts."""
    directory = f"{planned.directory}/scratch/{ledger.fresh('scratch')}"
    with undone(machine, ["rm", "-r", "-f", "--", directory]):
        machine.run(["mkdir", "-p", "--", directory])
        check_disk_space(machine, directory, size_bytes, "the room to write")
        yield Volume(Path(directory), writable=True)


def store_of(planned: InventoryNode, image: Image) -> str:
    return f"{planned.directory}/images/{image.digest[:12]}"


def tree_of(planned: InventoryNode, image: Image) -> str:
    return f"{store_of(planned, image)}/tree"


def sync_image(machine: Machine, image: Image, note: Callable[[str], None]) -> str:
    """Send the image's tree, unless the machine has it already, and return its path there.

    Raises RequestError when there is no room, MeasurementError when what has arrived is not the image.
    """
    store = store_of(machine.planned, image)
    final = f"{store}/tree"
    with artefacts.making(f"image {image.digest[:12]} on {machine.name}", note):
        hashed = machine.run(["sha256sum", "--", f"{final}/{MANIFEST}"], check=False).stdout
        if hashed.partition(" ")[0] == image.digest:
            return final
        images, _, _ = store.rpartition("/")
        machine.run(["mkdir", "-p", "-m", "700", "--", images])
        answer = machine.carrier.run(["du", "-s", "-B1", "--", str(image.tree)], timeout_s=600.0)
        measured = answer.stdout
        size_bytes = int(measured.split()[0])
        check_disk_space(machine, images, size_bytes, "the image")
        note(f"sending the image to {machine.name}: {size_bytes / 1e9:.1f} GB (once)")
        with artefacts.workshop(machine, images) as arriving:
            machine.run(["chmod", "755", "--", arriving])
            machine.run(["mkdir", "-m", "755", "--", f"{arriving}/tree"])
            _send(machine, str(image.tree), f"{arriving}/tree")
            note(f"verifying the image on {machine.name}")
            _verify(machine, f"{arriving}/tree", image)
            machine.run(["sync", "--file-system", "--", arriving], timeout_s=SENT_WITHIN_S)
            machine.run(["rm", "-r", "-f", "--", store])
            artefacts.put(machine, arriving, store)
    return final


def sync_file(machine: Machine, image: Image, name: str, note: Callable[[str], None]) -> None:
    """Send one of the image's packed files, unless the machine has it already.

    Raises RequestError when there is no room, MeasurementError when what has arrived is another file.
    """
    store = store_of(machine.planned, image)
    stamp = image.files[name]
    with artefacts.making(f"{name} of image {image.digest[:12]} on {machine.name}", note):
        if artefacts.digest_of(machine, f"{store}/{name}") == stamp.sha256:
            return
        check_disk_space(machine, store, stamp.size_bytes, "the image")
        note(f"sending {name} to {machine.name}: {stamp.size_bytes / 1e9:.1f} GB (once)")
        with artefacts.workshop(machine, store) as half_made:
            arriving = f"{half_made}/{name}"
            argv = ["dd", f"of={arriving}", "bs=1M", "conv=sparse", "iflag=fullblock", "status=none"]
            with image.file(name).open("rb") as content:
                writing = machine.start(argv, stdin=content)
            status = writing.wait(SENT_WITHIN_S)
            if status:
                raise CommandError(argv, status, f"{machine.name}: {writing.output_tail()}")
            if artefacts.sha256_on(machine, arriving) != stamp.sha256:
                raise MeasurementError(
                    f"the {name} that arrived on {machine.name} is another",
                    kind="image",
                    remedy="see that the image is whole here: bench image verify; then run again",
                )
            artefacts.put_stamped(machine, arriving, f"{store}/{name}", stamp.sha256)


def _send(machine: Machine, source: str, target: str) -> None:
    """Send the tree from tar to tar, with nothing in between but ssh."""
    reading, writing = os.pipe()
    pack = ["tar", "--create", "--numeric-owner", "--file=-", f"--directory={source}", "."]
    packing = machine.carrier.start(pack, stdout=os.fdopen(writing, "wb"))
    unpack = ["tar", "--extract", "--numeric-owner", "--same-permissions", "--file=-", f"--directory={target}"]
    unpacking = machine.start(unpack, stdin=os.fdopen(reading, "rb"))
    status = unpacking.wait(SENT_WITHIN_S), packing.wait(60.0)
    if any(status):
        raise CommandError(unpack, status[0], f"{machine.name}: {unpacking.output_tail() or packing.output_tail()}")


def _verify(machine: Machine, tree: str, image: Image) -> None:
    """Compare the content of every file. Types, permissions and links are compared from inside by every trial."""
    check = ["env", "--chdir", tree, "sha256sum", "--check", "--quiet", "--strict", "-"]
    sums = checksums((image.tree / MANIFEST).read_text(encoding="ascii"), image.digest)
    listed = sums.encode()
    answer = machine.run(check, stdin=listed, check=False, timeout_s=VERIFIED_WITHIN_S)
    if answer.returncode:
        wrong = answer.stdout.strip().splitlines() or answer.stderr.strip().splitlines() or ["no answer"]
        raise MeasurementError(
            f"what arrived on {machine.name} is not image {image.digest[:12]}: {'; '.join(wrong[:3])}",
            kind="image",
            output_tail=answer.stdout[-2000:] + answer.stderr[-2000:],
            remedy="see that the image is whole here: bench image verify; then run again",
        )


def checksums(manifest: str, digest: str) -> str:
    """Return the manifest's files, and the manifest itself, as sha256sum(1) reads them."""
    entries = (parse_line(line) for line in manifest.splitlines())
    files = [(entry.content, entry.path) for entry in entries if entry.kind == "file"]
    lines = []
    for content, path in [*files, (digest, MANIFEST)]:
        escaped = path.replace("\\", "\\\\").replace("\n", "\\n")
        # A backslash before the line says that some characters of the path are escaped.
        lines.append(f"{'' if escaped == path else chr(92)}{content}  {escaped}\n")
    return "".join(lines)
