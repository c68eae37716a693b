"""The resources that this process and its children have used so far."""

import resource
from collections.abc import Mapping

from worker.environment import number


def usage() -> dict[str, float]:
    """Return counters that explain a slow step: faults cost more in virtual machines, switches mean others ran.

    They are of this process and of its children that have ended.
    """
    both = _self_and_children()
    return {
        "user_s": sum(each.ru_utime for each in both),
        "system_s": sum(each.ru_stime for each in both),
        "minor_faults": sum(each.ru_minflt for each in both),
        "major_faults": sum(each.ru_majflt for each in both),
        "voluntary_switches": sum(each.ru_nvcsw for each in both),
        "involuntary_switches": sum(each.ru_nivcsw for each in both),
    }


def between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return what was used from one ``usage`` to another."""
    return {name: after[name] - before[name] for name in after}


def whole_usage() -> dict[str, float | int | None]:
    """Return fields of ``records.Usage`` since the start of the job, for this process and its children that have ended.

    Memory is of this process alone, and by the kernel's VmHWM: ``ru_maxrss`` remembers what the launching process held.
    """
    both = _self_and_children()
    peak_kib = number("proc/self/status", "VmHWM")
    return {
        "cpu_s": sum(each.ru_utime + each.ru_stime for each in both),
        "peak_memory_bytes": peak_kib * 1024 if peak_kib is not None else None,
        "disk_read_bytes": number("proc/self/io", "read_bytes"),
        "disk_written_bytes": number("proc/self/io", "write_bytes"),
        "minor_faults": sum(each.ru_minflt for each in both),
        "major_faults": sum(each.ru_majflt for each in both),
    }


def _self_and_children() -> list[resource.struct_rusage]:
    return [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
