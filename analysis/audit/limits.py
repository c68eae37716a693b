"""CPU time and memory held against what the job could have had, and the opening against its parts."""

from collections.abc import Iterator, Mapping

import pandas as pd

from analysis.audit.findings import AGAIN, Finding, Kind
from analysis.audit.sums import CLOCKS_SHARE, COUNTING_S, EXACT, told
from analysis.load.records import Text
from suite.job.ablations import known_properties
from suite.job.job import Job

CPU = Kind("cpu-time", "refused", AGAIN)
MEMORY = Kind("memory", "refused", AGAIN)
OPENING = Kind("opening", "refused", AGAIN)
COMPUTES_S = 0.1
"""The seconds of computing that show in every accounting, whose ticks may be 10 ms."""
LIMIT_SHARE, MAPPED_BYTES = 0.02, 1 << 30
"""Memory beyond the limit: the share by which groups and guests round, and what is mapped of files and counted for the
process that read them first, or belongs to the hypervisor and the engine."""


def limits(trials: pd.DataFrame, jobs: Mapping[Text, Job]) -> Iterator[Finding]:
    """Yield the records that are ok and used more than there was, or that computed without CPU time."""
    spread = {text: job.distributed for text, job in jobs.items()}
    instances = trials["job"].map({text: float(len(one.roles)) if one else 1.0 for text, one in spread.items()})
    machines = trials["job"].map({text: max(1.0, len(one.machines)) if one else 1.0 for text, one in spread.items()})
    taken_s = trials["elapsed_s"].fillna(trials["block_s"])
    # What serves a target (hypervisor, shims, clients) is pinned to none of its CPUs.
    for column, cpus in (("worker_cpu_s", trials["cpus"] * machines), ("serving_cpu_s", trials["host_cpus"])):
        most_s = cpus * (taken_s * (1 + CLOCKS_SHARE) + COUNTING_S)
        yield from told(CPU, trials[trials[column] > most_s], most_s, column, f"s of {column}", "its CPUs could give")
        idle = trials[(trials[column] == 0) & (trials["measured_s"] > COMPUTES_S)]
        yield from told(CPU, idle, trials["measured_s"], column, f"s of {column}", "the seconds measured are")
    unlimited = {name for name in trials["ablation"].dropna().unique() if not _limited(name)}
    limited = trials[~trials["ablation"].isin(unlimited)]
    limit = trials["memory_bytes"] * machines
    most = limit * (1 + LIMIT_SHARE) + MAPPED_BYTES * instances
    for column in ("worker_peak_memory_bytes", "serving_peak_memory_bytes"):
        over = limited[limited[column] > most[limited.index]]
        yield from told(MEMORY, over, limit, column, f"of {column}", "its limit is")
    parts_s, open_s = trials["opening_s"], trials["open_s"]
    apart = parts_s.notna() & ~((parts_s - open_s).abs() <= EXACT * parts_s + EXACT)
    yield from told(OPENING, trials[apart], open_s, "opening_s", "s of parts", "the opening took")


def _limited(ablation: str) -> bool:
    properties = known_properties(ablation)
    return properties is not None and properties.memory_limited
