"""Parses fio's output into metrics: pure, so that it is tested on what fio has really written."""

import json
import re
from collections.abc import Mapping
from typing import Any

from worker.probes.reading import ProbeError, Reading

MIB = 1 << 20
_PERCENTILES = {"p50": "50.000000", "p99": "99.000000"}
_ENOSPC, _EINVAL = 28, 22


def readings(written: str, said: str) -> dict[str, Reading]:
    """Return the metrics of every job in fio's JSON; ``said`` is its standard error. Raises ProbeError."""
    report = _report(written)
    jobs = report.get("jobs") if report else None
    if not jobs or any(job.get("error") for job in jobs):
        raise failure([job.get("error", 0) for job in jobs or []], f"{said}\n{'' if report else written}")
    metrics: dict[str, Reading] = {}
    for job in jobs:
        found = _of_job(job, {**report.get("global options", {}), **job.get("job options", {})})
        if twice := sorted(metrics.keys() & found):
            raise ProbeError(f"fio gives {twice[0]} twice", remedy="put group_reporting beside numjobs")
        metrics |= found
    return metrics


def _report(written: str) -> dict[str, Any]:
    """Return the JSON object after the notes that fio can write before it; empty where there is none."""
    begin = re.search(r"^\{", written, re.MULTILINE)
    try:
        return dict(json.loads(written[begin.start() :])) if begin else {}
    except ValueError:
        return {}


def _of_job(job: Mapping[str, Any], options: Mapping[str, str]) -> dict[str, Reading]:
    """Return the throughput of a sequential job, or the operations and latencies of a random one."""
    active = [way for way in ("read", "write") if job[way]["total_ios"]]
    if not active:
        raise ProbeError(f"the job {job['jobname']} has read and written nothing", remedy="give it time: runtime=5")
    at_random = str(options.get("rw", "read")).startswith("rand")
    metrics: dict[str, Reading] = {}
    for way in active:
        name = job["jobname"] + (f"-{way}" if len(active) > 1 else "")
        metrics |= _at_random(name, job[way]) if at_random else _in_sequence(name, job[way])
    return metrics


def _in_sequence(name: str, counted: Mapping[str, Any]) -> dict[str, Reading]:
    return {f"{name}-throughput": Reading(counted["bw_bytes"] / MIB, "MiB/s", "more")}


def _at_random(name: str, counted: Mapping[str, Any]) -> dict[str, Reading]:
    percentiles = counted["clat_ns"].get("percentile", {})
    latencies = {
        f"{name}-latency-{short}": Reading(percentiles[long] / 1e3, "us", "less")
        for short, long in _PERCENTILES.items()
        if percentiles.get(long)
    }
    return {f"{name}-iops": Reading(counted["iops"], "1/s", "more"), **latencies}


def failure(errors: list[int], said: str) -> ProbeError:
    """Return why fio has failed, from the error numbers of its jobs and from what it said."""
    if "O_DIRECT" in said or "does not support direct" in said or _EINVAL in errors or "err=22/" in said:
        return ProbeError(
            "the file system of the data directory refuses direct I/O",
            remedy="put it on a disk's own file system (VIRTBENCH_HOME); a page cache would be measured otherwise",
        )
    if "ENOSPC" in said or _ENOSPC in errors or "err=28/" in said:
        return ProbeError("the data disk is full", remedy="make size= of the jobs smaller, or free some space")
    words = [line.strip() for line in said.splitlines() if line.strip()]
    reasons = [line for line in words if line.startswith("fio: ")] or words[-3:] or ["it says nothing"]
    return ProbeError(f"fio has failed: {'; '.join(reasons[:3])[:400]}", remedy="correct the job file; see fio(1)")
