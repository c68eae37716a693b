"""Records of several machines in one comparison: are the machines equal?"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.warnings.types import AnalysisWarning
from suite.host_compatibility import Host, differences

_COLUMNS = ["hostname", "host_kernel", "host_cpu_model", "host_cpus", "host_memory_bytes", "host_mitigations"]


@dataclass(frozen=True)
class HostsDiffer(AnalysisWarning):
    """The trials that are compared or pooled were made on machines, or in states of one, that are not equal."""

    kind = "hosts-differ"
    hosts: tuple[str, ...]
    found: tuple[str, ...]

    @property
    def message(self) -> str:
        return f"the trials are of hosts that are not equal ({', '.join(self.hosts)}): {'; '.join(self.found)}"

    @property
    def advice(self) -> str:
        return "a block is of one host, so its ratios hold there; for one answer, compare the hosts one at a time"


def hosts_differ(trials: pd.DataFrame) -> Iterator[HostsDiffer]:
    """At most one. Absent facts differ from known ones."""
    rows = trials[_COLUMNS].drop_duplicates()
    if len(rows) < 2:
        return
    hosts = [_host(row) for row in rows.astype(object).where(rows.notna(), None).to_dict("records")]
    if found := differences(hosts):
        yield HostsDiffer(tuple(dict.fromkeys(host.name for host in hosts)), found)


def _host(row: Mapping[Hashable, Any]) -> Host:
    known = row["host_mitigations"]
    pairs = [line.partition(": ") for line in str(known).splitlines()] if known is not None else None
    return Host.model_validate(
        {
            "hostname": row["hostname"],
            "kernel": row["host_kernel"],
            "cpu_model": row["host_cpu_model"],
            "cpus": row["host_cpus"],
            "memory_bytes": row["host_memory_bytes"],
            "mitigations": None if pairs is None else tuple((name, how) for name, _, how in pairs),
        }
    )
