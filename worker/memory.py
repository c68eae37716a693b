"""The memory that this process may use: the machine's, and the least limit of the control groups it is in."""

import re
from pathlib import Path, PurePosixPath

KERNEL_KEEPS_AT_MOST = 0.1
_V1_FILE, _V2_FILE = "memory.limit_in_bytes", "memory.max"


def read(path: Path) -> str | None:
    """Return the file's text, stripped, or None: a place may hide any part of /proc and /sys."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def memory_total_bytes(proc: Path) -> int | None:
    """Return how much memory the kernel manages: all of it without what the kernel kept for itself."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", read(proc / "meminfo") or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def physical_bytes(proc: Path) -> int | None:
    """Return how much memory the firmware gave to the kernel; None where /proc/iomem hides it (no root)."""
    total = 0
    for line in (read(proc / "iomem") or "").splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) : System RAM", line):
            first, last = int(found[1], 16), int(found[2], 16)
            total += last - first + 1 if last else 0
    return total or None


def cgroup_version(proc: Path) -> int | None:
    """Return the version of the hierarchy that limits memory. Version 2 may be there too and limit other things."""
    groups = _groups(proc)
    if "memory" in groups:
        return 1
    return 2 if "" in groups else None


def memory(proc: Path) -> tuple[int | None, int | None]:
    """Return how much memory this place has, and how much of it the kernel kept; None for what is not known.

    The first is the least of the limits and of the machine's physical memory. A place that does not see the latter
    (a container in a guest) sees a limit of just the guest's memory as slightly more than the kernel manages.
    """
    physical, total, limit = physical_bytes(proc), memory_total_bytes(proc), _limit_bytes(proc)
    if physical or limit is None or total is None:
        return limit, physical - total if physical and total else None
    if total < limit <= total / (1 - KERNEL_KEEPS_AT_MOST):
        return limit, limit - total
    return min(limit, total), None


def _limit_bytes(proc: Path) -> int | None:
    """Return the least of the limits, or the machine's memory without any; None where a limit is hidden."""
    machine = physical_bytes(proc) or memory_total_bytes(proc)
    version = cgroup_version(proc)
    if version is None:
        return machine
    group = _groups(proc)["memory" if version == 1 else ""]
    directories = _directories(proc, version, group)
    if directories is None:
        # In the root group nothing is limited. Elsewhere there may be a limit, and it is hidden.
        return machine if group == "/" else None
    texts = [read(directory / (_V1_FILE if version == 1 else _V2_FILE)) for directory in directories]
    limits = [int(text) for text in texts if text and text.isdigit()]
    physical = physical_bytes(proc)
    return min([*limits, *([physical] if physical else [])], default=machine)


def _groups(proc: Path) -> dict[str, str]:
    """Return the group of each controller; that of version 2 under the empty name."""
    groups = {}
    for line in (read(proc / "self/cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), group))
    return groups


def _directories(proc: Path, version: int, group: str) -> list[Path] | None:
    """Return the directories of the group and of all groups above it that can be seen, or None where none can."""
    for line in (read(proc / "self/mountinfo") or "").splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = [*rest.split(), "", "", ""][:3]
        wanted = kind == "cgroup2" if version == 2 else kind == "cgroup" and "memory" in options.split(",")
        if not wanted:
            continue
        root, mounted_at = fields.split()[3:5]
        top = proc.parent / mounted_at.lstrip("/")
        if not top.is_dir():
            continue
        inside = _below(group, root)
        return [top / inside, *(top / parent for parent in inside.parents)]
    return None


def _below(group: str, root: str) -> PurePosixPath:
    """Return the group relative to the group that is mounted.

    They differ in a container: with the host's control group namespace the mount shows the container's own group only,
    and with a private one both are ``/``. A group outside of the mount is not seen; its top is then the best there is.
    """
    path = PurePosixPath(group)
    return path.relative_to(root) if path.is_relative_to(root) and ".." not in path.parts else PurePosixPath()
