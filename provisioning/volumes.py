"""The data volume of a trial: a data set to read, or room to write. On one and the same disk for every target.

Bare metal and containers see a directory of this machine; a VM sees a raw disk beside it that holds the same files.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning import artefacts, ledger
from provisioning.images.pack import filesystem
from provisioning.nodes import local_node
from provisioning.paths import runtime, state
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Node, Note
from suite.job.datasets import Dataset
from suite.plan import Trial
from suite.targets import VMS

MOUNT = "/mnt/data"
"""The mount point in every target. The image holds the empty directory."""
SCRATCH = "/tmp/scratch"  # noqa: S108 (inside, not here)
"""The mount point of the room to write beside a data set, in a file system in memory that every target has."""
DISKS = "data-disks"
"""The folder, below the suite's own on a machine, with the disks that hold data sets."""


@dataclass(frozen=True)
class Volume:
    """``disk`` is the raw disk for a VM; None where the directory itself is what the target is given.

    Paths are those of the machine that has it: this one, or one of an inventory.
    """

    directory: Path
    disk: Path | None = None
    layer: Path | None = None
    """An empty directory of the suite's, on its disk, for what goes into a layer of the container's own."""
    writable: bool = False
    scratch: Path | None = None
    """A directory to write to beside the data set."""
    same_device: bool = True
    """Whether disk and directory are on one device of that machine."""


@contextmanager
def volume_of(trial: Trial) -> Iterator[Volume | None]:
    """Provide the volume that the trial needs, for as long as it lasts."""
    dataset = trial.job.dataset
    on_vm = trial.target in VMS
    volume = room = layer = None
    with ExitStack() as stack:
        if dataset:
            volume = stack.enter_context(_data(dataset, with_disk=on_vm and not trial.properties.virtiofs))
        if trial.properties.data_in_layer:
            layer = stack.enter_context(ledger.directory(state("scratch"), "layer"))
        if trial.scratch_bytes:
            room = stack.enter_context(_scratch(trial.scratch_bytes, with_disk=on_vm and not dataset))
        yield replace(volume, layer=layer, scratch=room.directory if room else None) if volume else room


@contextmanager
def _data(dataset: Dataset, *, with_disk: bool) -> Iterator[Volume]:
    directory = Path(dataset.directory)
    if dataset.device and with_disk:
        yield Volume(directory, Path(dataset.device))
    elif dataset.device:
        with _mounted(dataset.device) as mounted:
            yield Volume(mounted)
    else:
        disk = disk_of(dataset) if with_disk else None
        if disk and not disk.exists():
            remedy = "run again: it is made before the first trial"
            raise MeasurementError(f"{disk} is gone", kind="dataset", remedy=remedy)
        yield Volume(directory, disk, same_device=disk is None or same_device(disk, directory))


@contextmanager
def _mounted(device: str) -> Iterator[Path]:
    """Mount the user's block device read-only. Without a journal nothing is replayed onto it."""
    options = "ro,noload,noatime,nosuid,nodev,noexec"
    with (
        ledger.directory(runtime(), "data") as directory,
        ledger.holding("mount", str(directory)),
        local_node((), None) as node,
    ):
        node.run(["mount", "-t", "ext4", "-o", options, device, str(directory)])
        yield directory


def same_device(first: Path, second: Path) -> bool:
    return first.stat().st_dev == second.stat().st_dev


@contextmanager
def _scratch(size_bytes: int, *, with_disk: bool) -> Iterator[Volume]:
    with local_node((), None) as node, ledger.directory(state("scratch"), "scratch") as scratch:
        check_disk_space(node, str(scratch.parent), size_bytes, "the room to write")
        directory = scratch / "directory"
        directory.mkdir()
        disk = scratch / "disk.img" if with_disk else None
        if disk:
            filesystem(node, directory, disk, mib=mib_of(size_bytes), journal=True)
            # Its blocks are there before the first write.
            node.run(["fallocate", "--length", str(disk.stat().st_size), "--", str(disk)], timeout_s=600.0)
        yield Volume(directory, disk, writable=True)


