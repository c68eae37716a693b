"""The disk probe: fio on the data directory, with direct I/O, so that the disk is measured and not a page cache."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.probes import tools
from worker.probes.probe import Measured, Probe, ProbeError, Reading
from worker.spec import Request

JOBS = Path(__file__).with_name("disk.fio")
FILE_MIB = {"smoke": 128, "quick": 512, "paper": 4096}
RUNTIME_S = {"smoke": 2, "quick": 5, "paper": 30}
OLDEST_FIO = (3, 0)  # its JSON counts latencies in nanoseconds from here on
SPARE = 1.05
"""The file system's metadata takes room, too."""
_PERCENTILES = {"p50": "50.000000", "p99": "99.000000"}
_KNOWN_FAILURES = (
    (
        re.compile("O_DIRECT|does not support direct|err=22/"),
        22,
        "the file system of the data directory refuses direct I/O",
        "put it on a disk's own file system (VIRTBENCH_HOME); a page cache would be measured otherwise",
    ),
    (re.compile("ENOSPC|err=28/"), 28, "the data disk is full", "choose a smaller --profile, or free some space"),
)
"""The text and the error number by which fio reports a failure, what it means, and what to do."""


def measure(request: Request) -> Measured:
    program = tools.find("fio")
    version = tools.version_of(program, OLDEST_FIO)
    with place_in(request.directory) as directory, tempfile.TemporaryDirectory() as notes:
        check_space(directory, written_bytes(request.size))
        written = Path(notes, "report.json")
        # A file and not standard output: there fio's notes and its report mix.
        argv = [program, "--output-format=json", f"--output={written}", f"--directory={directory}", "--eta=never"]
        size = f"{FILE_MIB[request.size]}m"
        runtime = str(RUNTIME_S[request.size])
        variables = {**os.environ, "SIZE": size, "RUNTIME": runtime}
        done = tools.run([*argv, str(JOBS)], variables=variables)
        metrics = readings(written.read_text() if written.exists() else "", done.stderr + done.stdout)
    if done.returncode:
        raise fio_failure([], done.stderr)
    return Measured(metrics, {"fio": version, "size": size, "runtime_s": int(runtime)})


def written_bytes(size: str) -> int:
    return FILE_MIB[size] << 20


def place_in(directory: str | None) -> "tempfile.TemporaryDirectory[str]":
    """Make a folder in the data directory, which is gone at the end. Raises ProbeError where there can be none."""
    if directory is None:
        raise ProbeError("there is no data directory to measure", remedy="open the target with room to write")
    try:
        return tempfile.TemporaryDirectory(prefix="virtbench-probe-", dir=directory)
    except OSError as error:
        raise ProbeError(
            f"cannot write in the data directory {directory}: {error.strerror}",
            remedy="open the target with room to write",
        ) from error


def check_space(place: str, needed_bytes: int) -> None:
    """Raise ProbeError, with the arithmetic, where the file system of the place is too full."""
    free = shutil.disk_usage(place).free
    if free < needed_bytes * SPARE:
        raise ProbeError(
            f"the jobs need {needed_bytes / 1e6:.0f} MB, the data directory has room for {free / 1e6:.0f} MB",
            remedy="choose a smaller --profile, or free some space",
        )


def readings(written: str, said: str) -> dict[str, Reading]:
    """Return the metrics of every job in fio's JSON; ``said`` is its standard error. Raises ProbeError."""
    begin = re.search(r"^\{", written, re.MULTILINE)  # fio can write notes before it
    try:
        report: dict[str, Any] = json.loads(written[begin.start() :]) if begin else {}
    except ValueError:
        report = {}
    jobs = report.get("jobs")
    if not jobs or any(job.get("error") for job in jobs):
        raise fio_failure([job.get("error", 0) for job in jobs or []], f"{said}\n{'' if report else written}")
    return {name: reading for job in jobs for name, reading in _of_job(job).items()}


def _of_job(job: Mapping[str, Any]) -> dict[str, Reading]:
    """Return the throughput of a sequential job, or the operations and latencies of a random one."""
    name = job["jobname"]
    options = job["job options"]
    counted = job["write" if options["rw"].endswith("write") else "read"]
    if not counted["total_ios"]:
        raise ProbeError(f"the job {name} has read and written nothing", remedy="look at the disk: its log, its health")
    if not options["rw"].startswith("rand"):
        return {f"{name}-throughput": Reading(counted["bw_bytes"] / 2**20, "MiB/s", "more")}
    percentiles = counted["clat_ns"].get("percentile", {})
    latencies = {short: percentiles[long] for short, long in _PERCENTILES.items() if percentiles.get(long)}
    return {
        f"{name}-iops": Reading(counted["iops"], "1/s", "more"),
        **{f"{name}-latency-{short}": Reading(value / 1e3, "us", "less") for short, value in latencies.items()},
    }


def fio_failure(errors: list[int], said: str) -> ProbeError:
    """Return why fio has failed, from the error numbers of its jobs and from what it said."""
    for text, number, meaning, remedy in _KNOWN_FAILURES:
        if number in errors or text.search(said):
            return ProbeError(meaning, remedy=remedy)
    words = []
    for line in said.splitlines():
        if line.strip():
            words.append(line.strip())
    reasons = [line for line in words if line.startswith("fio: ")] or words[-3:] or ["it says nothing"]
    return ProbeError(f"fio has failed: {'; '.join(reasons[:3])[:400]}", remedy="see fio(1)")


DISK = Probe("disk", measure, written_bytes=written_bytes)
