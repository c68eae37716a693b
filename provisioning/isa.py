"""The vector instructions that the targets of a run share, so that all of them compute in the same way.

A guest may be offered less than its host has: emulation has no AVX-512. Libraries choose their code by what they find,
and a comparison would then measure that choice. The levels are those between which torch's ATen chooses.
"""

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from provisioning.layers.vm import VmLayer
from provisioning.machines.base import GuestSpec, MachineProvider
from provisioning.nodes import local_node
from provisioning.paths import state
from suite.interfaces import Note
from suite.job.job import CPU_CAPABILITIES, CpuCapability
from suite.process_identity import boot_id
from suite.results.store import write_atomic
from suite.targets import VMS

CPUINFO = Path("/proc/cpuinfo")
_NEEDS = {"avx2": {"avx2", "fma"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"}}


def capability(cpuinfo: str) -> CpuCapability:
    """Return the highest level that all CPUs of a /proc/cpuinfo have; ``default`` if they have none of them."""
    lines = re.findall(r"^flags\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    every = [set(line.split()) for line in lines]
    if every:
        flags = set.intersection(*every)
    else:
        flags = set[str]()
    supported = (level for level in reversed(CPU_CAPABILITIES) if flags >= _NEEDS.get(level, set()))
    return next(supported, "default")


def reports_hypervisor(cpuinfo: str) -> bool:
    """Return whether the CPU of a /proc/cpuinfo reports a hypervisor, as those of virtual machines do (x86 alone)."""
    return bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE))


def shared(
    targets: Sequence[str],
    provider: MachineProvider,
    guest: GuestSpec,
    note: Note,
    *,
    always: bool,
) -> CpuCapability | None:
    """Return what the jobs must be capped to, so that no target uses more than another has.

    Returns None if all have the same; with ``always`` that level, which an ablation lowers. Raises MeasurementError if
    a guest must be asked and does not start.
    """
    guests = VMS.intersection(targets)
    if not always and (not guests or guests == set(targets)):
        return None
    if guests != set(targets):
        levels = {capability(CPUINFO.read_text())}
    else:
        levels = set()
    if guests:
        levels.add(_of_guests(provider, guest, note))
    return lowest_of(levels, note, always=always)


def lowest_of(levels: Collection[CpuCapability], note: Note, *, always: bool) -> CpuCapability | None:
    """Return the lowest of several levels; None if they are all the same, unless it is wanted ``always``."""
    lowest = min(levels, key=CPU_CAPABILITIES.index)
    if len(levels) == 1:
        return lowest if always else None
    note(f"every target is capped to the vector instructions that all have: {lowest} (--isa native leaves them)")
    return lowest


def _of_guests(provider: MachineProvider, spec: GuestSpec, note: Note) -> CpuCapability:
    """Ask a guest; the answer holds for this boot of the host, the provider, the image's kernel and the accelerator."""
    key = f"{boot_id()}/{provider.name}/{spec.image.digest}/{spec.accelerator}"
    cache = state("cache") / "guest-cpu.json"
    try:
        kept = json.loads(cache.read_text())
    except (OSError, ValueError):
        kept = {}
    chosen = (level for level in CPU_CAPABILITIES if level == kept.get("capability"))
    level = next(chosen, None)
    if level is None or kept.get("key") != key:
        note("asking a guest which vector instructions it has (once)")
        with (
            local_node(spec.envelope.cpus, str(spec.image.tree)) as host,
            VmLayer(provider, spec).opened(host) as guest,
        ):
            level = capability(guest.run(["cat", "/proc/cpuinfo"]).stdout)
        write_atomic(cache, json.dumps({"key": key, "capability": level}))
    return level
