"""The resources that this process has used so far."""

import resource
from collections.abc import Mapping

from worker.environment import number


def usage() -> dict[str, float]:
    """Return counters that explain a slow step: faults cost more in virtual machines, switches mean others ran."""
    now = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "user_s": now.ru_utime,
        "system_s": now.ru_stime,
        "minor_faults": now.ru_minflt,
        "major_faults": now.ru_majflt,
        "voluntary_switches": now.ru_nvcsw,
        "involuntary_switches": now.ru_nivcsw,
    }


def between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return what was used from one ``usage`` to another."""
    return {name: after[name] - before[name] for name in after}


def whole_usage() -> dict[str, float | int | None]:
    """Return fields of ``records.Usage`` since the start of the job, for this process and its children that have ended.

    Memory is of this process alone, and by the kernel's VmHWM: ``ru_maxrss`` remembers what the launching process held.
    """
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    peak_kib = number("proc/self/status", "VmHWM")
    return {
        "cpu_s": sum(each.ru_utime + each.ru_stime for each in both),
        "peak_memory_bytes": peak_kib * 1024 if peak_kib is not None else None,
        "disk_read_bytes": number("proc/self/io", "read_bytes"),
        "disk_written_bytes": number("proc/self/io", "write_bytes"),
        "minor_faults": sum(each.ru_minflt for each in both),
        "major_faults": sum(each.ru_majflt for each in both),
    }
