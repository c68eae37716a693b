"""Counters of a control group of this machine, on version 1 and version 2; ``limits`` makes groups."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.cgroup.limits import ROOT
from suite.job.properties import DISK_LIMITS

PROC = Path("/proc")
OWN = "self"
VERSION_2 = ""
CONTROLLERS = (VERSION_2, "cpu", "cpuacct", "memory", "blkio")


@dataclass(frozen=True)
class ControlGroup:
    """``paths`` holds the group of each controller; version 2's, which has one for all, under the empty name."""

    paths: Mapping[str, str]
    root: Path = ROOT

    @classmethod
    def named(cls, name: str) -> "ControlGroup":
        return cls(dict.fromkeys(CONTROLLERS, f"/{name}"))

    @classmethod
    def of_process(cls, pid: int | str) -> "ControlGroup":
        """Return the group that a process is in; for a process that is gone, a group of which nothing is known."""
        paths: dict[str, str] = {}
        for line in read(PROC / str(pid) / "cgroup").splitlines():
            _, controllers, group = line.split(":", 2)
            paths.update(dict.fromkeys(controllers.split(","), group))
        if pid == OWN:
            return cls(paths).as_mounted()
        return cls(paths)

    def as_mounted(self) -> "ControlGroup":
        """Return the group of this process, whose paths may be the host's in a container: its mount begins at its own.

        ``worker.environment`` has the same rule for limits. It would be wrong for another process: the group that this
        process sees at the top holds more than that one.
        """
        hidden = [controller for controller in self.paths if self._file(controller, "") is None]
        visible = {**self.paths, **dict.fromkeys(hidden, "/")}
        return replace(self, paths=visible)

    def is_within(self, other: "ControlGroup") -> bool:
        """Return whether it is another group, other than the root, or one below it, under some controller."""
        for controller, above in other.paths.items():
            path = self.paths.get(controller)
            if path and above != "/" and f"{path}/".startswith(f"{above}/"):
                return True
        return False

    def cpu_s(self) -> float | None:
        used_ns = read(self._file("cpuacct", "cpuacct.usage"))
        if used_ns.isdigit():
            return int(used_ns) / 1e9
        used_us = _pairs(self._file("cpu", "cpu.stat")).get("usage_usec")
        if used_us is None:
            return None
        return used_us / 1e6

    def peak_memory_bytes(self) -> int | None:
        """Return the peak since the group was made, with the page cache that it brought in."""
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            peak = read(self._file("memory", name))
            if peak.isdigit():
                return int(peak)
        return None

    def faults(self) -> tuple[int | None, int | None]:
        """Return the minor and the major page faults. The kernel counts the major ones among all."""
        counted = _pairs(self._file("memory", "memory.stat"))
        both = counted.get("pgfault")
        major = counted.get("pgmajfault")
        if both is None or major is None:
            return (None, None)
        return (both - major, major)

    def disk_bytes(self) -> tuple[int | None, int | None]:
        """Return the bytes read and written. Version 1 does not see what a cache writes: None.

        It counts only on devices on which something is throttled, so that a total without a device is no zero.
        """
        text = read(self._file("blkio", "blkio.throttle.io_service_bytes"))
        if text:
            reads = []
            for line in text.splitlines():
                if " Read " in line:
                    reads.append(int(line.split()[2]))
            return sum(reads) if reads else None, None
        file = self._file("io", "io.stat")
        if file is None or not file.exists():
            return None, None
        counted: Counter[str] = Counter()
        for line in read(file).splitlines():
            for pair in line.split()[1:]:
                name, _, value = pair.partition("=")
                if name in ("rbytes", "wbytes"):
                    counted[name] += int(value)
        return counted["rbytes"], counted["wbytes"]

    def disk_limits(self, devices: Sequence[str]) -> dict[str, int | None]:
        """Return each limit of disks, by its field of an environment; None unless it is the same for all.

        It must be so for reads and writes, on all devices (``254:0``).
        """
        common: dict[str, int | None] = {}
        for unit, name in DISK_LIMITS.items():
            limits = set[str]()
            for device in devices:
                limits.update(self._disk_limits(device, unit))
            text = limits.pop() if len(limits) == 1 else ""
            common[name] = int(text) if text.isdigit() else None
        return common

    def _disk_limits(self, device: str, unit: str) -> list[str]:
        """Return the limits of reads and of writes. Version 1 has a file for each, version 2 a line per device."""
        file = self._file("io", "io.max")
        if file:
            by_device = dict(line.split(" ", 1) for line in read(file).splitlines())
            pairs = by_device.get(device, "").split()
            limits = dict(pair.split("=", 1) for pair in pairs)
            return [limits.get(f"{way}{unit}", "") for way in "rw"]
        of_ways = []
        for way in ("read", "write"):
            file = self._file("blkio", f"blkio.throttle.{way}_{unit}_device")
            of_ways.append(_words(file).get(device, ""))
        return of_ways

    def throttled_s(self) -> list[float]:
        """Return for how long quotas have held back this group and each visible group above it, in seconds."""
        file = self._file("cpu", "cpu.stat")
        if file is None:
            return []
        top = self.root
        if file.is_relative_to(self.root / "cpu"):
            top = self.root / "cpu"
        directories = [directory for directory in file.parents if directory.is_relative_to(top)]
        held_back_s = []
        for directory in directories:
            pairs = _pairs(directory / "cpu.stat")
            if "throttled_usec" in pairs:
                held_back_s.append(pairs["throttled_usec"] / 1e6)
            elif "throttled_time" in pairs:
                held_back_s.append(pairs["throttled_time"] / 1e9)
        return held_back_s

    def _file(self, controller: str, name: str) -> Path | None:
        """Return the file, if the group can be seen. A hybrid machine governs by version 1, as ``limits`` says."""
        if (self.root / "cgroup.controllers").exists():
            directory = self.root
            group = self.paths.get(VERSION_2)
        else:
            directory = self.root / controller
            group = self.paths.get(controller)
        path = None
        if group:
            path = directory / group.lstrip("/")
        if path and path.is_dir():
            return path / name
        return None


def _words(file: Path | None) -> dict[str, str]:
    lines = read(file).splitlines()
    return dict(line.split() for line in lines)


def read(path: Path | None) -> str:
    """Return the file's text without the white space around it; empty if it cannot be read."""
    try:
        if path:
            return path.read_text(errors="replace").strip()
        return ""
    except OSError:
        return ""


def _pairs(path: Path | None) -> dict[str, int]:
    """Parse a file of "name number" lines."""
    numbers = {}
    for line in read(path).splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            numbers[words[0]] = int(words[1])
    return numbers
