"""What this process has used of the machine so far."""

import resource


def usage() -> dict[str, float]:
    """Counters that explain a slow step: page faults cost more in a virtual machine, switches mean that others ran."""
    now = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "user_s": now.ru_utime,
        "system_s": now.ru_stime,
        "minor_faults": now.ru_minflt,
        "major_faults": now.ru_majflt,
        "voluntary_switches": now.ru_nvcsw,
        "involuntary_switches": now.ru_nivcsw,
    }
