"""The data volume of a trial: a data set to read, or room to write. On one and the same disk for every target.

Bare metal and containers see a directory of this machine; a VM sees a raw disk beside it that holds the same files.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioning import ledger
from provisioning.home import state
from provisioning.images.pack import filesystem
from provisioning.nodes import local_node
from suite.datasets import Dataset
from suite.errors import MeasurementError, RequestError
from suite.plan import Trial

MOUNT = "/mnt/data"
"""Where every target has it. The image holds the empty directory."""
VMS = frozenset(("vm", "container-vm"))


@dataclass(frozen=True)
class Volume:
    """``disk`` is the raw disk for a VM; None for targets that need none."""

    directory: Path
    disk: Path | None = None
    writable: bool = False
    same_device: bool = True
    """Whether disk and directory lie on one device of this machine."""


@contextmanager
def volume_of(trial: Trial) -> Iterator[Volume | None]:
    """What the trial needs, for as long as it lasts."""
    if trial.dataset:
        directory = Path(trial.dataset.directory)
        disk = disk_of(trial.dataset) if trial.target in VMS else None
        yield Volume(directory, disk, same_device=disk is None or _device(disk) == _device(directory))
    elif trial.scratch_bytes:
        with _scratch(trial.scratch_bytes, with_disk=trial.target in VMS) as volume:
            yield volume
    else:
        yield None


def _device(path: Path) -> int:
    return path.stat().st_dev


@contextmanager
def _scratch(size_bytes: int, *, with_disk: bool) -> Iterator[Volume]:
    place = state("scratch") / secrets.token_hex(6)
    _check_room(place.parent, size_bytes)
    with ledger.holding("directory", str(place)):
        directory = place / "directory"
        directory.mkdir(parents=True)
        disk = place / "disk.img" if with_disk else None
        if disk:
            _make_disk(directory, disk, size_bytes, allocated=True)
        yield Volume(directory, disk, writable=True)


def disk_of(dataset: Dataset) -> Path:
    """The disk that holds the data set, made when there is none yet; see ``prepare_disk``."""
    disk = _disk_path(dataset)
    if not disk.exists():
        raise MeasurementError(f"{disk} is gone", kind="dataset", remedy="run again: it is made before the first trial")
    return disk


def _disk_path(dataset: Dataset) -> Path:
    return state("data-disks") / f"{dataset.sha256[:16]}.img"


def prepare_disk(dataset: Dataset, note: Callable[[str], None]) -> None:
    """Pack the data set as a disk, once. Raises RequestError when there is no room for it."""
    disk = _disk_path(dataset)
    if disk.exists():
        return
    note(f"packing the data set as a disk for VMs: {dataset.images} images, {dataset.size_bytes / 1e9:.1f} GB")
    # Small files fill whole blocks, and each has an entry and an inode.
    size_bytes = dataset.size_bytes + dataset.images * 6144 + (64 << 20)
    _check_room(disk.parent, size_bytes)
    _make_disk(Path(dataset.directory), disk, size_bytes, allocated=False)


def _make_disk(directory: Path, disk: Path, size_bytes: int, *, allocated: bool) -> None:
    """``allocated``: its blocks are there before the first write, as those of a file that a directory holds are not."""
    temporary = disk.with_suffix(".tmp")
    try:
        with local_node((), None) as node:
            filesystem(node, directory, temporary, mib=-(-size_bytes // (1 << 20)) + 32, journal=allocated)
        if allocated:
            with temporary.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, temporary.stat().st_size)
        temporary.rename(disk)
    except OSError as error:
        raise MeasurementError(
            f"cannot make {disk}: {error.strerror}", kind="dataset", remedy="free some space"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _check_room(place: Path, size_bytes: int) -> None:
    room = os.statvfs(place)
    if (free := room.f_bavail * room.f_frsize) < size_bytes * 1.05:
        raise RequestError(
            f"{size_bytes / 1e9:.1f} GB are needed in {place}, {free / 1e9:.1f} GB are free",
            remedy="free some space, or give the suite another folder with VIRTBENCH_HOME",
        )
