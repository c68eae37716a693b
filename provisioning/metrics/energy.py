"""Energy of this host's packages and memory: RAPL by the kernel's powercap (Intel and AMD). Only root may read it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.cgroup.counters import read

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Energy:
    """One counter. It begins again at 0 after ``range_uj``; one that turns twice between readings is not noticed."""

    uj: int
    range_uj: int


def read_energy(powercap: Path = POWERCAP) -> dict[str, Energy]:
    """Return the counters that do not overlap, by name (``package-0``, ``dram-0``); empty if there are none."""
    counters = {}
    for zone in sorted(powercap.glob("intel-rapl:*")):
        name = read(zone / "name")
        if name == "dram":
            # A part of a package's zone, and named without its number: intel-rapl:0:0 is below intel-rapl:0.
            package = read(powercap / zone.name.rpartition(":")[0] / "name")
            name += package.removeprefix("package")
        uj, range_uj = read(zone / "energy_uj"), read(zone / "max_energy_range_uj")
        if name.startswith(("package", "dram")) and uj.isdigit() and range_uj.isdigit():
            counters[name] = Energy(int(uj), int(range_uj))
    return counters


def joules(before: Mapping[str, Energy], after: Mapping[str, Energy]) -> dict[str, float]:
    """Return the joules that were spent between two readings, by counter."""
    both = ((name, after[name].uj - energy.uj, energy.range_uj) for name, energy in before.items() if name in after)
    return {name: (spent if spent >= 0 else spent + range_uj) / 1e6 for name, spent, range_uj in both}
