"""The disk probe: fio on the data directory, with direct I/O, so that the disk is measured and not a page cache."""

import os
import shutil
import tempfile
from pathlib import Path

from worker.probes import fio, jobfile, tools
from worker.probes.reading import Measured, ProbeError
from worker.probes.request import Request

DEFAULT_JOBS = Path(__file__).with_name("disk.fio")
OLDEST_FIO = (3, 0)  # its JSON counts latencies in nanoseconds from here on
SPARE = 1.05
"""Of the room: metadata of the file system."""


def measure(request: Request) -> Measured:
    program = tools.find("fio")
    version = tools.version_of(program, OLDEST_FIO)
    jobs, needed_bytes = _jobs(request)
    with place_in(request.directory) as place, tempfile.TemporaryDirectory() as notes:
        check_room(place, needed_bytes)
        written = Path(notes, "report.json")
        Path(notes, "jobs.fio").write_text(jobs)
        # A file and not standard output: there fio's notes and its report mix.
        argv = [program, "--output-format=json", f"--output={written}", f"--directory={place}", "--eta=never"]
        size, runtime = f"{jobfile.FILE_MIB[request.size]}m", str(jobfile.RUNTIME_S[request.size])
        variables = {**os.environ, "SIZE": size, "RUNTIME": runtime}
        done = tools.run([*argv, f"{notes}/jobs.fio"], variables=variables)
        metrics = fio.readings(written.read_text() if written.exists() else "", done.stderr + done.stdout)
    if done.returncode:
        raise fio.failure([], done.stderr)
    details = {"fio": version, "job": jobs if request.job else "default", "size": size, "runtime_s": int(runtime)}
    return Measured(metrics, details)


def _jobs(request: Request) -> tuple[str, int]:
    """The job file as fio is given it, and the room that it takes."""
    if request.job is None:
        return DEFAULT_JOBS.read_text(), jobfile.FILE_MIB[request.size] << 20
    try:
        sections = jobfile.parse(request.job)
        return jobfile.render(sections), jobfile.needed_bytes(sections, request.size)
    except jobfile.JobFileError as error:
        raise ProbeError(f"the job file: {error}", remedy="correct the file given with --fio-job") from None


def place_in(directory: str | None) -> "tempfile.TemporaryDirectory[str]":
    """A folder of its own in the data directory, gone at the end. Raises ProbeError where there can be none."""
    if directory is None:
        raise ProbeError("there is no data directory to measure", remedy="open the target with room to write")
    try:
        return tempfile.TemporaryDirectory(prefix="virtbench-probe-", dir=directory)
    except OSError as error:
        raise ProbeError(
            f"cannot write in the data directory {directory}: {error.strerror}",
            remedy="open the target with room to write",
        ) from error


def check_room(place: str, needed_bytes: int) -> None:
    """Raises ProbeError, with the arithmetic, where the file system of the place is too full."""
    free = shutil.disk_usage(place).free
    if free < needed_bytes * SPARE:
        raise ProbeError(
            f"the jobs need {needed_bytes / 1e6:.0f} MB, the data directory has room for {free / 1e6:.0f} MB",
            remedy="make size= of the jobs smaller, choose a smaller --profile, or free some space",
        )