def disk_of(dataset: Dataset) -> Path:
    return state(DISKS) / disk_name(dataset)


def disk_name(dataset: Dataset) -> str:
    return f"{dataset.sha256[:16]}.img"


def prepare_disk(
    node: Node,
    directory: str,
    disk: str,
    dataset: Dataset,
    note: Note,
    refuse_changed: Callable[[], None] = lambda: None,
) -> None:
    """Pack the data set, which lies in the node's directory, as a disk, once. One that has changed is packed anew.

    ``refuse_changed`` raises when the directory no longer holds the data set: no disk then gets its name. Raises
    RequestError when there is no room for it.
    """
    with artefacts.making(f"{disk_name(dataset)} on {node.name}", note):
        if artefacts.digest_of(node, disk):
            return
        folder = disk.rpartition("/")[0]
        node.run(["mkdir", "-p", "-m", "700", "--", folder])
        size_bytes = packed_bytes(dataset)
        check_disk_space(node, folder, size_bytes, "the disk of the data set")
        note(f"packing the data set on {node.name} as a disk for VMs: {dataset.size_bytes / 1e9:.1f} GB (once)")
        with artefacts.workshop(node, folder) as half_made:
            image = f"{half_made}/disk.img"
            size_mib = mib_of(size_bytes)
            inodes = inodes_of(dataset)
            filesystem(node, Path(directory), Path(image), mib=size_mib, journal=False, inodes=inodes)
            refuse_changed()
            artefacts.put_stamped(node, image, disk, artefacts.sha256_on(node, image))


def packed_bytes(dataset: Dataset) -> int:
    """Return the size of the data set as a file system: small files fill blocks, and each has an entry and an inode."""
    return dataset.size_bytes + dataset.images * 6144 + (64 << 20)


def inodes_of(dataset: Dataset) -> int:
    """Return how many files and folders a file system of the data set has to hold: at most a folder for every image."""
    return 2 * dataset.images + 1024


def mib_of(size_bytes: int) -> int:
    """Return the size of a file system that holds so much, with what it needs itself."""
    return -(-size_bytes // (1 << 20)) + 32


def disk_under(node: Node, path: str) -> str | None:
    """Return the file system and the disk, or its model, under a path: ``ext4 on /dev/sda1``; None if unknown."""
    words = ["findmnt", "--noheadings", "--nofsroot", "--output", "FSTYPE,SOURCE", "--target", path]
    kind, _, source = node.run(words, check=False).stdout.strip().partition(" ")
    listed = node.run(["lsblk", "--inverse", "--noheadings", "--output", "MODEL", "--", source.strip()], check=False)
    if kind:
        return f"{kind} on {listed.stdout.strip() or source.strip()}"
    return None


def check_one_filesystem(node: Node, directory: str) -> None:
    """Raise RequestError if something is mounted below the node's directory.

    A container is given the directory without it: not every engine can keep from being written what is mounted below.
    """
    mounts = ledger.mount_points(node.run(["cat", "/proc/self/mountinfo"]).stdout)
    mount = next((path for path in mounts if path.startswith(f"{directory.rstrip('/')}/")), None)
    if mount:
        raise RequestError(
            f"{mount} on {node.name} is a mount inside of the data set, which containers are not given",
            remedy="lay the data set in one file system, or mount that elsewhere",
        )


def check_disk_space(node: Node, directory: str, needed_bytes: int, content: str) -> None:
    """Raise RequestError if the file system of the node's directory has less free space than is needed."""
    free_bytes = int(node.run(["df", "-B1", "--output=avail", "--", directory]).stdout.split()[-1])
    if free_bytes < needed_bytes * 1.05:
        elsewhere = "set VIRTBENCH_HOME to another disk" if node.local else "name another directory in the inventory"
        raise RequestError(
            f"{content} needs {needed_bytes / 1e9:.1f} GB in {directory} on {node.name}, "
            f"{free_bytes / 1e9:.1f} GB are free",
            remedy=f"free some space there, or {elsewhere}",
        )
