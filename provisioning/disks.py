"""The disks of this machine that directories lie on, as the kernel limits them: whole, never a partition."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from suite.errors import RequestError

SYS = Path("/sys/dev/block")


@dataclass(frozen=True)
class BlockDevice:
    """``path`` below /dev is what engines take, ``number`` (``254:0``) what control groups take."""

    path: str
    number: str

    @property
    def major_minor(self) -> tuple[int, int]:
        major, _, minor = self.number.partition(":")
        return int(major), int(minor)


def disks_under(places: Iterable[str | None], sys: Path = SYS) -> tuple[BlockDevice, ...]:
    """Each once, in order; places that are None are left out.

    Raises RequestError for a file system that has no disk of its own.
    """
    return tuple(dict.fromkeys(_disk_under(place, sys) for place in places if place))


def _disk_under(place: str, sys: Path) -> BlockDevice:
    try:
        device = Path(place).stat().st_dev
        entry = sys / f"{os.major(device)}:{os.minor(device)}"
        # A partition's directory lies in that of its disk, which alone can be limited.
        whole = entry.resolve().parent if (entry / "partition").exists() else entry
        number = (whole / "dev").read_text().strip()
        said = dict(line.split("=", 1) for line in (whole / "uevent").read_text().splitlines())
        return BlockDevice(f"/dev/{said['DEVNAME']}", number)
    except (OSError, KeyError, ValueError) as error:
        raise RequestError(
            f"{place} lies on a file system without a disk of its own (an overlay, btrfs, a network's)",
            remedy="set VIRTBENCH_HOME to a directory on ext4 or XFS",
        ) from error
